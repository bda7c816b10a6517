package agent

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/internal/verification"
)

// retryInterval is the time until the next try of a write that has failed, ±20 %.
const retryInterval = 30 * time.Second

func TestFailureIsReportedAgainLaterAndLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := make(repeats)
		start := time.Now()
		var at []time.Duration
		report := func(err error) {
			if r.isDue(err) {
				at = append(at, time.Since(start))
			}
		}
		for range 60 { // minutes
			report(round.Failure{Checks: []string{"dns"}, Reasons: []string{"port " + time.Now().String()}})
			time.Sleep(time.Minute)
		}
		assert.Equal(t, []time.Duration{0, 5 * time.Minute, 15 * time.Minute, 35 * time.Minute}, at)

		at = nil
		report(round.Failure{Checks: []string{"dns", "api"}, Reasons: []string{"x"}})
		report(errors.New("the API server refuses the patch"))
		assert.Len(t, at, 2, "others are reported at once")
		report(errors.New("the API server refuses the patch: request 17"))
		assert.Len(t, at, 2, "whatever its words are this time")
		clear(r)
		report(round.Failure{Checks: []string{"dns"}, Reasons: []string{"x"}})
		assert.Len(t, at, 3, "a new verification counts from the start")
	})
}

// The API server fails when INITIAL_TIMEOUT passes, and a foreign taint stays: there is no round after which to try again.
func TestTimeoutIsReportedAgainWhileWaiting(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(addTaint(cilium))
		api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			first := n == 1 && (request == postEvent || request == patchNode)
			return first && answerStatus(w, http.StatusForbidden, "", "not now")
		})
		p := simulate(t, api, nil, nil, "--on-timeout=taint", "--wait-for-taints=node.cilium.io/")
		after(initialTimeout + retryInterval*8/10 - time.Millisecond)
		p.entry("initial timeout exceeded")
		assert.NotContains(t, p.stderr.String(), "node marked as failed")
		after(retryInterval * 4 / 10)
		p.entry("node marked as failed")
		assert.Contains(t, api.taints(), "node-ready/failed")
		p.stop()
		p.wait()
	})
}

// INITIAL_TIMEOUT passes while the release is under way, and a foreign taint stops that: no round is left after which to try again.
func TestTimeoutDuringAReleaseThatIsStopped(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		passesAt := time.Now().Add(initialTimeout - time.Second)
		api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			if request != patchNode || n > 1 {
				return false
			}
			api.edit(addTaint(cilium))
			time.Sleep(2 * time.Second)
			return answerStatus(w, http.StatusInternalServerError, "", "no")
		})
		p := simulate(t, api, failingUntil(passesAt), nil, "--on-timeout=taint", "--wait-for-taints=node.cilium.io/")
		after(initialTimeout + 2*retryInterval)
		p.entry("node marked as failed")
		assert.Contains(t, api.taints(), "node-ready/failed")
		p.stop()
		p.wait()
	})
}

// A check that passes again is not the reason any more: INITIAL_TIMEOUT passes while the node is read before its release.
func TestTimeoutAfterTheChecksPassed(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		passesAt := time.Now().Add(initialTimeout - time.Second)
		api.intercept(func(string, int, http.ResponseWriter, *http.Request) bool {
			if !time.Now().Before(passesAt) {
				time.Sleep(2 * time.Second)
			}
			return false
		})
		p := simulate(t, api, failingUntil(passesAt), nil)
		after(initialTimeout)
		assert.Equal(t, "not verified within 5m0s", p.entry("initial timeout exceeded")["reason"])
		after(10 * time.Second)
		p.entry("node verified")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
	})
}

// INITIAL_TIMEOUT passes while the condition of a failed round is being written: it is reported all the same, and ends --once.
func TestTimeoutDuringAWrite(t *testing.T) {
	for name, args := range map[string][]string{"an agent": nil, "once": {"--once"}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.intercept(func(request string, n int, _ http.ResponseWriter, _ *http.Request) bool {
					if request == patchStat && n == 1 {
						time.Sleep(2 * time.Second)
					}
					return false
				})
				p, _ := simulateFailing(t, api, append(args, "--condition=always", "--on-timeout=taint", "--max-retries=0", "--initial-timeout=1s")...)
				after(time.Minute)
				p.entry("initial timeout exceeded")
				assert.Contains(t, api.taints(), "node-ready/failed")
				p.stop()
				p.wait()
			})
		})
	}
}

// A slow API server does not keep the agent from adding the taint and writing the condition in one go.
func TestMarkersWithASlowAPIServer(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, _ := simulateFailing(t, api, "--on-timeout=taint", "--recheck-interval=1m", "--check-timeout=10s")
		after(initialTimeout - time.Second)
		assert.Empty(t, api.writes())
		api.intercept(func(string, int, http.ResponseWriter, *http.Request) bool {
			time.Sleep(9 * time.Second)
			return false
		})
		after(50 * time.Second)
		assert.Contains(t, api.taints(), "node-ready/failed")
		assert.Equal(t, []string{"False NetworkFailed"}, api.written())
		assert.NotContains(t, p.stderr.String(), "cannot mark the node as failed")
		p.stop()
		p.wait()
		after(10 * time.Second) // the last answers
	})
}

// A write is refused at INITIAL_TIMEOUT, and before the node is due to be opened a foreign taint comes, and stays. The condition is
// written all the same.
func TestRetryIsKeptWhenAForeignTaintComes(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		passesAt, failed := time.Now().Add(initialTimeout+time.Millisecond), false
		network := func(ctx context.Context) (checks.Report, error) {
			if !failed {
				failed = true
				return checks.Report{}, errBroken
			}
			time.Sleep(time.Until(passesAt))
			return passing(ctx)
		}
		api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			if request != patchStat || n > 1 {
				return false
			}
			api.edit(addTaint(cilium))
			return answerStatus(w, http.StatusForbidden, "", "not now")
		})
		p := simulate(t, api, network, nil, "--on-timeout=open,condition", "--wait-for-taints=node.cilium.io/", "--max-retries=0")
		after(initialTimeout + 2*retryInterval)
		assert.Equal(t, []string{"False TaintsOfOthers"}, api.written())
		p.stop()
		p.wait()
	})
}

// What failed on a Node that was deleted does not count in the record of the one that has replaced it.
func TestAttemptsOfAReplacedNode(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, network := simulateFailing(t, api)
		after(time.Minute)
		api.edit(func(node *corev1.Node) { node.UID = "uid-2" })
		network.recovered.Store(true)
		after(2 * nextAttempt)
		assert.Equal(t, map[string]int{"dns": 1, "api": 1, "network": 1, "service": 1}, api.record().Attempts)
		p.stop()
		p.wait()
	})
}

// A Tick must not report a failure that a queued attempt has ended.
func TestEventsOfAStepComeBeforeATick(t *testing.T) {
	l := &loop{happened: make(chan verification.Event, 1), state: verification.Begin(verification.Settings{}, verification.Facts{}, "", time.Now())}
	for range 50 {
		l.happened <- verification.Waits{}
		assert.IsType(t, verification.Waits{}, l.next())
	}
	assert.IsType(t, verification.Tick{}, l.next())
}

// What a step sends at the moment of a Tick comes first.
func TestEventsOfAStepComeBeforeATickOfTheSameMoment(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			l := &loop{happened: make(chan verification.Event, 1)}
			l.state = verification.Begin(verification.Settings{InitialTimeout: time.Second}, verification.Facts{}, "", time.Now())
			go func() {
				time.Sleep(time.Second)
				l.happened <- verification.Passed{}
			}()
			if _, isTick := l.next().(verification.Tick); isTick {
				assert.Empty(t, l.happened)
			}
			synctest.Wait()
		})
	}
}
