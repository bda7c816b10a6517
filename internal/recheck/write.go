package recheck

import (
	"time"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Show is what is to be written to the node.
type Show struct {
	Condition *nodepatch.Condition // nil: it stays as it is
	IsProven  bool                 // the failed taint goes, whatever becomes of the condition: nothing delays it
}

// Shows returns what is to be written to the node: nothing while somebody drains it or takes it away, nor where it is not
// verified any more.
func (s State) Shows(now time.Time) Show {
	if s.facts.Untouchable != "" || !s.facts.Verified {
		return Show{}
	}
	show := Show{IsProven: s.isProven()}
	if s.isConditionDue(now) {
		show.Condition = &nodepatch.Condition{Status: True, Reason: condition.Verified.String(), Message: verdict.AllChecksPass}
		if s.Status == False {
			show.Condition = &nodepatch.Condition{Status: False, Reason: s.reasons.String(), Message: verdict.Shorten(s.Message())}
		}
	}
	return show
}

// Message says how the last failed round has failed.
func (s State) Message() string { return verdict.RecheckMessage(s.message) }

// isConditionDue reports whether the condition does not show the verdict, or is due for a refresh. A False is written only while
// rounds fail: a False that goes stale says that the node may be recovering, and the controller does not re-taint it. A condition
// that another client has removed is written again, a False with its refresh, and a True no earlier than a refresh would be due:
// that client, for example a webhook, may do so each time.
func (s State) isConditionDue(now time.Time) bool {
	switch s.Status {
	case True:
		isRemoved := s.facts.Shown.Status == "" && !now.Before(s.refreshAt)
		return s.facts.Gated && (!s.written || isRemoved)
	case False:
		isFresh := s.written && now.Before(s.refreshAt)
		return s.facts.Gated && !isFresh && s.Failed > 0
	}
	return false
}

func (s State) isProven() bool { return s.Status == True && s.passed >= s.settings.RecoveryThreshold }

// AfterLook takes a read that belongs to no round.
func (s State) AfterLook(read Facts, now time.Time) State {
	isNew := read.Retainted && !s.facts.Retainted
	s.facts = read
	if s.written || isNew { // else the node shows what was written before the verdict
		s = s.proveAgain()
	}
	return s.planWrite(now)
}

// AfterWrite takes what became of a write, after which the last read of the node is read, and plans the next write.
func (s State) AfterWrite(w Written, read Facts, now time.Time) State {
	s.facts = read
	if w.Condition {
		s.written, s.refreshAt = true, now.Add(RefreshInterval)
	}
	s.writeAt = time.Time{}
	switch {
	case nodepatch.IsFinal(w.Err):
		s.writeAt = now.Add(RefreshInterval)
	case w.Err != nil && s.Status == False: // no retry: the API server may be back, and the next round that fails plans a write
	case w.Err != nil:
		s.writeAt = now.Add(s.settings.spread(retryInterval))
	case s.facts.Untouchable == "":
		s = s.planWrite(now)
	}
	return s
}

// planWrite plans a write, unless one is planned: the node is to show more of the verdict than it does after a restart, after a
// time in which nothing was to be written, or because of a failed taint that was added since. When a write is due:
//
//	True, proven       now, if the condition does not show it, or the node has the failed taint
//	False, it fails    now, if the condition does not show it; else at refreshAt
//	otherwise          not at all: AfterRound plans the write of a verdict that changes, AfterWrite repeats a write that failed
func (s State) planWrite(now time.Time) State {
	if !s.writeAt.IsZero() {
		return s
	}
	isDue := s.isConditionDue(now) && (s.isProven() || s.Status == False)
	switch {
	case isDue, s.isProven() && s.facts.Retainted:
		s.writeAt = now
	case s.Status == False && s.Failed > 0 && s.written:
		s.writeAt = s.refreshAt
	}
	return s
}
