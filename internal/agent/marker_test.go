package agent

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
