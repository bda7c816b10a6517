package agent

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node that never had a startup taint, an old one or a control plane, gets no condition: nobody is to close it. The rest of the
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
			node.Annotations[annotation] = `{"time":"2026-01-02T03:04:05Z","duration":"1s","removed":[],"version":"1.0.0"}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			r := prepareRechecks(t, api)
			r.agent.refresh, r.agent.reportInterval = time.Millisecond, time.Millisecond
			api.edit(edit)
			r.start()
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
	}
}

// The first round after a release has not read the node: that the release is not in what was read before is no reason to verify
// the node again.
func TestRecheckThatCannotReadAfterTheRelease(t *testing.T) {
	api := newFakeAPI(t)
	var away atomic.Bool
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if request == postEvent {
			away.Store(true)
		}
		return request != postEvent && away.Load() && answerStatus(w, http.StatusServiceUnavailable, "", "away")
	}
	setFalse("NetworkFailed")(api.node)
	addFailedTaint(api.node)
	r := prepareRechecks(t, api, "--failure-threshold=4")
	r.start()
	r.round(nil)
	r.round(nil, nil)
	assert.True(t, r.ready())
	away.Store(false)
	r.round(nil, nil, nil, nil, nil)
	assert.Equal(t, []string{"True Verified"}, api.written(), "nor to prove it once more")
	log, _ := r.log.read()
	assert.NotContains(t, log, "node is no longer verified")
}

// Rounds that are far apart do not find a removed label late: the node is read between them, from the API server's cache.
func TestRecheckLooksAtTheNodeBetweenRounds(t *testing.T) {
	api := newFakeAPI(t)
	r := startRechecks(t, api)
	r.agent.cfg.RecheckInterval, r.agent.look = time.Hour, time.Millisecond
	before := len(api.seen())
	r.outcomes <- nil
	looked := func() bool { return len(api.seen()) > before+5 }
	require.Eventually(t, looked, time.Minute, time.Millisecond)
	for _, request := range slices.DeleteFunc(api.seen()[before:], func(request string) bool { return request == getSlices }) {
		assert.Equal(t, getCached, request)
	}
	api.edit(func(node *corev1.Node) { delete(node.Labels, "node-ready/verified") })
	<-r.begun // of a verification
	r.outcomes <- nil
	labelled := func() bool { return slices.Contains(api.reasons(), "NodeVerified") }
	require.Eventually(t, labelled, time.Minute, time.Millisecond)
}

// The condition is Unknown where no agent was there for long. Both the controller and the agent count a node that has it, whatever the
// record of its last release: the agent writes what it proves.
func TestRecheckOfAnUnknownCondition(t *testing.T) {
	setUnknown := func(node *corev1.Node) {
		node.Annotations[annotation] = `{"removed":[]}`
		node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionUnknown, Reason: "NotRechecked"}}
	}
	api := newFakeAPI(t)
	r := prepareRechecks(t, api)
	api.edit(setReleased)
	api.edit(setUnknown)
	r.start()
	assert.True(t, r.ready())
	r.round(nil, nil)
	assert.Empty(t, api.written())
	r.round(nil)
	assert.Equal(t, []string{"True Verified"}, api.written())
	api.edit(setUnknown)
	r.round(nil) // has read the node before
	r.round(nil, nil, nil)
	assert.Equal(t, []string{"True Verified", "True Verified"}, api.written())
}

// The API server's cache is behind the release, because another API server has answered that: nothing is verified again.
func TestRecheckWithACacheBehindTheRelease(t *testing.T) {
	api := newFakeAPI(t)
	before := api.node.DeepCopy()
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		if request == getCached && n <= 2 {
			answer(w, http.StatusOK, before)
			return true
		}
		return false
	}
	r := prepareRechecks(t, api)
	r.start()
	r.round(nil) // of the verification
	r.round(nil, nil, nil, nil)
	log, _ := r.log.read()
	assert.NotContains(t, log, "node is no longer verified")
	reads := slices.DeleteFunc(api.seen(), func(request string) bool { return request != getNode })
	assert.Len(t, reads, 3, "before the release, and for each of the two")
}

// A label that was removed, or the startup taint that was put back, begins a verification.
func TestRecheckBeginsAVerification(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"label removed": func(node *corev1.Node) { delete(node.Labels, "node-ready/verified") },
		"taint back": func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "node-ready/unverified", Effect: corev1.TaintEffectNoSchedule})
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			setFalse("NetworkFailed")(api.node)
			r := startRechecks(t, api)
			api.edit(edit)
			r.round(nil)
			r.round(nil)
			assert.NotContains(t, r.metrics(), "node_check_recheck_status", "a verification")
			assert.False(t, r.ready())
			r.round(nil)
			assert.Equal(t, untainted, api.taints())
			assert.Equal(t, "true", api.node.Labels["node-ready/verified"])
			assert.Equal(t, []string{"True Verified"}, api.written())
			assert.Equal(t, []string{"NodeVerified"}, api.reasons())
			assert.True(t, r.ready())
			assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 1`+"\n")
		})
	}
}

// While somebody drains the node or takes it away there is no verdict, and what was counted before does not count.
func TestRecheckOfANodeThatGoesAway(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"cordoned": func(node *corev1.Node) { node.Spec.Unschedulable = true },
		"deleted":  func(node *corev1.Node) { node.DeletionTimestamp = new(metav1.Now()) },
		"disrupted": func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "karpenter.sh/disrupted"})
		},
		"autoscaler": func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			r := startRechecks(t, api)
			r.round(nil, nil, nil)
			before := api.node
			r.round(errBroken, errBroken)
			api.edit(edit)
			r.round(nil) // has read the node before the change
			r.round(errBroken, errBroken, errBroken, errBroken)
			assert.True(t, r.ready())
			api.edit(func(node *corev1.Node) { *node = *before })
			r.round(errBroken)
			r.round(errBroken, errBroken)
			assert.Equal(t, []string{"True Verified"}, api.written())
			r.round(errBroken)
			assert.Equal(t, []string{"True Verified", "False NetworkFailed"}, api.written())
			api.edit(edit)
			r.round(errBroken)
			r.agent.refresh = time.Millisecond
			n := len(api.written())
			r.round(nil, nil, nil, nil, nil)
			assert.Len(t, api.written(), n)
			assert.False(t, r.ready(), "the last verdict stays")
		})
	}
}

// The condition of a node that was released just now is written again where that failed, and the release makes it True in any case.
func TestRecheckAfterTheRelease(t *testing.T) {
	for name, lost := range map[string]int{"written by the release": 0, "written by the recheck": 3} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
				return request == patchStat && n <= lost && answerStatus(w, http.StatusServiceUnavailable, "", "not now")
			}
			r := prepareRechecks(t, api)
			r.agent.reportInterval = time.Millisecond
			r.start()
			r.round(nil)
			assert.True(t, r.ready())
			assert.Equal(t, []string{"True Verified"}, api.written())
			assert.Equal(t, untainted, api.taints())
			r.round(nil)
			before := len(api.seen())
			r.end()
			assert.Len(t, api.seen(), before, "the next agent of this node looks for the startup taint")
		})
	}
}

// The settings alone make the agent stay: it writes the condition with the release, and is shut down without a linger or a request.
func TestRecheckInterval(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "RECHECK_INTERVAL": "1h"})
	p.logged("node verified")
	require.Eventually(t, func() bool { return len(api.reasons()) == 1 }, time.Minute, time.Millisecond)
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, []string{getNode, patchNode, patchStat, postEvent}, api.seen())
	assert.Equal(t, []string{"True Verified"}, api.written())
}

// With --once there is nothing after the verdict.
func TestOnceDoesNotRecheck(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "RECHECK_INTERVAL": "10s"}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
}

// A node that was cordoned when it was last read may have been open for long: without a path to the API server nobody knows.
func TestCordonedThenCutOff(t *testing.T) {
	api := newFakeAPI(t)
	cut := false
	api.before = func(_ string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if cut {
			answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "no")
		}
		return cut
	}
	r := startRechecks(t, api)
	r.round(nil, nil, nil)
	api.edit(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	r.round(nil, nil, errBroken, errBroken, errBroken)
	assert.True(t, r.ready(), "no verdict while it is known to be cordoned")
	cut = true
	r.round(errBroken, errBroken, errBroken, errBroken)
	assert.False(t, r.ready())
}
