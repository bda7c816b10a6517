// Package verification decides when a verification has timed out, what the Node is to show of it, and when it is opened. It has
// no side effects: a State says what to write and when, and After returns the State after an event. internal/agent makes the
// rounds and the writes.
package verification

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Subjects of a Failure besides the names of checks and condition.ForeignTaints.
const (
	Patch     = "patch"
	LateTaint = "late taint" // every check passes, and the node waits for its startup taint
)

// Settings are what the operator has decided.
type Settings struct {
	InitialTimeout time.Duration
	Once           bool           // there is one deadline, whatever happens to the Node
	Opens          bool           // ON_TIMEOUT=open
	Keys           nodepatch.Keys // of the taints and the label
	Random         func() float64 // in [0, 1), for the jitter
}

// Failure is the last failure of a check, of the patch, or what the node waits for. The zero value is none.
type Failure struct{ Subject, Text string }

// FailureOf returns the failure of a subject.
func FailureOf(subject string, err error) Failure {
	return Failure{subject, round.Describe(subject, err)}
}

// failed returns what to name as failed: no check if there is no failure, or if the patch has failed.
func (f Failure) failed() []string {
	if f.Subject == "" || f.Subject == Patch {
		return nil
	}
	return []string{f.Subject}
}

// Finding is what the Node shows of a failure.
type Finding struct {
	Failed  []string // checks; none if the patch has failed
	Message string   // "" if there is no failure
}

// State is one verification. Only After changes it.
type State struct {
	settings Settings
	timing
	failing   Failure
	finding   Finding // of the last round, until the Node shows it
	releasing bool    // the release is on its way, and nothing is written beside it
	opening   opening
	Proven    types.UID // the Node whose checks have passed in this process, "" once one fails
}

// timing is when something is due: at timesOut until it has passed, at writeAt, and when the node may be opened.
type timing struct {
	Began    time.Time
	timesOut time.Time // INITIAL_TIMEOUT
	TimedOut bool      // timesOut has passed
	writeAt  time.Time // when a write is due; zero if none is planned
	triedAt  time.Time // when one was tried last
}

// Begin returns the State of a verification. An earlier one may have proven that the Node passes.
func Begin(settings Settings, facts Facts, proven types.UID, now time.Time) State {
	s := State{settings: settings, Proven: proven, timing: timing{Began: now}}
	s.beginTimeout(now)
	s.see(facts, now)
	return s
}

// Event is something that happens in a verification.
type Event interface {
	change(s *State, now time.Time)
}

// After returns the State after an event.
func (s State) After(event Event, now time.Time) State {
	event.change(&s, now)
	return s
}

func (s *State) beginTimeout(now time.Time) {
	s.timesOut, s.TimedOut = now.Add(s.settings.InitialTimeout), false
	s.finding, s.writeAt = Finding{}, time.Time{}
}

func (s *State) forgetNetworkFailure() { s.opening.at, s.finding = time.Time{}, Finding{} }

// Attempted is an attempt of a check. When the network checks begin to fail, the time until the node may be opened begins.
type Attempted struct{ checks.Attempt }

func (e Attempted) change(s *State, now time.Time) {
	hasFailed := e.Err != nil
	if hasFailed {
		s.Proven = ""
	}
	if hasFailed && s.settings.Opens && s.opening.at.IsZero() && round.IsNetworkCheck(e.Check) {
		s.opening.at = now.Add(s.settings.InitialTimeout - e.Took + time.Duration(s.settings.Random()*float64(opensOver)))
	}
	tellsLess := e.Check == checks.NodeName && round.IsNetworkCheck(s.failing.Subject) // than the other checks
	if hasFailed && !tellsLess {
		s.failing = FailureOf(e.Check, e.Err)
	} else if s.failing.Subject == e.Check {
		s.failing = Failure{}
	}
}

// Waits is the begin of a wait, and with the zero Failure its end.
type Waits struct {
	Failure
	UID      types.UID // of the Node, "" at the end
	Corrects bool      // the condition hides the failure, so it is written at once
}

func (e Waits) change(s *State, now time.Time) {
	s.forgetNetworkFailure()
	s.failing = e.Failure
	if e.Corrects {
		s.finding, s.writeAt = Finding{e.failed(), e.Text}, now
	}
}

// Passed is a round that has passed, or that does not count.
type Passed struct{}

func (Passed) change(s *State, _ time.Time) { s.forgetNetworkFailure() }

// Failed is a round that has failed, or a release after it.
type Failed struct {
	Round    round.Failure // its zero value means that the release has failed
	Err      error         // how
	Facts    Facts         // of the Node after the round
	Corrects bool          // the condition shows something else, so it is written at once
}

func (e Failed) change(s *State, now time.Time) {
	switch {
	case len(e.Round.Checks) == 0:
		s.failing = FailureOf(Patch, e.Err)
	case s.failing.Subject == "": // lost between the checks and the release
		s.failing = FailureOf(e.Round.Checks[0], e.Err)
	}
	if !e.Round.IsOfNetwork() {
		s.forgetNetworkFailure()
	}
	s.see(e.Facts, now)
	if s.TimedOut || e.Corrects {
		s.finding, s.writeAt = Finding{e.Round.Checks, e.Err.Error()}, now
	}
}

// Replaced is the deletion of the Node: another one has its name. Nothing that was found before counts.
type Replaced struct{ Facts Facts }

func (e Replaced) change(s *State, now time.Time) {
	before := s.timing
	*s = Begin(s.settings, e.Facts, "", now)
	if s.settings.Once {
		s.timing = before
	}
}

// Releasing is the begin of the release of the Node with this uid.
type Releasing struct{ UID types.UID }

func (e Releasing) change(s *State, _ time.Time) { s.Proven, s.releasing = e.UID, true }

// Patched is the end of the release. Outdated means that its checks do not count.
type Patched struct{ Outdated bool }

func (e Patched) change(s *State, _ time.Time) {
	s.releasing = false
	if e.Outdated {
		s.Proven = ""
	}
}

// Ended is the end of a step, whose other events came before.
type Ended struct{ Err error }

func (Ended) change(*State, time.Time) {}
