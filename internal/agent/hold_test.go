package agent

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// A verified node is read once a minute. Somebody who removes the label or adds the startup taint gets a new verification.
func TestHoldVerifiesAgain(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"without the label": func(n *corev1.Node) { delete(n.Labels, "node-ready/verified") },
		"with the taint":    addTaint(corev1.Taint{Key: "node-ready/unverified", Effect: corev1.TaintEffectNoSchedule}),
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				p := simulate(t, api, nil, nil)
				after(2 * holdInterval)
				assert.Equal(t, []string{getNode, patchNode, postEvent, getNode, getNode}, api.seen())
				api.edit(change)
				synctest.Wait()
				assert.NotContains(t, p.stderr.String(), "node is no longer verified")
				after(holdInterval)
				p.entry("node is no longer verified: verifying it again")
				assert.Equal(t, untainted, api.taints())
				assert.Equal(t, "true", api.node.Labels["node-ready/verified"])
				assert.Equal(t, []string{getNode, getNode, patchNode, postEvent}, api.seen()[5:])
				p.stop()
				assert.Equal(t, exitOK, p.wait())
			})
		})
	}
}
