package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/oneround"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const requireGPU = `--require=[{"allocatable":"nvidia.com/gpu>=8"}]`

// setGPUs edits a node as a device plugin does by way of kubelet.
func setGPUs(count string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(count)}
	}
}

// setPlugin is the pod of the DaemonSet gpu/plugin on the node.
func (a *fakeAPI) setPlugin(ready corev1.ConditionStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods = []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "plugin-x", Namespace: "gpu", OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "plugin"}}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: "Ready", Status: ready}}},
	}}
}

// A requirement that is met at once costs no request.
func TestRequirementsThatAreMet(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(func(node *corev1.Node) {
			setGPUs("8")(node)
			node.Annotations = map[string]string{"csi.volume.kubernetes.io/nodeid": `{"ebs.csi.aws.com":"i-1"}`}
			node.Status.Conditions = []corev1.NodeCondition{{Type: "NetworkUnavailable", Status: "False"}}
		})
		p := simulate(t, api, nil, nil, "--once", `--require=[{"allocatable":"nvidia.com/gpu>=8"},{"condition":"NetworkUnavailable=False"},`+
			`{"csiDriver":"ebs.csi.aws.com"},{"label":"kubernetes.io/os"},{"label":"none","on":{"kubernetes.io/os":"windows"}}]`)
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
		assert.Equal(t, 1, attempts(t, api, "node"))
		assert.Contains(t, p.stderr.String(), `=8, condition NetworkUnavailable=False, csiDriver ebs.csi.aws.com, label kubernetes.io/os"`)
	})
}

// The node says at once what is missing, and is released soon after it has come. All checks run again then.
func TestRequirementThatIsMetLate(t *testing.T) {
	for range 20 {
		simulated(t, func(t *testing.T, api *fakeAPI) {
			start := time.Now()
			late := time.Duration(rand.Int64N(int64(2 * time.Minute)))
			api.edit(setGPUs("0"))
			p := simulate(t, api, nil, nil, "--once", requireGPU)
			after(100 * time.Millisecond)
			assert.Equal(t, "failed: node", p.entry("node not verified")["reason"])
			require.Equal(t, []string{"NodeNotVerified"}, api.reasons())
			assert.Contains(t, api.events[0].Message, "node: allocatable nvidia.com/gpu>=8: the node has 0 (check what provides it")
			assert.Equal(t, 1, strings.Count(p.stderr.String(), `"check":"node"`), "the same Node is not judged again")

			time.Sleep(late)
			assert.Equal(t, tainted, api.taints())
			api.edit(setGPUs("8"))
			met := time.Now()
			assert.Equal(t, exitOK, p.wait(), p.stderr)
			limit := 10 * time.Second
			if met.Sub(start) < 10*time.Second {
				limit = 3 * time.Second
			}
			assert.LessOrEqual(t, time.Since(met), limit, "met after %s", met.Sub(start))
			assert.Equal(t, untainted, api.taints())
			assert.Equal(t, 2, attempts(t, api, "dns"), "the other checks run again")
			assert.Equal(t, 2, attempts(t, api, "node"))
			assert.LessOrEqual(t, api.count(getCached), 8+int(met.Sub(start)/(6*time.Second)))
		})
	}
}

// A Node is judged as it is at its release, however long CHECK_TIMEOUT lets a check take.
func TestChangeDuringALongCheck(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){"requirement lost": setGPUs("0"), "foreign taint": addTaint(cilium)} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(setGPUs("8"))
				network := func(ctx context.Context) (checks.Report, error) {
					time.Sleep(10 * time.Second)
					api.edit(change)
					return passing(ctx)
				}
				p := simulate(t, api, network, nil, "--check-timeout=1m", "--wait-for-taints="+cilium.Key, requireGPU)
				after(15 * time.Second)
				assert.Contains(t, api.taints(), "node-ready/unverified")
				p.stop()
				p.wait()
			})
		})
	}
}

// A requirement that is lost between the round and the release is what fails: another node would not help, so no failed taint.
func TestRequirementLostBeforeTheRelease(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.intercept(func(request string, n int, _ http.ResponseWriter, _ *http.Request) bool {
			if request == patchStat && n == 2 { // the condition turns True
				time.Sleep(10 * time.Second)
				api.edit(setGPUs("0"))
			}
			return false
		})
		p := simulate(t, api, nil, nil, "--check-timeout=1m", "--initial-timeout=5s", "--on-timeout=taint", "--condition=always", requireGPU)
		after(10 * time.Second)
		api.edit(setGPUs("8"))
		after(30 * time.Second)
		assert.Equal(t, []string{"False NodeFailed", "True Verified", "False NodeFailed"}, api.written())
		assert.NotContains(t, api.taints(), "node-ready/failed")
		p.stop()
		p.wait()
	})
}

// INITIAL_TIMEOUT passes while the agent waits for such a requirement.
func TestTimeoutAfterARequirementWasLost(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(setGPUs("8"))
		api.intercept(func(request string, n int, _ http.ResponseWriter, _ *http.Request) bool {
			if request == patchStat && n == 1 { // the condition turns True
				time.Sleep(10 * time.Second)
				api.edit(setGPUs("0"))
			}
			return false
		})
		p := simulate(t, api, nil, nil, "--check-timeout=1m", "--initial-timeout=30s", "--on-timeout=taint", "--condition=always", requireGPU)
		after(80 * time.Second)
		assert.Equal(t, []string{"True Verified", "False NodeFailed"}, api.written())
		assert.NotContains(t, api.taints(), "node-ready/failed")
		assert.Contains(t, api.events[len(api.events)-1].Message, "nvidia.com/gpu")
		p.stop()
		p.wait()
	})
}

func refuseSecondCondition(api *fakeAPI) {
	api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		return request == patchStat && n == 2 && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not now")
	})
}

// A condition that cannot be written after a round is tried again before the next round, which may be minutes away.
func TestConditionIsWrittenBeforeTheNextRound(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		refuseSecondCondition(api)
		p, network := simulateFailing(t, api, "--initial-timeout=5s", "--on-timeout=condition", requireGPU)
		after(10 * time.Second)
		network.recovered.Store(true)
		after(nextAttempt + time.Minute)
		assert.Equal(t, []string{"False NetworkFailed", "False NodeFailed"}, api.written())
		p.stop()
		p.wait()
	})
}

// What is tried again is what the round has found, not the last check that failed.
func TestRetriedConditionNamesTheRound(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		refuseSecondCondition(api)
		var hasDNSFailed atomic.Bool
		bad := func(context.Context) (checks.Report, error) { return checks.Report{}, errors.New("bad") }
		dns := func(ctx context.Context) (checks.Report, error) {
			if hasDNSFailed.Load() {
				return bad(ctx)
			}
			return passing(ctx)
		}
		p := simulateChecks(t, api, fakeCheck{checks.DNSName, dns}, fakeCheck{checks.NetworkName, bad}, nil,
			"--initial-timeout=5s", "--on-timeout=condition")
		after(2 * time.Minute)
		hasDNSFailed.Store(true)
		after(10 * time.Minute)
		assert.Equal(t, []string{"False NetworkFailed", "False DNSFailed,NetworkFailed"}, api.written())
		p.stop()
		p.wait()
	})
}

// The device plugin's DaemonSet: its pod comes late, and is not ready at first.
func TestRequiredDaemonSet(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p := simulate(t, api, nil, nil, "--once", `--require=[{"daemonSet":"gpu/plugin"},{"daemonSet":"other/plugin","on":{"gpu":"amd"}}]`)
		after(time.Second)
		require.NotEmpty(t, api.events)
		assert.Contains(t, api.events[0].Message, "node: daemonSet gpu/plugin: the node has none")
		api.setPlugin(corev1.ConditionFalse)
		after(time.Minute)
		assert.Equal(t, tainted, api.taints())
		api.setPlugin(corev1.ConditionTrue)
		ready := time.Now()
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.LessOrEqual(t, time.Since(ready), 10*time.Second)
		assert.Equal(t, untainted, api.taints())
		assert.Positive(t, api.count(getPods))
	})
}

// Several DaemonSets of one namespace cost one list of pods for each look at the node, not one each.
func TestRequiredDaemonSetsShareAList(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p := simulate(t, api, nil, nil, "--max-retries=0", `--require=[{"daemonSet":"gpu/a"},{"daemonSet":"gpu/b"},{"daemonSet":"gpu/c"}]`)
		after(time.Minute)
		assert.LessOrEqual(t, api.count(getPods), api.reads()+1, "the first round reuses a read")
		for _, name := range []string{"gpu/a", "gpu/b", "gpu/c"} {
			assert.Contains(t, api.events[0].Message, "daemonSet "+name+": the node has none")
		}
		p.stop()
		p.wait()
	})
}

// Another node would have the same driver: NodeFailed alone adds no failed taint, which makes Karpenter buy one.
func TestFailedTaintNotForRequirementsAlone(t *testing.T) {
	for name, test := range map[string]struct {
		network error
		taints  []string
		reason  string
	}{
		"alone":                     {nil, tainted, "False NodeFailed"},
		"beside the broken network": {errBroken, append(tainted, "node-ready/failed"), "False NetworkFailed,NodeFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				p := simulate(t, api, func(context.Context) (checks.Report, error) { return checks.Report{}, test.network }, nil,
					"--on-timeout=taint,condition", requireGPU)
				after(initialTimeout + 2*time.Minute)
				if test.network == nil { // else it names the check that was tried last
					assert.Contains(t, p.entry("initial timeout exceeded")["reason"], "allocatable nvidia.com/gpu>=8")
				}
				assert.Equal(t, test.taints, api.taints())
				assert.Contains(t, api.written(), test.reason)
				p.stop()
				p.wait()
			})
		})
	}
}

func TestDryRunOfRequirements(t *testing.T) {
	for name, test := range map[string]struct {
		env  string // NODE_NAME
		gpus string
		want string
		code bool
	}{
		"met":     {"node1", "8", "PASS  node", true},
		"unmet":   {"node1", "7", "FAIL  node", false},
		"no node": {"", "8", "SKIP  node               the node was not read", true},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(setGPUs(test.gpus))
				cfg, e := simulatedSettings(t, api, map[string]string{"NODE_NAME": test.env, "DNS_SERVICE": ""}, "--dry-run", requireGPU, "--dns-test-domains=127.0.0.1")
				e.Service, e.APIServer = "", ""
				out := newOutput()
				oneround.DryRun(t.Context(), cfg, e, "dev", out)
				assert.Contains(t, out.String(), test.want)
				assert.Contains(t, out.String(), " failed, ")
				assert.Equal(t, test.code, !strings.Contains(out.String(), "FAIL  node"))
			})
		})
	}
}

// Rechecks judge what the node has met since its release, and lost.
func TestRecheckOfRequirements(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(setGPUs("8"))
		api.edit(func(node *corev1.Node) { node.Labels["zone"] = "a" })
		r := startRechecks(t, api, `--require=[{"allocatable":"nvidia.com/gpu>=8"},{"label":"never"},{"label":"zone"},{"csiDriver":"d"}]`)
		r.round(nil, nil, nil)
		assert.Equal(t, []string{"True Verified"}, api.written(), "what the node has never met does not count")
		api.edit(setGPUs("7"))
		r.round(nil, nil)
		assert.True(t, r.ready())
		r.round(nil)
		assert.Equal(t, []string{"True Verified", "False NodeFailed"}, api.written())
		assert.Contains(t, api.conditions[1].Message, "node: allocatable nvidia.com/gpu>=8: the node has 7")
		assert.NotContains(t, api.conditions[1].Message, "never")
		assert.False(t, r.ready())
		api.edit(setGPUs("8"))
		r.round(nil, nil, nil)
		assert.Equal(t, []string{"True Verified", "False NodeFailed", "True Verified"}, api.written())
		r.end()
	})
}

// What the release has proven counts for rechecks: before the first of them, after a reboot, and where the condition does not say what
// was lost, because its message was cut.
func TestRecheckOfWhatTheReleaseHasProven(t *testing.T) {
	for name, rebooted := range map[string]bool{"before the first recheck": false, "after a reboot": true} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(setGPUs("8"))
				r := startVerification(t, api, requireGPU)
				r.round(nil)
				assert.Equal(t, untainted, api.taints())
				api.edit(setGPUs("0"))
				if rebooted {
					r.end()
					api.edit(func(node *corev1.Node) { node.Status.NodeInfo.BootID = "another" })
					r = startVerification(t, api, requireGPU)
				}
				r.round(nil, nil)
				assert.True(t, r.ready())
				r.round(nil)
				assert.False(t, r.ready())
				r.end()
				api.edit(setFalse("NetworkFailed,NodeFailed"))
				r = startVerification(t, api, requireGPU)
				r.round(nil, nil, nil, nil)
				assert.Equal(t, []string{"True Verified", "False NodeFailed", "False NodeFailed"}, api.written())
				r.end()
			})
		})
	}
}

// A CSI driver counts for the release only: kubelet removes the annotation while the driver is updated.
func TestRecheckOfACSIDriver(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(func(node *corev1.Node) {
			node.Annotations = map[string]string{"csi.volume.kubernetes.io/nodeid": `{"d":"i"}`}
		})
		r := startVerification(t, api, `--require=[{"csiDriver":"d"}]`)
		r.round(nil, nil)
		p := api.taints()
		assert.Equal(t, untainted, p)
		api.edit(func(node *corev1.Node) { delete(node.Annotations, "csi.volume.kubernetes.io/nodeid") })
		r.round(nil, nil, nil, nil)
		assert.True(t, r.ready())
		r.end()
	})
}

// What the node has met since its release and has lost is in its record with the False: the next agent knows it, also where the
// controller has written a reason of its own since. It proves that it is back.
func TestRecheckOfALossAfterARestart(t *testing.T) {
	for name, shown := range map[string]func(*corev1.Node){
		"of the agent's":                  func(*corev1.Node) {},
		"behind the controller's False":   setFalse("SandboxFailed"),
		"behind the controller's Unknown": setCondition(corev1.ConditionUnknown, "NotRechecked"),
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(setGPUs("8"))
				api.edit(func(node *corev1.Node) { node.Labels["kept"] = "" })
				required := `--require=[{"label":"never"},{"label":"kept"},{"allocatable":"nvidia.com/gpu>=8"}]`
				r := startRechecks(t, api, required)
				r.round(nil)
				api.edit(setGPUs("7"))
				r.round(nil, nil)
				assert.Equal(t, releaseRecord, api.node.Annotations[nodepatch.Annotation], "not before the verdict")
				before := len(api.writes())
				r.round(nil)
				assert.Equal(t, []string{patchStat}, api.writes()[before:], "in one patch")
				assert.Equal(t, []string{"allocatable nvidia.com/gpu>=8"}, api.record().Required)
				assert.Equal(t, []string{startup}, api.record().Removed, "the rest of the record stays")
				r.round(nil, nil, nil, nil, nil, nil)
				assert.Equal(t, []string{"allocatable nvidia.com/gpu>=8"}, api.record().Required)
				r.end()

				api.edit(shown)
				api.edit(addFailedTaint)
				r = startVerification(t, api, required)
				r.round(nil, nil, nil, nil, nil)
				assert.NotContains(t, api.written(), "True Verified")
				assert.Contains(t, api.taints(), "node-ready/failed")
				assert.False(t, r.ready())
				api.edit(setGPUs("8"))
				r.round(nil, nil, nil, nil)
				assert.Contains(t, api.written(), "True Verified")
				assert.NotContains(t, api.taints(), "node-ready/failed")
				r.end()
			})
		})
	}
}

// A record is written only over the one that the agent has just read: neither one that another client removes, to have the node
// verified again, nor a newer one is lost.
func TestRecheckKeepsRecordsOfOtherClients(t *testing.T) {
	verifyAgain := func(node *corev1.Node) {
		delete(node.Labels, "node-ready/verified")
		delete(node.Annotations, nodepatch.Annotation)
	}
	newer := record.Record{Version: "9.9.9", Removed: []string{startup}}
	release := func(node *corev1.Node) { node.Annotations[nodepatch.Annotation] = newer.String() }
	for name, test := range map[string]struct {
		change   func(*corev1.Node)
		before   string // the request before which the Node changes
		required []string
	}{
		"removed, and the cache is behind":        {verifyAgain, getNode, nil},
		"removed during the write":                {verifyAgain, patchStat, nil},
		"released again, and the cache is behind": {release, getNode, []string{"allocatable nvidia.com/gpu>=8"}},
		"released again during the write":         {release, patchStat, []string{"allocatable nvidia.com/gpu>=8"}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(setGPUs("8"))
				r := startRechecks(t, api, requireGPU)
				r.round(nil)
				api.edit(setGPUs("7"))
				r.round(nil, nil)
				var once sync.Once
				api.intercept(func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
					if request == test.before || request == patchStat { // without a live read before it
						once.Do(func() { api.edit(test.change) })
					}
					return false
				})
				r.round(nil)
				if test.required == nil {
					assert.NotContains(t, api.written(), "False NodeFailed")
					assert.NotContains(t, api.node.Annotations, nodepatch.Annotation)
				} else {
					assert.Contains(t, api.written(), "False NodeFailed")
					want := newer
					want.Required = test.required
					assert.Equal(t, want, api.record())
				}
				r.end()
			})
		})
	}
}

// A node without a record gets none with the False: an annotation of a node without the label would mean that it is to be verified again.
func TestRecheckCreatesNoRecord(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(setReleased)
		api.edit(setGPUs("8"))
		api.edit(func(node *corev1.Node) { node.Annotations = map[string]string{} })
		r := startVerification(t, api, "--condition=always", requireGPU)
		r.round(nil)
		api.edit(setGPUs("7"))
		r.round(nil, nil, nil)
		assert.Equal(t, []string{"False NodeFailed"}, api.written())
		assert.Empty(t, api.node.Annotations)
		r.end()
	})
}

// What the node has never met, because it was demanded later, keeps no node from recovering.
func TestLaterRequirementAfterARestart(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(setGPUs("8"))
		api.edit(setLost("allocatable nvidia.com/gpu>=8"))
		api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool { // also without the right to list pods
			return request == getPods && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
		})
		r := startRechecks(t, api, `--require=[{"allocatable":"nvidia.com/gpu>=8"},{"label":"later"},{"daemonSet":"gpu/later"}]`)
		r.round(nil, nil, nil, nil)
		assert.Contains(t, api.written(), "True Verified")
		r.end()
	})
}

// Nor does it where the controller's reason hides what the last agent has found: the record says what counts.
func TestLaterRequirementBehindTheControllersReason(t *testing.T) {
	for name, shown := range map[string]func(*corev1.Node){
		"Silent":        setFalse("Silent"),
		"SandboxFailed": setFalse("SandboxFailed"),
		"NotRechecked":  setCondition(corev1.ConditionUnknown, "NotRechecked"),
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(shown)
				r := startRechecks(t, api, `--require=[{"label":"later"}]`)
				r.round(nil, nil, nil)
				assert.Equal(t, []string{"True Verified"}, api.written())
				assert.True(t, r.ready())
				r.end()
			})
		})
	}
}

// setLost edits a node as an agent does that has found a loss.
func setLost(entry string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		setFalse("NodeFailed")(node)
		node.Status.Conditions[0].Message = "node: " + entry + ": the node has none"
	}
}

// An upgrade that removes a requirement takes the right to list pods from the agents that still run: that says nothing about a node
// that passes, and proves nothing about one that fails.
func TestRecheckWithoutTheRightToListPods(t *testing.T) {
	for name, shown := range map[string]func(*corev1.Node){
		"passes": setCondition(corev1.ConditionTrue, "Verified"), "fails": setFalse("NodeFailed"),
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.setPlugin(corev1.ConditionTrue)
				api.edit(shown)
				if name == "fails" {
					api.edit(addFailedTaint)
				}
				r := startRechecks(t, api, `--require=[{"daemonSet":"gpu/plugin"}]`, "--recovery-threshold=2")
				r.round(nil)
				if name == "passes" {
					r.round(errBroken)
				}
				api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
					return request == getPods && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
				})
				r.round(nil, nil, nil)
				assert.Equal(t, name == "passes", r.ready())
				assert.Equal(t, name == "fails", slices.Contains(api.taints(), "node-ready/failed"))
				assert.NotContains(t, api.written(), "True Verified")
				assert.Contains(t, r.entry("check passed with a warning")["warning"], "cannot list the node's pods")
				r.end()
			})
		})
	}
}
