package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// replace deletes the node and creates it again with these taints.
func (a *fakeAPI) replace(taints []corev1.Taint) {
	a.edit(func(node *corev1.Node) {
		*node = *newSimulatedAPI(a.t).node
		node.UID, node.Spec.Taints = "uid-2", taints
	})
}

// The old Node has timed out. The new one waits for a foreign taint that stays, so that no round ends: it is reported and marked all
// the same, after its own INITIAL_TIMEOUT.
func TestReplacedNodeThatWaitsTimesOut(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(addTaint(corev1.Taint{Key: "cni.example/not-ready", Effect: corev1.TaintEffectNoSchedule}))
		taints := api.node.Spec.Taints
		p := simulate(t, api, nil, nil, "--on-timeout=taint,condition", "--wait-for-taints=cni.example/")
		after(initialTimeout + time.Minute)
		assert.Equal(t, []string{"False TaintsOfOthers"}, api.written())
		api.replace(taints)
		after(initialTimeout)
		assert.Len(t, api.written(), 1, "the new one has an INITIAL_TIMEOUT of its own")
		after(time.Minute)
		assert.Equal(t, []string{"False TaintsOfOthers", "False TaintsOfOthers"}, api.written())
		assert.Contains(t, api.taints(), "node-ready/failed")
		assert.Equal(t, []string{"NodeVerificationTimedOut", "NodeVerificationTimedOut"}, api.reasons())
		p.stop()
		p.wait()
	})
}
