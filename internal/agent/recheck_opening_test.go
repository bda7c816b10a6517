package agent

import (
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
)

// Whatever becomes of the condition, the node is opened.
func TestRecheckOpensWithoutCondition(t *testing.T) {
	api := newFakeAPI(t)
	setFalse("NetworkFailed")(api.node)
	addFailedTaint(api.node)
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		return request == patchStat && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no right to nodes/status")
	}
	r := startRechecks(t, api)
	r.round(nil, nil)
	assert.Contains(t, api.taints(), "node-ready/failed")
	r.round(nil)
	assert.Equal(t, untainted, api.taints())
	assert.True(t, r.ready())
}

// A node that is closed because DNS pods on two other nodes did not answer stays closed when they are on one only and that does not answer
// either, after a restart too.
func TestRecheckOfFewerDNSPodsOpensNothing(t *testing.T) {
	for name, restarted := range map[string]bool{"the same agent": false, "the next agent": true} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			r := prepareRechecks(t, api)
			answers := api.slices
			dead := func(nodes ...string) []discoveryv1.EndpointSlice {
				slice := *answers[0].DeepCopy()
				slice.Endpoints = nil
				for _, node := range nodes {
					slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"127.0.0.2"}, NodeName: &node})
				}
				return []discoveryv1.EndpointSlice{slice}
			}
			setSlices := func(list []discoveryv1.EndpointSlice) {
				api.mu.Lock()
				defer api.mu.Unlock()
				api.slices = list
			}
			api.edit(setReleased)
			if restarted {
				setSlices(dead("other1"))
				api.edit(setFalse("DNSFailed,ServiceFailed"))
				r.start()
			} else {
				setSlices(dead("other0", "other1"))
				r.start()
				r.round(nil, nil, nil)
				setSlices(dead("other1"))
			}
			api.edit(addFailedTaint)
			r.round(nil, nil, nil, nil)
			assert.Equal(t, []string{"False ServiceFailed"}, api.written())
			assert.Contains(t, api.taints(), "node-ready/failed")
			setSlices(answers)
			r.round(nil, nil, nil)
			assert.Equal(t, untainted, api.taints())
			setSlices(dead("other1"))
			r.round(nil, nil, nil, nil)
			assert.Equal(t, []string{"False ServiceFailed", "True Verified"}, api.written(), "to begin with, one proves nothing")
		})
	}
}

// The agent loses its path to the API server together with its network. The controller says Silent and closes the node. Back
// again, the agent gives its own reasons while its rounds fail, and opens the node once they pass.
func TestRecheckOfASilentAgent(t *testing.T) {
	api := newFakeAPI(t)
	var away atomic.Bool
	api.before = func(_ string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		return away.Load() && answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "away")
	}
	r := startRechecks(t, api)
	r.agent.reportInterval = time.Millisecond
	r.round(nil, nil, nil)
	away.Store(true)
	r.round(errBroken, errBroken, errBroken)
	assert.False(t, r.ready())
	api.edit(setFalse("Silent"))
	api.edit(addFailedTaint)
	away.Store(false)
	r.round(errBroken) // has not read the node
	r.round(errBroken)
	assert.Equal(t, []string{"True Verified", "False APIFailed,NetworkFailed"}, api.written())
	written := len(api.written())
	r.round(nil, nil)
	assert.Contains(t, api.taints(), "node-ready/failed")
	r.round(nil)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{"True Verified"}, api.written()[written:])
	assert.True(t, r.ready())
	before := len(api.seen())
	r.round(nil, nil, nil, nil)
	for _, request := range api.seen()[before:] {
		assert.False(t, isWrite(request), request)
	}
}

// The node is closed while something else is to be written: Events, or a condition that is refused. The agent does not open it before
// its rounds have proven once more that they pass.
func TestRecheckOpensNothingUnproven(t *testing.T) {
	for name, test := range map[string]struct {
		refused string
		silent  bool // says the controller
		first   error
		written []string
	}{
		"silent, Events refused":    {postEvent, true, nil, []string{"True Verified"}},
		"silent, condition refused": {patchStat, true, nil, nil},
		"a leftover":                {postEvent, false, errBroken, nil},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
				return request == test.refused && answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "no")
			}
			r := startRechecks(t, api, "--failure-threshold=4")
			r.agent.reportInterval = time.Millisecond
			r.round(nil, nil, nil)
			r.round(errBroken, errBroken, errBroken, errBroken)
			r.round(nil, nil, nil)
			n := len(api.written())
			if test.silent {
				api.edit(setFalse("Silent"))
			}
			api.edit(addFailedTaint)
			r.round(test.first) // has read the node before
			r.round(test.first)
			assert.Contains(t, api.taints(), "node-ready/failed")
			r.round(errBroken, nil, nil)
			assert.Contains(t, api.taints(), "node-ready/failed")
			r.round(nil)
			assert.Equal(t, untainted, api.taints())
			assert.ElementsMatch(t, test.written, api.written()[n:])
		})
	}
}

// The controller closes the node between the read of the last round and the agent's True, or behind that, and is killed: the agent opens
// it before the next round, which may be an hour away.
func TestRecheckOpensBetweenRounds(t *testing.T) {
	for name, behind := range map[string]bool{"before the True": false, "behind the True": true} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			setFalse("NetworkFailed")(api.node)
			r := startRechecks(t, api)
			r.round(errBroken, nil, nil)
			r.agent.cfg.RecheckInterval, r.agent.look = time.Hour, time.Hour
			if behind {
				r.agent.look = time.Millisecond
			} else {
				api.edit(addFailedTaint)
			}
			r.outcomes <- nil
			if behind {
				require.Eventually(t, func() bool { return slices.Contains(api.written(), "True Verified") }, time.Minute, time.Millisecond)
				api.edit(addFailedTaint)
			}
			require.Eventually(t, func() bool { return slices.Contains(api.seen(), patchNode) }, 20*time.Second, time.Millisecond)
			require.Eventually(t, func() bool { return slices.Equal(untainted, api.taints()) }, 20*time.Second, time.Millisecond)
			assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
		})
	}
}

// Rounds are an hour apart. Between two of them the controller says Silent and closes the node: rounds that were before that do not open it,
// whether the agent looks at the node or has something to write.
func TestRecheckOpensNothingBetweenRounds(t *testing.T) {
	closing := func(node *corev1.Node) {
		setFalse("Silent")(node)
		addFailedTaint(node)
	}
	t.Run("looks", func(t *testing.T) {
		api := newFakeAPI(t)
		r := startRechecks(t, api)
		r.round(nil, nil, nil)
		require.Equal(t, []string{"True Verified"}, api.written())
		r.agent.cfg.RecheckInterval, r.agent.look = time.Hour, time.Millisecond
		look := func() {
			before := len(api.seen())
			require.Eventually(t, func() bool { return len(api.seen()) > before+5 }, time.Minute, time.Millisecond)
		}
		r.outcomes <- nil
		look()
		api.edit(closing)
		look()
		assert.Contains(t, api.taints(), "node-ready/failed")
		assert.Equal(t, []string{"True Verified"}, api.written())
	})
	t.Run("writes", func(t *testing.T) {
		api := newFakeAPI(t)
		setReleased(api.node)
		api.node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionTrue, Reason: "Verified"}}
		a, _ := inCluster(t, api)
		v := a.newVerification()
		require.True(t, v.readFirst(t.Context()))
		r := v.newRecheck()
		prove := func() {
			for range a.cfg.RecoveryThreshold {
				r.conclude(nil, time.Now())
			}
			r.readAt = time.Now().Add(-time.Hour)
			r.write(t.Context())
		}
		prove()
		api.edit(closing)
		r.readAt = time.Now().Add(-time.Hour)
		r.write(t.Context())
		assert.Contains(t, api.taints(), "node-ready/failed")
		assert.Empty(t, api.written())
		assert.True(t, r.due.IsZero(), "nothing to write before the next round")
		assert.True(t, r.thoroughAt.IsZero(), "which sends large packets")
		prove()
		assert.Equal(t, untainted, api.taints())
		assert.Equal(t, []string{"True Verified"}, api.written())
	})
}

// The agent starts on a verified node whose condition is False: what a former container, or the controller, has found holds until
// RECOVERY_THRESHOLD rounds pass. The failed taint begins no verification.
func TestRecheckStartsOnAFailedNode(t *testing.T) {
	for _, reason := range []string{"NetworkFailed", "Silent"} {
		t.Run(reason, func(t *testing.T) {
			api := newFakeAPI(t)
			setFalse(reason)(api.node)
			addFailedTaint(api.node)
			r := startRechecks(t, api)
			assert.False(t, r.ready())
			r.round(errBroken)
			assert.Equal(t, []string{"False NetworkFailed"}, api.written(), "its own reason, at once")
			r.round(nil, nil)
			assert.Contains(t, api.taints(), "node-ready/failed")
			r.round(nil)
			assert.Equal(t, untainted, api.taints())
			assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
			assert.Equal(t, record, api.node.Annotations[annotation], "no verification")
		})
	}
}

// A failed taint on a node that passes is a leftover: the agent removes it after RECOVERY_THRESHOLD rounds, whatever the condition.
func TestRecheckRemovesALeftover(t *testing.T) {
	api := newFakeAPI(t)
	r := startRechecks(t, api)
	r.round(nil, nil, nil, nil)
	api.edit(addFailedTaint)
	r.round(nil, nil)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{"True Verified"}, api.written())
}

// The controller finds the agent silent while its rounds pass: the agent proves once more that they do.
func TestRecheckAnswersTheController(t *testing.T) {
	api := newFakeAPI(t)
	r := startRechecks(t, api)
	r.round(nil, nil, nil, nil)
	api.edit(setFalse("Silent"))
	api.edit(addFailedTaint)
	r.round(nil) // has read the node before
	r.round(nil, nil)
	assert.Contains(t, api.taints(), "node-ready/failed", "not in fewer rounds than RECOVERY_THRESHOLD")
	assert.Equal(t, []string{"True Verified"}, api.written())
	r.round(nil)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{"True Verified", "True Verified"}, api.written())
	assert.True(t, r.ready())
	r.round(nil, nil, nil, nil)
	assert.Len(t, api.written(), 2)
}

// The first read of a restarted agent fails, on a node that is verified and closed: one round that passes does not open it.
func TestRecheckAfterAFailedFirstRead(t *testing.T) {
	api := newFakeAPI(t)
	setFalse("NetworkFailed")(api.node)
	addFailedTaint(api.node)
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		return request == getNode && n == 1 && answerStatus(w, http.StatusServiceUnavailable, "", "not now")
	}
	r := startRechecks(t, api)
	r.round(nil) // of the verification
	assert.NotContains(t, api.seen(), patchNode)
	assert.False(t, r.ready())
	r.round(nil, nil)
	assert.Contains(t, api.taints(), "node-ready/failed")
	r.round(nil)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, record, api.node.Annotations[annotation])
}

// A failed taint without the startup taint whose value is the name of a release is the controller's: a verification does not remove
// it before it has passed. One of ON_TIMEOUT=taint, of this agent or of the one before a restart, closes nothing any more.
func TestLoneFailedTaintInAVerification(t *testing.T) {
	for value, stays := range map[string]bool{
		"kube-node-ready": true, "": true, "network": false, "dns": false, "taints": false, "unverified": false,
	} {
		t.Run(value, func(t *testing.T) {
			api := newFakeAPI(t)
			api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			api.node.Spec.Taints = []corev1.Taint{{Key: "node-ready/failed", Value: value, Effect: corev1.TaintEffectNoSchedule}}
			r := prepareRechecks(t, api, "--max-retries=0")
			r.start()
			r.round(errBroken)
			assert.Equal(t, stays, len(api.taints()) == 1)
			r.round(nil)
			assert.Empty(t, api.taints())
		})
	}
}

// No release has a name that is the value of an agent's failed taint: its taints would be taken for those of an agent.
func TestReleaseNamedAsAMarker(t *testing.T) {
	parse := func(name string) error {
		_, err := config.ParseController([]string{"--agent-name=" + name}, func(string) (string, bool) { return "", false }, io.Discard)
		return err
	}
	require.NoError(t, parse("network-checks"))
	require.ErrorContains(t, parse("Network"), "lower-case letters")
	for _, value := range append(checks.Names(), checks.PeersName, foreignTaints, notChecked) {
		require.ErrorContains(t, parse(value), `--agent-name "`+value+`": must not be a value that an agent gives the failed taint`)
	}
}

// A node may have failed because of large packets alone: its next agent does not open it without one, and neither does this agent
// when the controller has closed it.
func TestRecheckOpensAfterLargePackets(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		api := newFakeAPI(t)
		var lost atomic.Bool
		api.before = func(request string, _ int, w http.ResponseWriter, r *http.Request) bool {
			return lost.Load() && request == getCached && r.Header.Get("X-Kube-Node-Ready-Padding") != "" &&
				answerStatus(w, http.StatusServiceUnavailable, "", "too large")
		}
		closing := func(node *corev1.Node) {
			setFalse("Silent")(node)
			addFailedTaint(node)
		}
		if restarted {
			closing(api.node)
			lost.Store(true)
		}
		r := startRechecks(t, api)
		if !restarted {
			r.round(nil, nil, nil)
			api.edit(closing)
			lost.Store(true)
			r.round(nil) // has read the node before
		}
		r.round(nil, nil, nil, nil)
		assert.Contains(t, api.taints(), "node-ready/failed")
		lost.Store(false)
		r.round(nil, nil, nil, nil)
		assert.Equal(t, untainted, api.taints())
	}
}
