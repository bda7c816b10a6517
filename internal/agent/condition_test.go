package agent

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Another client's False condition is taken back before the release. If that fails before INITIAL_TIMEOUT, the condition
// returns, and the failed taint does not.
func TestNoFailedTaintBeforeTheTimeout(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse, Reason: "ImagePull"}}
		var fixed atomic.Bool
		api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			return request == patchNode && !fixed.Load() && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not today")
		})
		p := simulate(t, api, nil, nil, "--on-timeout=taint,condition", "--initial-timeout=10m")
		synctest.Wait()
		p.entry("node marked as failed")
		assert.Equal(t, []string{"True Verified", "False NotVerified"}, api.written())
		assert.Equal(t, tainted, api.taints())
		fixed.Store(true)
		after(nextAttempt)
		p.entry("node verified")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		assert.Equal(t, []string{"True Verified", "False NotVerified", "True Verified"}, api.written())
		assert.Equal(t, []string{patchStat, patchNode, patchStat, patchNode, patchStat}, api.writes(),
			"the refused release and the one that passes: no taint was added")
	})
}

// The patch of the release fails, round by round: the condition stays False, with the date of its one transition. The first
// request that sets it True is lost.
func TestConditionWhileThePatchFails(t *testing.T) {
	for name, code := range map[string]int{"refused by a policy": http.StatusForbidden, "webhook down": http.StatusInternalServerError} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				var fixed atomic.Bool
				api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
					lost := request == patchStat && n == 2
					return (lost || request == patchNode && !fixed.Load()) && answerStatus(w, code, metav1.StatusReasonUnknown, "not today")
				})
				p := simulate(t, api, nil, nil, "--on-timeout=condition")
				after(initialTimeout)
				reason := p.entry("initial timeout exceeded")["reason"]
				assert.Contains(t, reason, "not verified within 5m0s: patch: ")
				assert.Contains(t, reason, "not today")
				p.logged("node marked as failed")
				fixed.Store(true)
				p.logged("node verified")
				p.stop()
				assert.Equal(t, exitOK, p.wait())
				assert.Equal(t, []string{"False NotVerified", "True Verified"}, api.written(), "never True before the release")
				assert.Contains(t, api.conditions[0].Message, "not today")
				assert.Equal(t, []string{patchNode, patchStat, patchStat, postEvent, getNode}, api.seen()[len(api.seen())-5:], "True after the release")
			})
		})
	}
}

// A condition that an earlier container has left False is corrected.
func TestStaleConditionOfAVerifiedNode(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.node.Labels["node-ready/verified"], api.node.Spec.Taints = "true", nil
		api.node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse}}
		p := simulate(t, api, nil, nil, "--once", "--on-timeout=condition")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		require.Equal(t, []string{getNode, patchStat}, api.seen())
		assert.Equal(t, corev1.ConditionTrue, api.conditions[0].Status)
	})
}
