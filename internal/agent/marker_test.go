package agent

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writes lists the patches of the node.
func (a *fakeAPI) writes() []string {
	return slices.DeleteFunc(a.seen(), func(request string) bool { return request != patchNode && request != patchStat })
}

func TestOnTimeoutKeep(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, network := simulateFailing(t, api)
		after(initialTimeout)
		p.entry("initial timeout exceeded")
		assert.Equal(t, tainted, api.taints())
		network.recovered.Store(true)
		after(nextAttempt)
		p.entry("node verified")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		assert.Empty(t, api.conditions)
		assert.NotContains(t, p.stderr.String(), "marked")
	})
}

func TestOnTimeoutCondition(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, network := simulateFailing(t, api, "--on-timeout=condition", "--condition-type=NetworkingReady")
		after(initialTimeout)
		p.entry("node marked as failed")
		network.recovered.Store(true)
		after(nextAttempt)
		p.entry("node verified")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		require.Len(t, api.conditions, 2)
		bad, good := api.conditions[0], api.conditions[1]
		assert.Equal(t, corev1.NodeConditionType("NetworkingReady"), bad.Type)
		assert.Equal(t, []string{"False", "NetworkFailed"}, []string{string(bad.Status), bad.Reason})
		assert.Contains(t, bad.Message, refused)
		assert.Equal(t, []string{"True", "Verified"}, []string{string(good.Status), good.Reason})
		assert.Equal(t, untainted, api.taints())
		assert.Equal(t, []string{patchStat, patchNode, postEvent, getNode}, api.seen()[len(api.seen())-4:], "True before the release")
	})
}

// Both markers: the condition is taken back before the release, the taint by the release.
func TestOnTimeoutTaintAndCondition(t *testing.T) {
	for _, policies := range []string{"taint,condition", "condition,taint"} {
		t.Run(policies, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				p, network := simulateFailing(t, api, "--on-timeout="+policies)
				after(initialTimeout)
				assert.Equal(t, append(tainted, "node-ready/failed"), api.taints())
				assert.Equal(t, "network", api.node.Spec.Taints[3].Value)
				assert.Equal(t, policies, p.entry("node marked as failed")["policy"])
				assert.Equal(t, "NetworkFailed", p.entry("node marked as failed")["reason"])
				after(nextAttempt) // as above
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

// With --once too, the node is marked before the process ends.
func TestOnceMarks(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		start := time.Now()
		p, _ := simulateFailing(t, api, "--on-timeout=taint", "--once")
		assert.Equal(t, exitNotVerified, p.wait())
		assert.Equal(t, initialTimeout, time.Since(start))
		assert.Contains(t, api.taints(), "node-ready/failed")
	})
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
