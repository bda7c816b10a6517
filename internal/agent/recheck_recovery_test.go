package agent

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Whatever becomes of the condition, the failed taint is removed.
func TestRecheckRemovesTheFailedTaintWithoutTheCondition(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		setFalse("NetworkFailed")(api.node)
		addFailedTaint(api.node)
		api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			return request == patchStat && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no right to nodes/status")
		})
		r := startRechecks(t, api)
		r.round(nil, nil)
		assert.Contains(t, api.taints(), "node-ready/failed")
		r.round(nil)
		assert.Equal(t, untainted, api.taints())
		assert.True(t, r.ready())
	})
}

// The agent loses its path to the API server together with its network. The controller says Silent and re-taints the node. Back
// again, the agent gives its own reasons while its rounds fail, and removes the failed taint once they pass.
func TestRecheckOfASilentAgent(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		away := api.refuse()
		r := startRechecks(t, api)
		r.round(nil, nil, nil)
		away.Store(true)
		r.round(errBroken, errBroken, errBroken)
		assert.False(t, r.ready())
		api.edit(setSilent)
		r.during(func() { away.Store(false) }, errBroken)
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
		assert.Empty(t, api.writesSince(before))
	})
}

// The node is re-tainted while something else is to be written: Events, or a condition that is refused. The agent does not remove the
// failed taint before its rounds have proven once more that they pass.
func TestRecheckRemovesNoFailedTaintUnproven(t *testing.T) {
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
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.refuse(test.refused).Store(true)
				r := startRechecks(t, api, "--failure-threshold=4", "--recheck-interval=40s") // each write is less than a minute after a read
				r.round(nil, nil, nil)
				r.round(errBroken, errBroken, errBroken, errBroken)
				r.round(nil, nil, nil)
				n := len(api.written())
				if test.silent {
					api.edit(setSilent)
				} else {
					api.edit(addFailedTaint)
				}
				r.round(test.first)
				assert.Contains(t, api.taints(), "node-ready/failed")
				r.round(errBroken, nil, nil)
				assert.Contains(t, api.taints(), "node-ready/failed")
				r.round(nil)
				if !test.silent {
					after(36 * time.Second) // with the next try of the Events
				}
				assert.Equal(t, untainted, api.taints())
				assert.ElementsMatch(t, test.written, api.written()[n:])
			})
		})
	}
}

// The controller re-taints the node between the read of the last round and the agent's True, or behind that, and is killed: the agent
// removes the failed taint before the next round, which may be an hour away.
func TestRecheckRemovesTheFailedTaintBetweenRounds(t *testing.T) {
	for name, behind := range map[string]bool{"before the True": false, "behind the True": true} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				setFalse("NetworkFailed")(api.node)
				r := startRechecks(t, api, "--recheck-interval=1h")
				r.round(errBroken, nil, nil)
				if behind {
					r.round(nil)
					assert.Contains(t, api.written(), "True Verified")
					api.edit(addFailedTaint)
					after(6 * time.Minute)
				} else {
					r.during(func() { api.edit(addFailedTaint) }, nil)
				}
				assert.Contains(t, api.seen(), patchNode)
				assert.Equal(t, untainted, api.taints())
				assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, slices.Compact(api.written()))
			})
		})
	}
}

// Rounds are an hour apart. Between two of them the controller says Silent and re-taints the node: rounds that were before that do not
// remove the failed taint, whether the agent looks at the node or has something to write.
func TestRecheckRemovesNoFailedTaintBetweenRounds(t *testing.T) {
	t.Run("looks", func(t *testing.T) {
		simulated(t, func(t *testing.T, api *fakeAPI) {
			r := startRechecks(t, api, "--recheck-interval=1h")
			r.round(nil, nil, nil)
			require.Equal(t, []string{"True Verified"}, api.written())
			api.edit(setSilent)
			before := len(api.seen())
			after(40 * time.Minute)
			assert.Greater(t, len(api.seen()), before+5)
			assert.Contains(t, api.taints(), "node-ready/failed")
			assert.Equal(t, []string{"True Verified"}, api.written())
		})
	})
	t.Run("writes", func(t *testing.T) {
		simulated(t, func(t *testing.T, api *fakeAPI) {
			refused := api.refuse(postEvent)
			refused.Store(true)
			refuse := api.intercepted()
			var thorough atomic.Bool
			api.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
				if request == getCached && r.Header.Get("X-Kube-Node-Ready-Padding") != "" {
					thorough.Store(true)
				}
				return refuse(request, n, w, r)
			})
			r := startRechecks(t, api, "--recheck-interval=1h")
			r.round(errBroken, errBroken, errBroken, nil, nil, nil)
			written := len(api.written())
			api.edit(setSilent)
			events := api.count(postEvent)
			after(90 * time.Second)
			assert.Greater(t, api.count(postEvent), events, "still to be sent")
			refused.Store(false)
			after(40 * time.Minute)
			assert.Equal(t, []string{"NodeRecheckFailed", "NodeRecovered"}, api.reasons())
			assert.Contains(t, api.taints(), "node-ready/failed")
			assert.Len(t, api.written(), written)
			thorough.Store(false)
			r.round(nil)
			assert.True(t, thorough.Load(), "the next round sends large packets")
			r.round(nil)
			assert.Contains(t, api.taints(), "node-ready/failed")
			r.round(nil)
			assert.Equal(t, untainted, api.taints())
			assert.Equal(t, []string{"True Verified"}, api.written()[written:])
		})
	})
}

// The agent starts on a verified node whose condition is False: what a former container, or the controller, has found holds until
// RECOVERY_THRESHOLD rounds pass. The failed taint begins no verification.
func TestRecheckStartsOnAFailedNode(t *testing.T) {
	for _, reason := range []string{"NetworkFailed", "Silent"} {
		t.Run(reason, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				setFalse(reason)(api.node)
				addFailedTaint(api.node)
				r := startRechecks(t, api)
				after(time.Second)
				assert.False(t, r.ready())
				r.round(errBroken)
				assert.Equal(t, []string{"False NetworkFailed"}, api.written(), "its own reason, at once")
				r.round(nil, nil)
				assert.Contains(t, api.taints(), "node-ready/failed")
				r.round(nil)
				assert.Equal(t, untainted, api.taints())
				assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
				assert.Equal(t, record, api.node.Annotations[nodepatch.Annotation], "no verification")
			})
		})
	}
}

// A failed taint on a node that passes is a leftover: the agent removes it after RECOVERY_THRESHOLD rounds, whatever the condition.
func TestRecheckRemovesALeftover(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api)
		r.round(nil, nil, nil, nil)
		api.edit(addFailedTaint)
		r.round(nil)
		assert.Equal(t, untainted, api.taints())
		assert.Equal(t, []string{"True Verified"}, api.written())
	})
}

// The controller finds the agent silent while its rounds pass: the agent proves once more that they do.
func TestRecheckAfterTheControllersVerdict(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api)
		r.round(nil, nil, nil, nil)
		api.edit(setSilent)
		r.round(nil, nil)
		assert.Contains(t, api.taints(), "node-ready/failed", "not in fewer rounds than RECOVERY_THRESHOLD")
		assert.Equal(t, []string{"True Verified"}, api.written())
		r.round(nil)
		assert.Equal(t, untainted, api.taints())
		assert.Equal(t, []string{"True Verified", "True Verified"}, api.written())
		assert.True(t, r.ready())
		r.round(nil, nil, nil, nil)
		assert.Len(t, api.written(), 2)
	})
}

// The first read of a restarted agent fails, on a node that is verified and re-tainted: one round that passes does not remove the
// failed taint.
func TestRecheckAfterAFailedFirstRead(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		setFalse("NetworkFailed")(api.node)
		addFailedTaint(api.node)
		api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			return request == getNode && n == 1 && answerStatus(w, http.StatusServiceUnavailable, "", "not now")
		})
		r := startRechecks(t, api)
		r.round(nil) // of the verification
		assert.NotContains(t, api.seen(), patchNode)
		assert.False(t, r.ready())
		r.round(nil, nil)
		assert.Contains(t, api.taints(), "node-ready/failed")
		r.round(nil)
		assert.Equal(t, untainted, api.taints())
		assert.Equal(t, record, api.node.Annotations[nodepatch.Annotation])
	})
}

// A failed taint without the startup taint whose value is the name of a release is the controller's: a verification does not remove
// it before it has passed. One of ON_TIMEOUT=taint, of this agent or of the one before a restart, has no use without the startup taint.
func TestLoneFailedTaintInAVerification(t *testing.T) {
	for value, stays := range map[string]bool{
		"kube-node-ready": true, "": true, "network": false, "dns": false, "taints": false, "unverified": false,
	} {
		t.Run(value, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				setOld(api.node)
				api.node.Spec.Taints = []corev1.Taint{{Key: "node-ready/failed", Value: value, Effect: corev1.TaintEffectNoSchedule}}
				r := startVerification(t, api, "--max-retries=0")
				r.round(errBroken)
				assert.Equal(t, stays, len(api.taints()) == 1)
				r.round(nil)
				assert.Empty(t, api.taints())
			})
		})
	}
}

// No release has a name that is the value of an agent's failed taint: its taints would be taken for those of an agent.
func TestReleaseNamedAsAMarker(t *testing.T) {
	parse := func(name string) error {
		_, err := config.ParseController([]string{"--agent-name=" + name}, lookup(nil), io.Discard)
		return err
	}
	require.NoError(t, parse("network-checks"))
	require.ErrorContains(t, parse("Network"), "lower-case letters")
	for _, value := range append(checks.Names(), checks.PeersName, foreignTaints, notChecked) {
		require.ErrorContains(t, parse(value), `--agent-name "`+value+`": must not be a value that an agent gives the failed taint`)
	}
}

// A node may have failed because of large packets alone: its next agent does not remove the failed taint without one that passes, and
// neither does this agent when the controller has re-tainted the node.
func TestRecheckRemovesTheFailedTaintAfterLargePackets(t *testing.T) {
	for name, restarted := range map[string]bool{"the next agent": true, "the same agent": false} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				var lost atomic.Bool
				api.intercept(func(request string, _ int, w http.ResponseWriter, r *http.Request) bool {
					return lost.Load() && request == getCached && r.Header.Get("X-Kube-Node-Ready-Padding") != "" &&
						answerStatus(w, http.StatusServiceUnavailable, "", "too large")
				})
				if restarted {
					setSilent(api.node)
					lost.Store(true)
				}
				r := startRechecks(t, api)
				if !restarted {
					r.round(nil, nil, nil)
					api.edit(setSilent)
					lost.Store(true)
				}
				r.round(nil, nil, nil, nil)
				assert.Contains(t, api.taints(), "node-ready/failed")
				lost.Store(false)
				r.round(nil, nil, nil)
				assert.Equal(t, untainted, api.taints())
			})
		})
	}
}

// The first round of a node that was started again since its release sends large packets. The node stays verified.
func TestRecheckAfterAReboot(t *testing.T) {
	for name, test := range map[string]struct {
		record   string
		thorough bool
	}{
		"rebooted":                           {strings.Replace(record, `"version"`, `"bootID":"old","version"`, 1), true},
		"not rebooted":                       {strings.Replace(record, `"version"`, `"bootID":"new","version"`, 1), false},
		"released by a version without boot": {record, false},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				setCondition(corev1.ConditionTrue, "Verified")(api.node)
				setReleased(api.node)
				api.node.Annotations[nodepatch.Annotation], api.node.Status.NodeInfo.BootID = test.record, "new"
				large := false
				api.intercept(func(request string, _ int, _ http.ResponseWriter, r *http.Request) bool {
					large = large || request == getCached && r.Header.Get("X-Kube-Node-Ready-Padding") != ""
					return false
				})
				r := startVerification(t, api)
				r.round(nil)
				if test.thorough { // otherwise it may all the same: the first such round comes at a random time
					assert.True(t, large, "the first round sends large packets")
				}
				r.round(nil, nil)
				assert.Empty(t, api.written(), "it goes on saying that it is verified")
				assert.Equal(t, test.record, api.node.Annotations[nodepatch.Annotation])
				r.end()
			})
		})
	}
}
