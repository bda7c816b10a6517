package recheck

import (
	"time"

	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Seen takes the facts of another read of the Node.
func (s State) Seen(facts Facts) State {
	s.facts = facts
	return s
}

// SeenBetweenRounds is Seen for a read that belongs to no round.
func (s State) SeenBetweenRounds(facts Facts) State {
	isNew := facts.Retainted && !s.facts.Retainted
	s.facts = facts
	if s.written || isNew { // else the node shows what was written before the verdict
		s = s.recheckAfterController()
	}
	return s
}

// Looked plans a write if the last read calls for one.
func (s State) Looked(now time.Time) State {
	if s.writeAt.IsZero() {
		s.writeAt = s.nextWrite(now)
	}
	return s
}

// Condition returns the condition that shows the verdict, and whether it is to be written. A False is refreshed only while rounds
// fail: one that goes stale says that the node may be recovering, and the controller does not re-taint it.
func (s State) Condition(now time.Time) (shows nodepatch.Condition, isDue bool) {
	isFresh := s.written && (s.Status == True || now.Before(s.refreshAt))
	goesStale := s.Status == False && s.Failed == 0
	shows = nodepatch.Condition{Status: s.Status, Reason: verdict.Verified, Message: verdict.AllChecksPass}
	if s.Status == False {
		shows.Reason, shows.Message = s.reasons, kube.Shorten(s.Message())
	}
	return shows, s.Status != "" && s.facts.Gated && !isFresh && !goesStale
}

// Message says how the last failed round has failed.
func (s State) Message() string { return "rechecks fail: " + s.message }

// RemovesFailedTaint reports whether the node is proven, and has the failed taint.
func (s State) RemovesFailedTaint() bool { return s.isProven() && s.facts.Retainted }

func (s State) isProven() bool { return s.Status == True && s.passed >= s.settings.RecoveryThreshold }

// WroteCondition takes what became of the condition, and the facts since.
func (s State) WroteCondition(facts Facts, err error, now time.Time) State {
	s.facts, s.written, s.refreshAt = facts, err == nil, now.Add(RefreshInterval)
	return s
}

// Wrote takes what became of a write, and whether the Events were sent, too.
func (s State) Wrote(err error, sent bool, now time.Time) State {
	switch {
	case nodepatch.IsFinal(err):
		s.writeAt = now.Add(RefreshInterval)
	case err != nil && s.Status == False: // the API server may be back, and all well: wait for the next round that fails
		s.writeAt = time.Time{}
	case err != nil || !sent:
		s.writeAt = now.Add(s.settings.spread(retryInterval))
	default:
		s.writeAt = s.nextWrite(now)
	}
	return s
}

// WroteNothing is for a node to which nothing is to be done.
func (s State) WroteNothing() State {
	s.writeAt = time.Time{}
	return s
}

// nextWrite returns when the node is to show more of the verdict than it does: after a restart, after a time in which nothing was
// to be written, or because of a failed taint that was added since. It returns zero if nothing is to be written.
func (s State) nextWrite(now time.Time) time.Time {
	_, isDue := s.Condition(now)
	switch {
	case s.RemovesFailedTaint(), isDue && (s.isProven() || s.Status == False):
		return now
	case s.Status == False && s.Failed > 0 && s.written:
		return s.refreshAt
	default:
		return time.Time{}
	}
}
