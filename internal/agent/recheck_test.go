package agent

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
)

// In steady state a round is one read from the API server's cache, and nothing grows.
func TestRecheckSteadyState(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api)
		r.round(nil, nil)
		assert.Empty(t, api.written())
		r.round(nil)
		assert.Equal(t, []string{"True Verified"}, api.written(), "the node had no condition yet")
		before, goroutines, series := len(api.seen()), runtime.NumGoroutine(), strings.Count(r.metrics(), "\n")
		for range 50 {
			r.round(nil)
		}
		seen := api.seen()[before:]
		assert.Len(t, seen, 50)
		for _, request := range seen {
			assert.Equal(t, getCached, request)
		}
		assert.InDelta(t, goroutines, runtime.NumGoroutine(), 5)
		assert.Equal(t, series, strings.Count(r.metrics(), "\n"))
		assert.True(t, r.ready())
		assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 1`+"\n")
		assert.LessOrEqual(t, len(r.entries()), 3, "a round that passes is not logged: %s", r.stderr)
	})
}

// A single failure is a warning and a counter, and a round that passes begins the count again.
func TestRecheckSingleFailure(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api)
		r.round(nil, nil, nil)
		before := len(api.seen())
		r.round(errBroken, errBroken, nil, errBroken, errBroken)
		assert.Empty(t, api.writesSince(before))
		assert.True(t, r.ready())
		assert.Contains(t, r.metrics(), `node_check_failures_total{check="network",node="node1"} 4`+"\n")
		log := r.stderr.String()
		assert.Equal(t, 4, strings.Count(log, `"level":"warning","msg":"recheck failed"`))
		assert.Equal(t, 4, strings.Count(log, `"level":"warning","msg":"check failed"`))
	})
}

// FAILURE_THRESHOLD failed rounds end the readiness and write the condition; RECOVERY_THRESHOLD passed ones take both back, and
// remove the controller's failed taint in the same round.
func TestRecheckFailsAndRecovers(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api, "--failure-threshold=2", "--recovery-threshold=3")
		r.round(nil, nil, nil)
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
		assert.Equal(t, []string{patchStat, patchNode, postEvent}, api.writesSince(before), "True first: the controller re-taints on False")
		assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 1`+"\n")
	})
}

// A condition that stays False is refreshed every five minutes, also while no round ends; one that is True is not.
func TestRecheckRefreshesFalse(t *testing.T) {
	for _, interval := range []string{"1m", "1h"} {
		t.Run(interval, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				r := startRechecks(t, api, "--recheck-interval="+interval)
				r.round(errBroken, errBroken, errBroken)
				assert.Equal(t, []string{"False NetworkFailed"}, api.written())
				after(31 * time.Minute)
				assert.Len(t, api.written(), 7)
				for _, condition := range api.written() {
					assert.Equal(t, "False NetworkFailed", condition)
				}
				r.round(nil, nil, nil)
				n := len(api.written())
				assert.Equal(t, "True Verified", api.written()[n-1])
				r.round(nil, nil)
				after(31 * time.Minute)
				assert.Len(t, api.written(), n)
			})
		})
	}
}

// The API server is away: the verdict is at /readyz, and on the node as soon as a round fails with it back.
func TestRecheckWithoutAPI(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		away := api.refuse()
		r := startRechecks(t, api)
		r.round(nil, nil, nil)
		away.Store(true)
		r.round(nil, nil, nil)
		assert.False(t, r.ready())
		assert.Equal(t, []string{"True Verified"}, api.written())
		assert.Empty(t, api.reasons())
		r.during(func() { away.Store(false) }, nil)
		assert.Equal(t, []string{"True Verified", "False APIFailed"}, api.written())
		assert.Equal(t, []string{"NodeRecheckFailed"}, api.reasons())
	})
}

// The API server is away for some rounds and nothing else. As soon as it is back, no agent writes that it cannot reach it.
func TestRecheckWhenTheAPIIsBack(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		var away atomic.Bool
		refused := 0
		api.intercept(func(_ string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			if !away.Load() {
				return false
			}
			if refused++; refused == 4 { // the read of the node before a write
				away.Store(false)
			}
			return answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "away")
		})
		r := startRechecks(t, api)
		r.round(nil, nil, nil)
		away.Store(true)
		r.round(nil, nil, nil)
		assert.False(t, away.Load(), "the last of them was to be written")
		r.round(nil, nil)
		assert.Equal(t, []string{"True Verified"}, api.written())
		r.round(nil)
		assert.Equal(t, []string{"True Verified", "True Verified"}, api.written())
		assert.Equal(t, []string{"NodeRecheckFailed", "NodeRecovered"}, api.reasons())
	})
}

// A False whose rounds pass again is not refreshed: it goes stale, and the controller does not re-taint the node.
func TestRecheckDoesNotRefreshWhilePassing(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api, "--recovery-threshold=100")
		r.round(errBroken, errBroken, errBroken, nil)
		assert.Len(t, api.written(), 1)
		after(time.Hour)
		assert.Len(t, api.written(), 1)
		r.round(errBroken)
		assert.Len(t, api.written(), 2, "it fails")
	})
}

// Events that cannot be sent are tried again, and nothing else with them.
func TestRecheckWithoutEvents(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		refused := api.refuse(postEvent)
		refused.Store(true)
		r := startRechecks(t, api)
		r.round(nil, nil, nil)
		r.round(errBroken, errBroken, errBroken)
		after(3 * time.Minute)
		assert.Equal(t, []string{"True Verified", "False NetworkFailed"}, api.written())
		tries := api.count(postEvent)
		assert.InDelta(t, 7, tries, 2, "every 30s")
		refused.Store(false)
		after(36 * time.Second)
		assert.Equal(t, []string{"NodeRecheckFailed"}, api.reasons())
		tries = api.count(postEvent)
		r.round(errBroken, errBroken)
		assert.Equal(t, tries, api.count(postEvent))
	})
}

// SIGTERM in a round that would be the last one to fail ends it without a verdict.
func TestRecheckStopsWithoutAVerdict(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api)
		r.round(nil, nil, nil, errBroken, errBroken)
		before := len(api.seen())
		r.answer(func(ctx context.Context) (checks.Report, error) {
			r.terminate()
			<-ctx.Done()
			return checks.Report{}, errBroken
		})
		assert.Equal(t, exitOK, r.wait())
		assert.Equal(t, []string{getCached}, api.seen()[before:], "of the round")
		assert.True(t, r.ready())
		assert.Equal(t, []string{"True Verified"}, api.written())
	})
}

// Rounds that last longer than the interval: what they find is written all the same, and a tenth of the interval is between them.
func TestRecheckThatTakesLong(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		r := startRechecks(t, api, "--recheck-interval=10s", "--check-timeout=1m")
		r.answer(func(context.Context) (checks.Report, error) {
			time.Sleep(30 * time.Second)
			return checks.Report{}, nil
		})
		r.nextRound()
		began := time.Now()
		r.nextRound()
		r.nextRound()
		assert.Equal(t, 2*31*time.Second, time.Since(began).Truncate(time.Second))
		assert.Equal(t, []string{"True Verified"}, api.written())
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

// Large packets are sent once an hour: package recheck decides when.
func TestRecheckSendsLargePacketsHourly(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		var large atomic.Int32
		api.intercept(func(request string, _ int, _ http.ResponseWriter, r *http.Request) bool {
			if request == getCached && r.Header.Get("X-Kube-Node-Ready-Padding") != "" {
				large.Add(1)
			}
			return false
		})
		api.edit(setCondition(corev1.ConditionTrue, "Verified"))
		r := startRechecks(t, api)
		after(time.Hour + 2*time.Minute)
		assert.InDelta(t, 1.5, large.Load(), 0.5, "the first at a random time")
		after(10 * time.Hour)
		assert.InDelta(t, 11, large.Load(), 3)
		assert.Greater(t, len(api.seen()), 500, "other rounds send none")
		r.end()
	})
}
