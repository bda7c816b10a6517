package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

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

// With --once there is nothing after the verdict.
func TestOnceDoesNotRecheck(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p := simulate(t, api, nil, map[string]string{"RECHECK_INTERVAL": "10s"}, "--once")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
	})
}
