package agent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/checks"
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
