// Package baseline runs the agent's checks in the controller's own pod. If they fail there, the cluster is
// at fault, and no node is replaced.
package baseline

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
)

// Interval is how often a round begins, and so how long its result is used.
const Interval = 30 * time.Second

// State is what the rounds have found.
type State struct {
	// PassedSince is when the first of the rounds ended that have passed without a break; zero: the last one has failed.
	PassedSince clock.Mark
	// Began and Ended are of the last round that has ended, zero: none has.
	Began, Ended clock.Mark
	// Failure is of the last round that failed, "": none has.
	Failure string
}

// PassedFor returns how long the rounds have passed without a break. It is zero when the last result is outdated, because a
// round does not end: its checks are being retried.
func (s State) PassedFor(now clock.Now) time.Duration {
	if s.PassedSince.IsZero() || now.Since(s.Ended) > 2*Interval {
		return 0
	}
	return now.Since(s.PassedSince)
}

// next is the state after a round has ended; failure is "" if it has passed.
func (s State) next(failure string, began clock.Mark, now clock.Now) State {
	switch {
	case failure != "":
		s.Failure, s.PassedSince = failure, clock.Mark{}
	case s.PassedFor(now) == 0:
		s.PassedSince = now.Mark()
	}
	s.Began, s.Ended = began, now.Mark()
	return s
}

// Rounds runs the checks every Interval.
type Rounds struct {
	Checks []checks.Check
	Runner checks.Runner
	Now    func() clock.Now
	Log    *slog.Logger

	mu    sync.Mutex
	state State
}

// Start runs rounds until ctx ends. The manager calls it when this process has become the leader.
func (r *Rounds) Start(ctx context.Context) error {
	wait.NonSlidingUntilWithContext(ctx, r.round, Interval)
	return nil
}

// State returns what the rounds have found until now.
func (r *Rounds) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

func (r *Rounds) round(ctx context.Context) {
	began := clock.Own()
	results, err := r.Runner.Round(ctx, r.Checks)
	if err != nil {
		return // shutting down
	}
	var failures []string
	for _, result := range results {
		if result.Err != nil {
			failures = append(failures, result.Check+": "+result.Err.Error())
		}
	}
	failure := strings.Join(failures, "; ")
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.state
	r.state = before.next(failure, began, r.Now())
	switch {
	case failure != "":
		r.Log.Warn("control group: the checks failed in the controller's pod", "error", failure)
	case before.PassedSince.IsZero():
		r.Log.Info("control group: the checks passed in the controller's pod")
	}
}
