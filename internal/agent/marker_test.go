package agent

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// writes lists the patches of the node.
func (a *fakeAPI) writes() []string {
	return slices.DeleteFunc(a.seen(), func(request string) bool { return request != patchNode && request != patchStat })
}

// Both markers: the condition is taken back before the release, the taint by the release.
func TestOnTimeoutTaintAndCondition(t *testing.T) {
	for _, policies := range []string{"taint,condition", "condition,taint"} {
		t.Run(policies, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				p, network := simulateFailing(t, api, "--on-timeout="+policies, "--condition-type=NetworkingReady")
				after(initialTimeout)
				assert.Equal(t, append(tainted, "node-ready/failed"), api.taints())
				assert.Equal(t, corev1.Taint{Key: "node-ready/failed", Value: "network", Effect: corev1.TaintEffectNoSchedule}, api.node.Spec.Taints[3])
				assert.Equal(t, policies, p.entry("node marked as failed")["policy"])
				assert.Equal(t, "NetworkFailed", p.entry("node marked as failed")["reason"])
				assert.Equal(t, corev1.NodeConditionType("NetworkingReady"), api.conditions[0].Type)
				assert.Contains(t, api.conditions[0].Message, refused)
				after(nextAttempt) // else the release may be built on a read from before the marker, and send a second patch
				network.recovered.Store(true)
				after(nextAttempt)
				p.entry("node verified")
				p.stop()
				assert.Equal(t, exitOK, p.wait())
				assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
				assert.Equal(t, untainted, api.taints())
				assert.Equal(t, []string{patchStat, patchNode, postEvent, getNode}, api.seen()[len(api.seen())-4:], "True before the release")
				assert.Len(t, api.writes(), 4, "each marker is written once and taken back once")
			})
		})
	}
}

// A marker without its rights, or that is refused, does not stop the other one, and is tried again.
func TestOneMarkerOfTwoCannotBeWritten(t *testing.T) {
	for refused, written := range map[string]string{patchNode: "condition", patchStat: "taint"} {
		t.Run(written, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
					return request == refused && n <= 2 && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
				})
				p, network := simulateFailing(t, api, "--on-timeout=taint,condition")
				after(initialTimeout)
				p.logged("cannot mark the node as failed")
				p.entry("node marked as failed")
				assert.Equal(t, written == "taint", slices.Contains(api.taints(), "node-ready/failed"))
				assert.Equal(t, written == "condition", len(api.written()) == 1)
				p.loggedOften("node marked as failed", 2)
				assert.Contains(t, api.taints(), "node-ready/failed")
				assert.Equal(t, []string{"False NetworkFailed"}, api.written())
				network.recovered.Store(true)
				after(nextAttempt)
				p.entry("node verified")
				p.stop()
				assert.Equal(t, exitOK, p.wait())
				assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
				assert.Equal(t, untainted, api.taints())
			})
		})
	}
}

// A node that gets its startup taint after INITIAL_TIMEOUT is marked after the next round.
func TestMarkerAfterALateStartupTaint(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(removeTaint("node-ready/unverified"))
		p, _ := simulateFailing(t, api, "--on-timeout=taint,condition")
		after(initialTimeout + time.Minute)
		assert.Empty(t, api.writes())
		api.addStartupTaint()
		after(2 * nextAttempt) // a round and the pause before it
		p.entry("node marked as failed")
		assert.Equal(t, append(untainted, "node-ready/unverified", "node-ready/failed"), api.taints())
		assert.Equal(t, []string{"False NetworkFailed"}, api.written())
		p.stop()
		assert.Equal(t, exitOK, p.wait())
	})
}

// Another client's False condition is taken back before the release. If that fails before INITIAL_TIMEOUT, the condition
// returns, and the failed taint does not.
func TestNoFailedTaintBeforeTheTimeout(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse, Reason: "ImagePull"}}
		var fixed atomic.Bool
		api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			return request == patchNode && !fixed.Load() && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not today")
		})
		p := simulate(t, api, nil, nil, "--on-timeout=taint,condition", "--initial-timeout=10m")
		synctest.Wait()
		p.entry("node marked as failed")
		assert.Equal(t, []string{"True Verified", "False NotVerified"}, api.written())
		assert.Equal(t, tainted, api.taints())
		fixed.Store(true)
		after(nextAttempt)
		p.entry("node verified")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		assert.Equal(t, []string{"True Verified", "False NotVerified", "True Verified"}, api.written())
		assert.Equal(t, []string{patchStat, patchNode, patchStat, patchNode, patchStat}, api.writes(),
			"the refused release and the one that passes: no taint was added")
	})
}

// The patch of the release fails, round by round: the condition stays False, with the date of its one transition. The first
// request that sets it True is lost.
func TestConditionWhileThePatchFails(t *testing.T) {
	for name, code := range map[string]int{"refused by a policy": http.StatusForbidden, "webhook down": http.StatusInternalServerError} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				var fixed atomic.Bool
				api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
					lost := request == patchStat && n == 2
					return (lost || request == patchNode && !fixed.Load()) && answerStatus(w, code, metav1.StatusReasonUnknown, "not today")
				})
				p := simulate(t, api, nil, nil, "--on-timeout=condition")
				after(initialTimeout)
				reason := p.entry("initial timeout exceeded")["reason"]
				assert.Contains(t, reason, "not verified within 5m0s: patch: ")
				assert.Contains(t, reason, "not today")
				p.logged("node marked as failed")
				fixed.Store(true)
				p.logged("node verified")
				p.stop()
				assert.Equal(t, exitOK, p.wait())
				assert.Equal(t, []string{"False NotVerified", "True Verified"}, api.written(), "never True before the release")
				assert.Contains(t, api.conditions[0].Message, "not today")
				assert.Equal(t, []string{patchNode, patchStat, patchStat, postEvent, getNode}, api.seen()[len(api.seen())-5:], "True after the release")
			})
		})
	}
}

// A condition that an earlier container has left False is corrected.
func TestStaleConditionOfAVerifiedNode(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.node.Labels["node-ready/verified"], api.node.Spec.Taints = "true", nil
		api.node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse}}
		p := simulate(t, api, nil, nil, "--once", "--on-timeout=condition")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		require.Equal(t, []string{getNode, patchStat}, api.seen())
		assert.Equal(t, corev1.ConditionTrue, api.conditions[0].Status)
	})
}

// No check has failed where the patch is refused, and the taint says so.
func TestFailedTaintWhileThePatchIsRefused(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.intercept(func(request string, _ int, w http.ResponseWriter, r *http.Request) bool {
			if request != patchNode {
				return false
			}
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			r.Body = io.NopCloser(bytes.NewReader(body))
			return bytes.Contains(body, []byte("/metadata/labels/")) && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "denied by policy")
		})
		p := simulate(t, api, nil, nil, "--on-timeout=taint")
		after(initialTimeout)
		p.entry("node marked as failed")
		p.stop()
		p.wait()
		assert.Equal(t, append(tainted, "node-ready/failed"), api.taints())
		assert.Equal(t, "unverified", api.node.Spec.Taints[3].Value)
	})
}

// ruleTaint is the taint of a client that waits for the condition, and that no agent removes.
const ruleTaint = "readiness.k8s.io/pod-network"

// neverGated edits a node so that it has the rule's taint and no startup taint, and is old enough to get none.
func neverGated(node *corev1.Node) {
	setOld(node)
	node.Spec.Taints = []corev1.Taint{{Key: ruleTaint, Effect: corev1.TaintEffectNoSchedule}}
}

// obeying lets a client remove the rule's taint as soon as the condition is True, before the agent sends anything else. And it
// asserts that no release is sent while the condition is not True. before, which may be nil, answers first.
func (a *fakeAPI) obeying(before interceptor) {
	a.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
		if before != nil && before(request, n, w, r) {
			return true
		}
		if request == patchNode {
			a.edit(func(node *corev1.Node) {
				assert.True(a.t, slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
					return c.Type == "NodeVerified" && c.Status == corev1.ConditionTrue
				}), "a release without the condition")
				removeTaint(ruleTaint)(node)
				node.ResourceVersion += "1"
			})
		}
		return false
	})
}

// Without always such a node gets no condition.
func TestAlwaysFalseAfterTheFirstRound(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(neverGated)
		api.obeying(nil)
		p, network := simulateFailing(t, api, "--condition=always", "--max-retries=0")
		synctest.Wait()
		p.entry("node not verified")
		require.Equal(t, []string{"False NetworkFailed"}, api.written())
		assert.Contains(t, api.conditions[0].Message, refused)
		after(time.Minute)
		assert.Equal(t, []string{"False NetworkFailed"}, api.written(), "the same is not written again")
		assert.Equal(t, []string{ruleTaint}, api.taints())
		network.recovered.Store(true)
		after(nextAttempt)
		p.entry("node verified")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
		assert.Equal(t, []string{patchStat, patchStat, patchNode}, api.writes())
		assert.NotContains(t, p.stderr.String(), "initial timeout exceeded")
	})
}

// A verified node has no agent left that could write the condition: there is no release without it.
func TestAlwaysNoReleaseWithoutTheCondition(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.obeying(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			return request == patchStat && n <= 2 && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not today")
		})
		p := simulate(t, api, nil, nil, "--condition=always")
		synctest.Wait()
		assert.Equal(t, []string{patchStat}, api.writes())
		assert.Contains(t, p.entry("node not verified")["reason"], "cannot write the condition NodeVerified before the release (CONDITION=always): ")
		assert.Contains(t, api.events[0].Message, "not today")
		after(nextAttempt)
		p.entry("node verified")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		assert.Equal(t, []string{"True Verified"}, api.written()[:1])
		assert.Equal(t, untainted, api.taints())
	})
}

// A refused release says nothing about the checks: True stays, also at INITIAL_TIMEOUT. A check that fails takes it back.
func TestAlwaysWhileTheReleaseIsRefused(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			return request == patchNode && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not today")
		})
		network := new(brokenNetwork)
		network.recovered.Store(true)
		p := simulate(t, api, network.try, nil, "--condition=always", "--on-timeout=condition", "--max-retries=0")
		after(initialTimeout + nextAttempt)
		assert.Contains(t, p.entry("initial timeout exceeded")["reason"], "not today")
		assert.Equal(t, []string{"True Verified"}, slices.Compact(api.written()))
		network.recovered.Store(false)
		after(nextAttempt)
		network.recovered.Store(true)
		after(nextAttempt)
		assert.Equal(t, []string{"True Verified", "False NetworkFailed", "True Verified"}, slices.Compact(api.written()))
		p.stop()
		assert.Equal(t, exitOK, p.wait())
	})
}

// With rechecks, a node that was verified before gets the condition too, once its rounds have proven it.
func TestAlwaysWithRechecks(t *testing.T) {
	for setting, want := range map[string][]string{"auto": nil, "always": {"True Verified", "False NetworkFailed"}} {
		t.Run(setting, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(setReleased)
				api.edit(func(node *corev1.Node) { node.Annotations = nil })
				r := startVerification(t, api, "--condition="+setting)
				r.round(nil, nil)
				assert.Empty(t, api.written())
				r.round(nil)
				r.round(errBroken, errBroken, errBroken)
				assert.Equal(t, want, api.written())
				r.end()
			})
		})
	}
}

// lateStatus delays the nth patch of the status by a time, whatever becomes of the client, which gives up before.
func (a *fakeAPI) lateStatus(nth int, late time.Duration, before interceptor) {
	a.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
		if before != nil && before(request, n, w, r) {
			return true
		}
		if request == patchStat && n == nth {
			time.Sleep(late)
		}
		return false
	})
}

// shown is the status and the reason of the condition, as the node has it.
func (a *fakeAPI) shown() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, condition := range a.node.Status.Conditions {
		return string(condition.Status) + " " + condition.Reason
	}
	return ""
}

// The API server is slow: the False at INITIAL_TIMEOUT has no answer in time, and arrives when the node is released already, and no
// agent is left. It is for the Node before its release, and is refused.
func TestFalseThatComesAfterTheRelease(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, network := simulateFailing(t, api, "--on-timeout=condition", "--check-timeout=1s")
		api.lateStatus(1, 20*time.Second, func(request string, n int, _ http.ResponseWriter, _ *http.Request) bool {
			if request == patchStat && n == 1 {
				network.recovered.Store(true)
			}
			return false
		})
		for !api.isLabelled() {
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(500 * time.Millisecond) // until the DaemonSet controller deletes the pod
		p.stop()
		p.wait()
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"True Verified"}, api.written())
		assert.Equal(t, 2, api.count(patchStat), "the False was sent")
	})
}

// A Node that changes between the read and the False is read and judged again at once, three times.
func TestFalseOnANodeThatChanges(t *testing.T) {
	for name, test := range map[string]struct {
		conflicts int
		change    func(*corev1.Node)
		patches   int
		at, later []string
	}{
		"three times":                  {3, func(*corev1.Node) {}, 4, []string{"False NetworkFailed"}, []string{"False NetworkFailed"}},
		"more often":                   {4, func(*corev1.Node) {}, 4, nil, []string{"False NetworkFailed"}},
		"the startup taint is removed": {1, removeTaint("node-ready/unverified"), 1, nil, nil},
		"it is being deleted":          {1, func(node *corev1.Node) { node.DeletionTimestamp = new(metav1.Now()) }, 1, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.intercept(func(request string, n int, _ http.ResponseWriter, _ *http.Request) bool {
					if request == patchStat && n <= test.conflicts {
						api.edit(test.change)
					}
					return false
				})
				p, _ := simulateFailing(t, api, "--on-timeout=condition")
				after(initialTimeout)
				assert.Equal(t, test.at, api.written())
				assert.Equal(t, test.patches, api.count(patchStat))
				after(nextAttempt)
				assert.Equal(t, test.later, api.written())
				p.stop()
				p.wait()
			})
		})
	}
}

// The True before a release has no answer in time, and arrives after the False that follows the failed release: the next failed round
// takes it back, although the failure is the same.
func TestTrueThatComesAfterTheFalse(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){"new": func(*corev1.Node) {}, "to be verified again": setRecord} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(edit)
				api.lateStatus(2, 50*time.Second, func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
					return request == patchNode && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not today")
				})
				p, network := simulateFailing(t, api, "--on-timeout=condition", "--max-retries=0")
				after(initialTimeout)
				network.recovered.Store(true)
				after(nextAttempt + 50*time.Second)
				require.Contains(t, api.written(), "True Verified", "it has arrived")
				after(nextAttempt)
				assert.Equal(t, "False NotVerified", api.shown())
				after(time.Hour)
				assert.Equal(t, []string{"False NetworkFailed", "False NotVerified", "True Verified", "False NotVerified"}, api.written(), "once")
				p.stop()
				p.wait()
			})
		})
	}
}

// setRecord edits a node as one that was released before, and has the startup taint again.
func setRecord(node *corev1.Node) {
	node.Annotations = map[string]string{nodepatch.Annotation: releaseRecord}
}

// A False that arrives just before the release, such as one whose answer was lost, is corrected after it.
func TestFalseThatComesWithTheRelease(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, network := simulateFailing(t, api, "--on-timeout=condition")
		after(initialTimeout)
		api.intercept(func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
			if request == patchNode {
				api.edit(setFalse("NetworkFailed"))
			}
			return false
		})
		network.recovered.Store(true)
		after(nextAttempt)
		assert.Equal(t, "True Verified", api.shown())
		p.stop()
		p.wait()
	})
}

// A release of one Node that failed does not delay the True of the next Node of its name.
func TestTrueBeforeTheReleaseOfAReplacedNode(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			if request != patchNode || n != 1 {
				return false
			}
			api.edit(func(node *corev1.Node) { node.UID = "uid-2" })
			api.edit(setFalse("ImagePull"))
			return answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not today")
		})
		p := simulate(t, api, nil, nil, "--on-timeout=condition")
		after(nextAttempt)
		assert.Equal(t, []string{patchNode, patchStat, patchNode}, api.writes())
		assert.Equal(t, untainted, api.taints())
		p.stop()
		p.wait()
	})
}

// A False that another client removes is written again after the next failed round.
func TestFalseThatIsRemoved(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, network := simulateFailing(t, api, "--on-timeout=condition", "--max-retries=0")
		after(initialTimeout + nextAttempt)
		api.edit(func(node *corev1.Node) { node.Status.Conditions = nil })
		after(nextAttempt)
		assert.Equal(t, []string{"False NetworkFailed", "False NetworkFailed"}, api.written())
		api.edit(func(node *corev1.Node) { node.Status.Conditions = nil })
		network.recovered.Store(true)
		after(nextAttempt)
		assert.Equal(t, "True Verified", api.shown())
		p.stop()
		p.wait()
	})
}

// An agent ends between the True before its release and the release. The next one takes the True back with its first failed round,
// but not on a node that was released before: the False waits for INITIAL_TIMEOUT there.
func TestTrueOfAnEarlierAgent(t *testing.T) {
	same := func(*corev1.Node) {}
	for name, test := range map[string]struct {
		edit  func(*corev1.Node)
		first string // after the first failed round
		later string // after INITIAL_TIMEOUT
	}{
		"new":                   {same, "False NetworkFailed", "False NetworkFailed"},
		"to be verified again":  {setRecord, "True Verified", "False NetworkFailed"},
		"labelled":              {func(node *corev1.Node) { node.Labels["node-ready/verified"] = "true" }, "True Verified", "False NetworkFailed"},
		"without startup taint": {removeTaint("node-ready/unverified"), "True Verified", "True Verified"},
		"waits for a CNI":       {addTaint(cilium), "False TaintsOfOthers", "False TaintsOfOthers"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(setCondition(corev1.ConditionTrue, "Verified"))
				api.edit(test.edit)
				p, _ := simulateFailing(t, api, "--on-timeout=condition", "--max-retries=0", "--wait-for-taints="+cilium.Key)
				after(time.Second)
				assert.Equal(t, test.first, api.shown())
				after(initialTimeout)
				assert.Equal(t, test.later, api.shown())
				p.stop()
				p.wait()
			})
		})
	}
	t.Run("passes", func(t *testing.T) {
		simulated(t, func(t *testing.T, api *fakeAPI) {
			api.edit(setCondition(corev1.ConditionTrue, "Verified"))
			p := simulate(t, api, nil, nil, "--once", "--on-timeout=condition")
			assert.Equal(t, exitOK, p.wait())
			assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen(), "True is what it is to show")
		})
	})
}

// What a verification finds out about a Node at INITIAL_TIMEOUT is not written to one that has been created since under its name.
func TestReplacedNodeIsNotMarked(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, _ := simulateFailing(t, api, "--on-timeout=taint,condition", "--max-retries=0", "--wait-for-taints="+cilium.Key)
		after(initialTimeout - 100*time.Millisecond)
		api.edit(setReplaced)
		after(time.Second)
		p.entry("initial timeout exceeded")
		assert.Empty(t, api.writes())
		assert.Equal(t, tainted, api.taints())
		after(initialTimeout + nextAttempt)
		assert.Contains(t, api.taints(), "node-ready/failed", "it has an INITIAL_TIMEOUT of its own")
		assert.Equal(t, []string{"False NetworkFailed"}, api.written())
		p.stop()
		p.wait()
	})
}

// Nor is it if the first read of its predecessor failed, and the agent then waited for a foreign taint.
func TestReplacedNodeIsNotMarkedAfterAFailedFirstRead(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(func(node *corev1.Node) { node.Spec.Taints = append(node.Spec.Taints, cilium) })
		reads := 0
		api.intercept(func(_ string, _ int, w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
				reads++
			}
			return reads == 1 && answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "not yet")
		})
		p := simulate(t, api, passing, nil, "--on-timeout=taint,condition", "--wait-for-taints="+cilium.Key)
		after(time.Minute)
		p.entry("waiting for foreign taints")
		after(initialTimeout - time.Minute - 100*time.Millisecond)
		api.edit(setReplaced)
		after(time.Second)
		assert.Empty(t, api.writes())
		p.stop()
		p.wait()
	})
}

func setReplaced(node *corev1.Node) { node.UID, node.CreationTimestamp = "uid-2", metav1.Now() }

// A replaced Node is marked as late, although the path to the API server loses the api check's large requests: the rounds do not read
// the new Node.
func TestReplacedNodeThatRoundsDoNotRead(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		isBroken := false
		api.intercept(func(_ string, _ int, w http.ResponseWriter, r *http.Request) bool {
			return isBroken && r.Header.Get("X-Kube-Node-Ready-Padding") != "" &&
				answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "lost")
		})
		p, _ := simulateFailing(t, api, "--on-timeout=taint,condition", "--max-retries=0")
		after(time.Minute)
		isBroken = true
		api.edit(setReplaced)
		after(initialTimeout)
		p.entry("initial timeout exceeded")
		assert.Empty(t, api.writes())
		after(time.Minute + nextAttempt)
		assert.Contains(t, api.taints(), "node-ready/failed")
		assert.Equal(t, []string{"False APIFailed,NetworkFailed"}, api.written())
		p.stop()
		p.wait()
	})
}
