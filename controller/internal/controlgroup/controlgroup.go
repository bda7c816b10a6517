// Package controlgroup runs the agent's checks in the controller's own pod. Where they fail, it is the cluster's fault, and no
// node is to be replaced for it.
package controlgroup

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/imunhatep/kube-node-ready/checks"
)

// Interval is how often a round begins, and so how long its result is used.
const Interval = 30 * time.Second

// State is what the rounds have found, by this process's monotonic clock.
type State struct {
	// PassedSince is when the first of the rounds ended that have passed without a break; zero: the last one has failed.
	PassedSince time.Time
	// Began and Ended are of the last round that has ended, zero: none has.
	Began, Ended time.Time
	// Failure is of the last round that failed, "": none has.
	Failure string
}

// PassedFor returns how long the rounds have passed without a break. It is zero when the last result is outdated, because a
// round does not end: its checks are being retried.
func (s State) PassedFor(now time.Time) time.Duration {
	if s.PassedSince.IsZero() || now.Sub(s.Ended) > 2*Interval {
		return 0
	}
	return now.Sub(s.PassedSince)
}

// next is the state after a round has ended; failure is "" if it has passed.
func (s State) next(failure string, began, now time.Time) State {
	switch {
	case failure != "":
		s.Failure, s.PassedSince = failure, time.Time{}
	case s.PassedFor(now) == 0:
		s.PassedSince = now
	}
	s.Began, s.Ended = began, now
	return s
}

// Group runs the rounds.
type Group struct {
	Checks []checks.Check
	Runner checks.Runner
	Log    *slog.Logger

	mu    sync.Mutex
	state State
}

// Start runs rounds until ctx ends. The manager calls it when this process has become the leader.
func (g *Group) Start(ctx context.Context) error {
	wait.NonSlidingUntilWithContext(ctx, g.round, Interval)
	return nil
}

// State returns what the rounds have found until now.
func (g *Group) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

func (g *Group) round(ctx context.Context) {
	began := time.Now()
	results, err := g.Runner.Round(ctx, g.Checks)
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
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.state
	g.state = before.next(failure, began, time.Now())
	switch {
	case failure != "":
		g.Log.Warn("control group: the checks failed in the controller's pod", "error", failure)
	case before.PassedSince.IsZero():
		g.Log.Info("control group: the checks passed in the controller's pod")
	}
}
