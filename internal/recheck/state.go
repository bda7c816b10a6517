// Package recheck decides what the rechecks of a released node prove, and when the node is to show it. It has no side effects: a
// State says what to do next, and AfterRound, AfterWrite and AfterLook return the State after that was done. internal/agent makes
// the rounds, the reads and the writes.
package recheck

import (
	"time"

	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// RefreshInterval is when a condition that stays False is written again, so that a stale one can be recognized.
	RefreshInterval = 5 * time.Minute
	// lookInterval is the time between two reads of the node where rounds are further apart.
	lookInterval = 5 * time.Minute
	// thoroughInterval is the time between two rounds with large packets.
	thoroughInterval = time.Hour
	// retryInterval is the time until the next try of a write that has failed.
	retryInterval = 30 * time.Second
)

// The status of the node's condition.
const (
	True  = "True"
	False = "False"
)

// Settings are what the operator has decided.
type Settings struct {
	Interval                            time.Duration
	FailureThreshold, RecoveryThreshold int            // rounds in a row
	Random                              func() float64 // in [0, 1), for the jitter
}

// Jitter is the share by which a pause may be shorter or longer, so that thousands of nodes do not march in step. The controller
// knows from it how long rounds take at most.
const Jitter = 0.2

// Spread returns d ±Jitter. random is in [0, 1).
func Spread(d time.Duration, random float64) time.Duration {
	return time.Duration((1 - Jitter + 2*Jitter*random) * float64(d))
}

func (s Settings) spread(d time.Duration) time.Duration { return Spread(d, s.Random()) }

// within returns a time below d.
func (s Settings) within(d time.Duration) time.Duration {
	return time.Duration(s.Random() * float64(d))
}

// Shown is the condition of the Node; its Status is "" if there is none.
type Shown struct {
	Status  string
	Reasons condition.Reasons
}

// Facts are what a read of the Node says.
type Facts struct {
	ReadAt      time.Time
	Verified    bool // the Node is as it was released
	Shown       Shown
	Retainted   bool   // it has the failed taint
	Gated       bool   // it began with a startup taint, or has the condition: no other node gets one, or is re-tainted
	Rebooted    bool   // since it was released
	Untouchable string // see nodepatch.Untouchable
}

// Read returns the facts of a Node that was read at a time.
func Read(node *nodepatch.Node, at time.Time, keys nodepatch.Keys, conditionType string) Facts {
	released, shown := node.Annotations[nodepatch.Annotation], node.Status.Conditions.Of(conditionType)
	return Facts{ReadAt: at, Verified: keys.StaysVerified(node.Labels, node.Spec.Taints),
		Shown:       Shown{shown.Status, condition.Parse(shown.Reason)},
		Retainted:   keys.HasFailedTaint(node.Spec.Taints),
		Gated:       shown.Status != "" || record.WasGated(released, node.Annotations[nodepatch.Opened], keys.FailedTaintKey),
		Rebooted:    record.WasRebooted(released, node.Status.NodeInfo.BootID),
		Untouchable: nodepatch.Untouchable(node)}
}

// State is what the rounds have proven, and what the node shows of it. FailureThreshold failed rounds in a row make the status
// False. RecoveryThreshold passed ones make it True again, and remove the failed taint: the controller may have added it, the
// agent never does. The legal combinations:
//
//	Status   Failed                   passed                    reasons
//	True     below FailureThreshold   any                       of the last failed round, if any of the last rounds failed
//	False    any                      below RecoveryThreshold   of the last failed round; after a restart, of the condition
//	""       below FailureThreshold   below RecoveryThreshold   likewise; zero if there is no condition
//
// Failed and passed are never both above zero. planWrite says when writeAt is set.
type State struct {
	settings Settings
	facts    Facts

	Status         string // the verdict: True, False, or "" while it is to be proven
	Failed, passed int    // rounds in a row
	reasons        condition.Reasons
	message        string // how the last failed round has failed

	written    bool      // the condition shows the verdict; of no meaning while Status is ""
	refreshAt  time.Time // from when a False, or a True that was removed, is written again; zero until this agent has written one
	writeAt    time.Time // zero: no write is planned
	roundAt    time.Time
	thoroughAt time.Time // from when on a round sends large packets
}

// Released returns the State of a node that the agent has just released.
func Released(settings Settings, facts Facts, now time.Time) State {
	s := start(settings, facts, now)
	s.Status, s.written = True, facts.Shown.Status == True
	if facts.Gated && !s.written {
		s.writeAt = now
	}
	s.thoroughAt = now.Add(settings.within(thoroughInterval))
	return s
}

// Found returns the State of a node that an agent has found verified. What its condition says holds until rounds prove otherwise:
// another container of this pod, or the controller, has written it. Small packets alone do not prove that a node has recovered,
// or that it works after a reboot: then the first round is thorough.
func Found(settings Settings, facts Facts, now time.Time) State {
	s := start(settings, facts, now)
	if status := facts.Shown.Status; status == True || status == False {
		s.Status, s.written = status, status == True // the reasons of a False are to be its own
	}
	if s.Status == True {
		if !facts.Rebooted {
			s.thoroughAt = now.Add(settings.within(thoroughInterval))
		}
		return s
	}
	s.reasons = facts.Shown.Reasons
	// The controller has re-tainted the node, or is to.
	if s.reasons != 0 && !s.reasons.IsAgents() && (facts.Shown.Status == False || facts.Retainted) {
		s.reasons |= condition.PeersFailed // the controller's reason may hide it, so a peer must answer before the node recovers
	}
	return s
}

func start(settings Settings, facts Facts, now time.Time) State {
	s := State{settings: settings, facts: facts}
	s.roundAt = s.afterPause(now, now.Add(settings.within(settings.Interval)))
	return s
}

// Action is what an agent does next.
type Action int

// The actions.
const (
	Round  Action = iota // make one, as State.Round says
	Look                 // read the node: somebody may have removed the label, or added a taint
	Write                // write to the node what State.Shows says
	Verify               // the node is not as it was released: somebody wants it to be verified again
)

// Next returns the next action, and when it is due.
func (s State) Next(now time.Time) (Action, time.Time) {
	action, at := Round, s.roundAt
	if !s.facts.Verified {
		return Verify, now
	}
	if look := now.Add(s.settings.spread(lookInterval)); s.settings.Interval > lookInterval && look.Before(at) {
		action, at = Look, look
	}
	if !s.writeAt.IsZero() && s.writeAt.Before(at) {
		action, at = Write, s.writeAt
	}
	return action, at
}

// Results are what a round has found.
type Results struct {
	Options checklist.Options
	Began   time.Time
	Failed  []string // checks
	Message string   // how they failed
	Unknown bool     // a check could not look: the round has not passed
}

// Written is what became of a write.
type Written struct {
	Condition bool  // the node has the condition that State.Shows returned
	Err       error // of anything that could not be read or written
}

// Round says how the next round is made.
func (s State) Round(now time.Time) checklist.Options {
	thorough := !now.Before(s.thoroughAt)
	isProving := s.Status != True
	return checklist.Options{Recheck: true, Thorough: thorough, NewConnection: thorough || s.Failed > 0,
		// One other node proves nothing: the healthy node of two with DNS pods would fail with the broken one.
		DNSMustAnswer:   isProving && s.reasons.Has(condition.ServiceFailed),
		PeersMustAnswer: (isProving || s.Failed > 0) && s.reasons.Has(condition.PeersFailed),
		FewPeersMayWarn: !s.reasons.IsAgents()}
}

// AfterRound counts a round, after which the last read of the node is read. A single failure changes nothing. Only a node that
// was read in this round is known to be drained or going away: a node that has lost its path to the API server may have been
// uncordoned for long.
func (s State) AfterRound(r Results, read Facts, now time.Time) State {
	s.facts = read
	s.roundAt = s.afterPause(now, r.Began.Add(s.settings.spread(s.settings.Interval)))
	hasProven := len(r.Failed) == 0 && (!r.Unknown || s.Status == True)
	if r.Options.Thorough && hasProven { // else the next round is thorough, too
		s.thoroughAt = now.Add(s.settings.spread(thoroughInterval))
	}
	if s.IsUntouchable(r.Began) {
		s.passed, s.Failed, s.writeAt = 0, 0, time.Time{}
		return s
	}
	s = s.proveAgain()
	switch {
	case len(r.Failed) > 0:
		s.passed, s.Failed, s.message, s.reasons = 0, s.Failed+1, r.Message, condition.OfChecks(r.Failed)
	case r.Unknown: // what could look has passed
		s.Failed = 0
	default:
		s.passed, s.Failed = s.passed+1, 0
		if s.Status == True {
			s.reasons = 0
		}
	}
	switch {
	case s.Failed >= s.settings.FailureThreshold && s.Status != False:
		s.Status, s.written, s.writeAt = False, false, now
	case s.passed >= s.settings.RecoveryThreshold && s.Status != True:
		s.Status, s.written, s.writeAt = True, false, now
	default:
		s = s.planWrite(now)
	}
	return s
}

// afterPause returns at, or a later time that leaves a pause after now: a round may last longer than the interval.
func (s State) afterPause(now, at time.Time) time.Time {
	return now.Add(max(at.Sub(now), s.settings.Interval/10))
}

// IsUntouchable reports whether a read since then found that nothing is to be done to the node.
func (s State) IsUntouchable(since time.Time) bool {
	return s.facts.Untouchable != "" && s.facts.ReadAt.After(since)
}

// proveAgain has the rounds prove once more, with large packets, that the node passes, if the controller has written
// the condition, or has re-tainted the node, since this agent has found that it does.
func (s State) proveAgain() State {
	shown := s.facts.Shown.Status
	if s.Status == True && (s.written || s.facts.Retainted) && shown != "" && shown != True {
		s.Status, s.passed, s.thoroughAt = "", 0, time.Time{}
	}
	return s
}
