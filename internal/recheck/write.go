package recheck

import (
	"time"

	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Show is what is to be written to the node.
type Show struct {
	Condition *nodepatch.Condition // nil: it stays as it is
	IsProven  bool                 // the failed taint goes, whatever becomes of the condition: nothing delays it
}

// Shows returns what is to be written to the node: nothing while somebody drains it or takes it away.
func (s State) Shows(now time.Time) Show {
	if s.facts.Untouchable != "" {
		return Show{}
	}
	show := Show{IsProven: s.isProven()}
	if s.isConditionDue(now) {
		show.Condition = &nodepatch.Condition{Status: True, Reason: verdict.Verified, Message: verdict.AllChecksPass}
		if s.Status == False {
			show.Condition = &nodepatch.Condition{Status: False, Reason: s.reasons, Message: kube.Shorten(s.Message())}
		}
	}
	return show
}

// Message says how the last failed round has failed.
func (s State) Message() string { return verdict.RecheckMessage(s.message) }

// isConditionDue reports whether the condition does not show the verdict, or is to be refreshed. A False is refreshed only while
// rounds fail: one that goes stale says that the node may be recovering, and the controller does not re-taint it.
func (s State) isConditionDue(now time.Time) bool {
	isFresh := s.written && (s.Status == True || now.Before(s.refreshAt))
	goesStale := s.Status == False && s.Failed == 0
	return s.Status != "" && s.facts.Gated && !isFresh && !goesStale
}

func (s State) isProven() bool { return s.Status == True && s.passed >= s.settings.RecoveryThreshold }

// afterLook takes a read that belongs to no round.
func (s State) afterLook(before Facts, now time.Time) State {
	isNew := s.facts.Retainted && !before.Retainted
	if s.written || isNew { // else the node shows what was written before the verdict
		s = s.recheckAfterController()
	}
	return s.planWrite(now)
}

// afterWrite plans the next write.
func (s State) afterWrite(w Written, now time.Time) State {
	if w.Condition {
		s.written, s.refreshAt = true, now.Add(RefreshInterval)
	}
	s.writeAt = time.Time{}
	switch {
	case nodepatch.IsFinal(w.Err):
		s.writeAt = now.Add(RefreshInterval)
	case w.Err != nil && s.Status == False: // the API server may be back, and all well: wait for the next round that fails
	case w.Err != nil:
		s.writeAt = now.Add(s.settings.spread(retryInterval))
	case s.facts.Untouchable == "":
		s = s.planWrite(now)
	}
	return s
}

// planWrite plans a write, unless one is planned: the node is to show more of the verdict than it does after a restart, after a
// time in which nothing was to be written, or because of a failed taint that was added since.
func (s State) planWrite(now time.Time) State {
	switch isShown := s.isConditionDue(now) && (s.isProven() || s.Status == False); {
	case !s.writeAt.IsZero():
	case isShown, s.isProven() && s.facts.Retainted:
		s.writeAt = now
	case s.Status == False && s.Failed > 0 && s.written:
		s.writeAt = s.refreshAt
	}
	return s
}
