package agent

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ruleTaint is the taint of a client that waits for the condition, and that no agent removes.
const ruleTaint = "readiness.k8s.io/pod-network"

// neverGated edits a node so that it has the rule's taint and no startup taint, and is old enough to get none.
func neverGated(node *corev1.Node) {
	setOld(node)
	node.Spec.Taints = []corev1.Taint{{Key: ruleTaint, Effect: corev1.TaintEffectNoSchedule}}
}

// obeying lets a client remove the rule's taint as soon as the condition is True, before the agent sends anything else. And it
// asserts that no release is sent while the condition is not True. before, which may be nil, answers first.
func (a *fakeAPI) obeying(before interceptor) {
	a.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
		if before != nil && before(request, n, w, r) {
			return true
		}
		if request == patchNode {
			a.edit(func(node *corev1.Node) {
				assert.True(a.t, slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
					return c.Type == "NodeVerified" && c.Status == corev1.ConditionTrue
				}), "a release without the condition")
				removeTaint(ruleTaint)(node)
				node.ResourceVersion += "1"
			})
		}
		return false
	})
}

// Without always such a node gets no condition.
func TestAlwaysFalseAfterTheFirstRound(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(neverGated)
		api.obeying(nil)
		p, network := simulateFailing(t, api, "--condition=always", "--max-retries=0")
		synctest.Wait()
		p.entry("node not verified")
		require.Equal(t, []string{"False NetworkFailed"}, api.written())
		assert.Contains(t, api.conditions[0].Message, refused)
		after(time.Minute)
		assert.Equal(t, []string{"False NetworkFailed"}, api.written(), "the same is not written again")
		assert.Equal(t, []string{ruleTaint}, api.taints())
		network.recovered.Store(true)
		after(nextAttempt)
		p.entry("node verified")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
		assert.Equal(t, []string{patchStat, patchStat, patchNode}, api.writes())
		assert.NotContains(t, p.stderr.String(), "initial timeout exceeded")
	})
}

// A verified node has no agent left that could write the condition: there is no release without it.
func TestAlwaysNoReleaseWithoutTheCondition(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.obeying(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			return request == patchStat && n <= 2 && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not today")
		})
		p := simulate(t, api, nil, nil, "--condition=always")
		synctest.Wait()
		assert.Equal(t, []string{patchStat}, api.writes())
		assert.Contains(t, p.entry("node not verified")["reason"], "cannot write the condition NodeVerified before the release (CONDITION=always): ")
		assert.Contains(t, api.events[0].Message, "not today")
		after(nextAttempt)
		p.entry("node verified")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		assert.Equal(t, []string{"True Verified"}, api.written()[:1])
		assert.Equal(t, untainted, api.taints())
	})
}

// A refused release says nothing about the checks: True stays, also at INITIAL_TIMEOUT. A check that fails takes it back.
func TestAlwaysWhileTheReleaseIsRefused(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			return request == patchNode && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not today")
		})
		network := new(brokenNetwork)
		network.recovered.Store(true)
		p := simulate(t, api, network.try, nil, "--condition=always", "--on-timeout=condition", "--max-retries=0")
		after(initialTimeout + nextAttempt)
		assert.Contains(t, p.entry("initial timeout exceeded")["reason"], "not today")
		assert.Equal(t, []string{"True Verified"}, slices.Compact(api.written()))
		network.recovered.Store(false)
		after(nextAttempt)
		network.recovered.Store(true)
		after(nextAttempt)
		assert.Equal(t, []string{"True Verified", "False NetworkFailed", "True Verified"}, slices.Compact(api.written()))
		p.stop()
		assert.Equal(t, exitOK, p.wait())
	})
}

// With rechecks, a node that was verified before gets the condition too, once its rounds have proven it.
func TestAlwaysWithRechecks(t *testing.T) {
	for setting, want := range map[string][]string{"auto": nil, "always": {"True Verified", "False NetworkFailed"}} {
		t.Run(setting, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(setReleased)
				api.edit(func(node *corev1.Node) { node.Annotations = nil })
				r := startVerification(t, api, "--condition="+setting)
				r.round(nil, nil)
				assert.Empty(t, api.written())
				r.round(nil)
				r.round(errBroken, errBroken, errBroken)
				assert.Equal(t, want, api.written())
				r.end()
			})
		})
	}
}
