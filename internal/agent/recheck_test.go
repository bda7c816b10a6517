package agent

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/metrics"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// FAILURE_THRESHOLD failed rounds end the readiness and write the condition; RECOVERY_THRESHOLD passed ones take both back, and
// remove the controller's failed taint in the same round.
func TestRecheckFailsAndRecovers(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api, "--failure-threshold=2", "--recovery-threshold=3")
		r.round(nil, nil, nil)
		assert.LessOrEqual(t, len(r.entries()), 3, "a round that passes is not logged: %s", r.stderr)
		r.round(errBroken)
		assert.True(t, r.ready())
		r.round(errBroken)
		assert.False(t, r.ready())
		assert.Contains(t, r.metrics(), `node_check_status{node="node1"} 0`+"\n")
		assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 0`+"\n")
		assert.Equal(t, []string{"True Verified", "False NetworkFailed"}, api.written())
		assert.Equal(t, []string{"NodeRecheckFailed"}, api.reasons())
		message := "rechecks fail: network: pods cannot reach one another"
		assert.Equal(t, message, api.conditions[1].Message)
		assert.Equal(t, message, api.events[0].Message)
		assert.Equal(t, corev1.EventTypeWarning, api.events[0].Type)

		r.round(errBroken, errBroken)
		assert.Len(t, api.written(), 2, "not yet to be refreshed")
		api.edit(addFailedTaint)
		r.round(nil, nil)
		assert.False(t, r.ready())
		assert.Contains(t, api.taints(), "node-ready/failed", "not after fewer rounds than RECOVERY_THRESHOLD")
		before := len(api.seen())
		r.round(nil)
		assert.True(t, r.ready())
		assert.Equal(t, untainted, api.taints())
		assert.Equal(t, []string{"True Verified", "False NetworkFailed", "True Verified"}, api.written())
		assert.Equal(t, []string{"NodeRecheckFailed", "NodeRecovered"}, api.reasons())
		writes := slices.DeleteFunc(api.seen()[before:], func(request string) bool { return isRead(request) || request == postEvent })
		assert.Equal(t, []string{patchStat, patchNode}, writes, "True first: the controller re-taints on False")
		assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 1`+"\n")
	})
}

// A warning that stays is logged once an hour, whatever it says in brackets: the times of two clocks, a request's number.
func TestRecheckWarnsOnce(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startVerification(t, api)
		r.answer(func(context.Context) (checks.Report, error) {
			return checks.Report{Warnings: []string{"192.0.2.1 does not answer (at " + time.Now().String() + ")"}}, nil
		})
		warnings := func() int { return strings.Count(r.stderr.String(), "192.0.2.1 does not answer") }
		after(50 * time.Minute)
		assert.Equal(t, 2, warnings(), "by the verification and by the rechecks: %s", r.stderr)
		after(time.Hour)
		assert.Equal(t, 3, warnings())
	})
}

// connected are rechecks with connections: the api check and the service check are real. A test makes the rounds, and no time passes
// between them.
type connected struct {
	*rechecks
	log     *output
	outcome error // of the network check
}

func startConnected(t *testing.T, api *fakeAPI) *connected {
	cfg, e := inClusterSettings(t, api, "--check-timeout=1m")
	cfg.Once, cfg.RecheckInterval = false, time.Minute
	c := &connected{log: newOutput()}
	a := New(cfg, e, metrics.New("node1", checks.Names(), "dev", ""), newLog(cfg, c.log), "dev")
	list := a.Checks
	a.Checks = func(api checks.API, o checklist.Options) []checks.Check {
		all := list(api, o)[1:] // api, network, service
		all[1] = fakeCheck{checks.NetworkName, func(context.Context) (checks.Report, error) { return checks.Report{}, c.outcome }}
		return all
	}
	setReleased(api.node)
	require.True(t, a.newVerifier().readFirst(t.Context()))
	c.rechecks = a.newRechecks(alreadyVerified)
	return c
}

// round makes one round for each outcome of the network check, and writes what it has found.
func (c *connected) round(t *testing.T, outcomes ...error) {
	for _, c.outcome = range outcomes {
		c.makeRound(t.Context())
		if step, at := c.state.Next(time.Now()); step == recheck.Write && !at.After(time.Now()) {
			c.write(t.Context())
		}
	}
}

// A round is a read of the node and a list of the DNS pods, both from the API server's cache. The requests of all rounds use one
// connection: no TLS handshake with each node and round.
func TestRecheckKeepsItsConnection(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.slices = []discoveryv1.EndpointSlice{dnsSlice(listen(t))}
	connection, changes := "", 0
	api.intercept(func(request string, _ int, _ http.ResponseWriter, r *http.Request) bool {
		if request == getCached && r.RemoteAddr != connection {
			connection = r.RemoteAddr
			changes++
		}
		return false
	})
	c := startConnected(t, api)
	c.round(t, nil, nil, nil)
	before := len(api.seen())
	c.round(t, nil, nil, nil, nil)
	assert.Equal(t, 1, changes)
	assert.Equal(t, []string{getCached, getSlices, getCached, getSlices, getCached, getSlices, getCached, getSlices}, api.seen()[before:])
	c.round(t, errBroken, nil)
	assert.Equal(t, 2, changes, "after a failure it makes a new connection")
}

// A node that never had a startup taint, an old one or a control plane, gets no condition: nobody may re-taint it. The rest of the
// verdict is there.
func TestRecheckOfANodeThatWasNeverGated(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"released from a leftover": func(node *corev1.Node) {
			node.Spec.Taints = nil
			addFailedTaint(node)
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

// A condition that another client removes, such as one that writes the whole list, is written again.
func TestRecheckOfARemovedCondition(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(setCondition(corev1.ConditionTrue, "Verified"))
		r := startRechecks(t, api)
		r.round(nil, nil, nil)
		api.edit(func(node *corev1.Node) { node.Status.Conditions = nil })
		r.round(nil, nil)
		assert.Equal(t, []string{"True Verified"}, api.written())
		r.end()
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

// No release has a name that is the value of an agent's failed taint: its taints would count as an agent's.
func TestReleaseNamedAsAMarker(t *testing.T) {
	parse := func(name string) error {
		_, err := config.ParseController([]string{"--agent-name=" + name}, lookup(nil), io.Discard)
		return err
	}
	require.NoError(t, parse("network-checks"))
	require.ErrorContains(t, parse("Network"), "lower-case letters")
	for _, value := range append(checks.Names(), checks.PeersName, condition.ForeignTaints, verdict.NotChecked) {
		require.ErrorContains(t, parse(value), `--agent-name "`+value+`": must not be a value that an agent gives the failed taint`)
	}
}

// The first round of a node that was started again since its release sends large packets. The node stays verified.
func TestRecheckAfterAReboot(t *testing.T) {
	for name, test := range map[string]struct {
		record   string
		thorough bool
	}{
		"rebooted":                           {strings.Replace(releaseRecord, `"version"`, `"bootID":"old","version"`, 1), true},
		"not rebooted":                       {strings.Replace(releaseRecord, `"version"`, `"bootID":"new","version"`, 1), false},
		"released by a version without boot": {releaseRecord, false},
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
