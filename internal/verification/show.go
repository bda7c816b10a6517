package verification

import (
	"time"

	"github.com/imunhatep/kube-node-ready/internal/recheck"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// retryInterval is the time until the next try of a write that has failed, ±20 %.
const retryInterval = 30 * time.Second

// Next returns when a Tick is due, zero if none is.
func (s State) Next() (at time.Time) {
	if !s.TimedOut {
		at = s.timesOut
	}
	if !s.writeAt.IsZero() {
		at = sooner(at, s.writeAt)
	}
	if s.opening.at.After(s.triedAt) { // later tries are retries
		at = sooner(at, s.opening.at)
	}
	return at
}

// sooner returns the earlier of two times. The first one may be zero, which means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// IsDue reports whether a Tick is due.
func (s State) IsDue(now time.Time) bool { return !s.Next().IsZero() && !now.Before(s.Next()) }

// Tick is the time that Next has returned.
type Tick struct{}

func (Tick) change(s *State, now time.Time) {
	if !s.TimedOut && !now.Before(s.timesOut) {
		s.TimedOut, s.writeAt = true, now
	}
	switch {
	case s.releasing, s.failing.Subject == LateTaint: // neither is a failure
		s.retry(now, now)
	case !s.TimedOut && s.finding.Message == "": // the failure that was to be written is gone
		s.writeAt = time.Time{}
	}
}

// Show is what to write to the Node.
type Show struct {
	Finding Finding // "" in its Message means nothing
	Open    bool    // its startup taint is to be removed
}

// Shows returns what to write to the Node after a Tick: at INITIAL_TIMEOUT that it has passed, then what the last round has found
// if it was not written, and else that INITIAL_TIMEOUT has passed, with the last failure.
func (s State) Shows(now time.Time) (show Show) {
	if !s.IsDue(now) {
		return Show{}
	}
	show.Finding = s.finding
	if s.TimedOut && (s.triedAt.Before(s.timesOut) || s.finding.Message == "") {
		show.Finding = Finding{s.failing.failed(), s.TimeoutMessage()}
	}
	show.Open = s.mayOpen(now)
	return show
}

// TimeoutMessage says that INITIAL_TIMEOUT has passed, and what fails.
func (s State) TimeoutMessage() string {
	return verdict.TimeoutMessage(s.settings.InitialTimeout, s.failing.Text)
}

// Wrote is a write of what Shows has returned.
type Wrote struct {
	Began time.Time
	Err   error
}

func (e Wrote) change(s *State, now time.Time) {
	if e.Err != nil {
		s.retry(e.Began, now)
		return
	}
	s.triedAt, s.writeAt, s.finding = e.Began, time.Time{}, Finding{}
}

// retry plans a write that is still due: there may be no further round, for example if a foreign taint stays.
func (s *State) retry(triedAt, now time.Time) {
	s.triedAt, s.writeAt = triedAt, now.Add(recheck.Spread(retryInterval, s.settings.Random()))
}
