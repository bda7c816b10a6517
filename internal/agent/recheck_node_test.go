package agent

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/apitest"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// A node that never had a startup taint, an old one or a control plane, gets no condition: nobody may re-taint it. The rest of the
// verdict is there.
func TestRecheckOfANodeThatWasNeverGated(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"released without a taint": func(node *corev1.Node) { node.Spec.Taints = nil },
		"released from a leftover": func(node *corev1.Node) {
			node.Spec.Taints = nil
			addFailedTaint(node)
		},
		"labelled by hand": func(node *corev1.Node) {
			setReleased(node)
			node.Annotations = nil
		},
		"released before, without a taint": func(node *corev1.Node) {
			setReleased(node)
			node.Annotations[nodepatch.Annotation] = `{"time":"2026-01-02T03:04:05Z","duration":"1s","removed":[],"version":"1.0.0"}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				setOld(api.node)
				api.edit(edit)
				r := startVerification(t, api)
				if api.node.Labels["node-ready/verified"] == "" {
					r.round(nil)
				}
				r.round(nil, nil, nil, nil)
				assert.True(t, r.ready())
				events := len(api.reasons())
				r.round(errBroken, errBroken, errBroken, errBroken)
				assert.False(t, r.ready())
				assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 0`+"\n")
				assert.Equal(t, []string{"NodeRecheckFailed"}, api.reasons()[events:])
				r.round(nil, nil, nil, nil)
				assert.True(t, r.ready())
				assert.Equal(t, []string{"NodeRecheckFailed", "NodeRecovered"}, api.reasons()[events:])
				assert.Empty(t, api.written())
				assert.Empty(t, api.node.Status.Conditions)
			})
		})
	}
}

// The first rounds after a release cannot read the node: what was read before shows no release, which is no reason to verify the
// node again.
func TestRecheckThatCannotReadAfterTheRelease(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		away := api.refuse(getNode, getCached, patchNode, patchStat)
		refuse := api.intercepted()
		api.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
			if request == postEvent {
				away.Store(true)
			}
			return refuse(request, n, w, r)
		})
		setFalse("NetworkFailed")(api.node)
		addFailedTaint(api.node)
		r := startVerification(t, api, "--failure-threshold=4")
		r.round(nil)
		r.round(nil, nil)
		assert.True(t, r.ready())
		assert.Contains(t, r.metrics(), `node_check_failures_total{check="api",node="node1"} 2`+"\n")
		away.Store(false)
		r.round(nil, nil, nil, nil, nil)
		assert.Equal(t, []string{"True Verified"}, api.written(), "nor to prove it once more")
		assert.NotContains(t, r.stderr.String(), "node is no longer verified")
	})
}

// Rounds that are far apart do not find a removed label late: the node is read between them, from the API server's cache.
func TestRecheckLooksAtTheNodeBetweenRounds(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api, "--recheck-interval=1h")
		r.round(nil)
		before := len(api.seen())
		after(30 * time.Minute)
		looks := api.seen()[before:]
		assert.InDelta(t, 6, len(looks), 1.5)
		for _, request := range looks {
			assert.Equal(t, getCached, request)
		}
		api.edit(func(node *corev1.Node) { delete(node.Labels, "node-ready/verified") })
		after(6 * time.Minute)
		assert.Equal(t, []string{"NodeVerified"}, api.reasons())
		assert.Equal(t, "true", api.node.Labels["node-ready/verified"])
	})
}

// The condition is Unknown where no agent was there for long. Both the controller and the agent count a node that has it, whatever the
// record of its last release: the agent writes what it proves.
func TestRecheckOfAnUnknownCondition(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		setUnknown := func(node *corev1.Node) {
			node.Annotations[nodepatch.Annotation] = `{"removed":[]}`
			setCondition(corev1.ConditionUnknown, "NotRechecked")(node)
		}
		setReleased(api.node)
		setUnknown(api.node)
		r := startVerification(t, api)
		after(time.Second)
		assert.True(t, r.ready())
		r.round(nil, nil)
		assert.Empty(t, api.written())
		r.round(nil)
		assert.Equal(t, []string{"True Verified"}, api.written())
		api.edit(setUnknown)
		r.round(nil, nil)
		assert.Equal(t, []string{"True Verified"}, api.written())
		r.round(nil)
		assert.Equal(t, []string{"True Verified", "True Verified"}, api.written())
	})
}

// The API server's cache is behind the release, because another API server has answered that: nothing is verified again.
func TestRecheckWithACacheBehindTheRelease(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		before := api.node.DeepCopy()
		api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			if request == getCached && n <= 2 {
				apitest.Answer(w, http.StatusOK, before)
				return true
			}
			return false
		})
		r := startVerification(t, api)
		r.round(nil) // of the verification
		r.round(nil, nil, nil, nil)
		assert.NotContains(t, r.stderr.String(), "node is no longer verified")
		assert.Equal(t, 3, api.count(getNode), "before the release, and for each of the two")
	})
}

// A label that was removed, or the startup taint that was put back, begins a verification.
func TestRecheckBeginsAVerification(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"label removed": func(node *corev1.Node) { delete(node.Labels, "node-ready/verified") },
		"taint back":    addTaint(corev1.Taint{Key: "node-ready/unverified", Effect: corev1.TaintEffectNoSchedule}),
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				setOld(api.node)
				setFalse("NetworkFailed")(api.node)
				r := startRechecks(t, api)
				r.round(nil)
				api.edit(edit)
				var duringVerification string
				r.answer(func(context.Context) (checks.Report, error) {
					duringVerification = r.metrics()
					assert.False(t, r.ready())
					return checks.Report{}, nil
				})
				r.nextRound()
				assert.NotContains(t, duringVerification, "node_check_recheck_status", "the last round is a verification's")
				assert.Equal(t, untainted, api.taints())
				assert.Equal(t, "true", api.node.Labels["node-ready/verified"])
				assert.Equal(t, []string{"True Verified"}, api.written())
				assert.Equal(t, []string{"NodeVerified"}, api.reasons())
				assert.True(t, r.ready())
				assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 1`+"\n")
			})
		})
	}
}

// While somebody drains the node or takes it away there is no verdict, and what was counted before does not count.
func TestRecheckOfANodeThatGoesAway(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"cordoned":   func(node *corev1.Node) { node.Spec.Unschedulable = true },
		"deleted":    func(node *corev1.Node) { node.DeletionTimestamp = new(metav1.Now()) },
		"disrupted":  addTaint(corev1.Taint{Key: "karpenter.sh/disrupted"}),
		"autoscaler": addTaint(corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler"}),
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				r := startRechecks(t, api)
				r.round(nil, nil, nil)
				before := api.node
				r.round(errBroken, errBroken)
				api.edit(edit)
				r.round(errBroken, errBroken, errBroken, errBroken)
				assert.True(t, r.ready())
				assert.Contains(t, r.metrics(), `node_check_failures_total{check="network",node="node1"} 2`+"\n", "no verdict, no failure")
				api.edit(func(node *corev1.Node) { *node = *before })
				r.round(errBroken, errBroken)
				assert.Equal(t, []string{"True Verified"}, api.written())
				r.round(errBroken)
				assert.Equal(t, []string{"True Verified", "False NetworkFailed"}, api.written())
				api.edit(edit)
				n := len(api.written())
				r.round(nil, nil, nil, nil, nil)
				after(time.Hour)
				assert.Len(t, api.written(), n)
				assert.False(t, r.ready(), "the last verdict stays")
			})
		})
	}
}

// A node that was cordoned when it was last read may have been uncordoned long ago: without a path to the API server nobody knows.
func TestRecheckOfACordonedNodeThatIsCutOff(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		cutOff := api.refuse()
		r := startRechecks(t, api)
		r.round(nil, nil, nil)
		api.edit(func(node *corev1.Node) { node.Spec.Unschedulable = true })
		r.round(nil, errBroken, errBroken, errBroken)
		assert.True(t, r.ready(), "no verdict while it is known to be cordoned")
		cutOff.Store(true)
		r.round(errBroken, errBroken)
		assert.True(t, r.ready())
		r.round(errBroken)
		assert.False(t, r.ready())
	})
}

// The condition of a node that was released just now is written again where that failed, and the release makes it True in any case.
func TestRecheckAfterTheRelease(t *testing.T) {
	for name, lost := range map[string]int{"written by the release": 0, "written by the recheck": 3} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
					return request == patchStat && n <= lost && answerStatus(w, http.StatusServiceUnavailable, "", "not now")
				})
				r := startVerification(t, api)
				r.round(nil)
				after(3 * time.Second) // the release tries three times
				assert.True(t, r.ready())
				assert.Equal(t, []string{"True Verified"}, api.written())
				assert.Equal(t, lost+1, api.count(patchStat))
				assert.Equal(t, untainted, api.taints())
				r.round(nil)
				before := len(api.seen())
				r.end()
				assert.Len(t, api.seen(), before, "the next agent of this node looks for the startup taint")
			})
		})
	}
}

// RECHECK_INTERVAL alone makes the agent stay: it writes the condition with the release, and shuts down without a linger or a request.
func TestRecheckInterval(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p := simulate(t, api, nil, map[string]string{"RECHECK_INTERVAL": "1h"})
		after(time.Second)
		p.entry("node verified")
		p.terminate()
		began := time.Now()
		assert.Equal(t, exitOK, p.wait())
		assert.Zero(t, time.Since(began))
		assert.Equal(t, []string{getNode, patchNode, patchStat, postEvent}, api.seen())
		assert.Equal(t, []string{"True Verified"}, api.written())
	})
}

// With --once there is nothing after the verdict.
func TestOnceDoesNotRecheck(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p := simulate(t, api, nil, map[string]string{"RECHECK_INTERVAL": "10s"}, "--once")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
	})
}
