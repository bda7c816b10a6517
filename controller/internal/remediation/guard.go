package remediation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
)

// Cluster is the scope of the loop guard that all NodePools and node groups share.
const Cluster = "*"

// pauses returns how long each deletion that nothing good has followed holds the next one. After the last, they halt.
func pauses() []time.Duration {
	return []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour, 2 * time.Hour}
}

// answer notes that a node which was created after a deletion is verified: one of the same scope for that scope's guard,
// one of any scope for the cluster's.
func (d *Decision) answer(of string, created time.Time) {
	if of == "" {
		return
	}
	for _, scope := range []string{of, Cluster} {
		isAnswered := func(deletion Deletion) bool { return deletion.Time.Before(created) }
		if slices.ContainsFunc(d.Ledger.unanswered(scope), isAnswered) {
			guard := d.Ledger.Guards[scope]
			guard.Answered = created
			d.Ledger.Guards[scope] = guard
			d.Changed = true
		}
	}
}

// scopes returns those whose guards a candidate's deletion depends on.
func (q Question) scopes() []string { return []string{q.Settings.scopeOf(q.Candidate.Node), Cluster} }

// loopGuard holds the next deletion until the last one has been answered, else for longer and longer.
func (q Question) loopGuard() string {
	for _, scope := range q.scopes() {
		n, until, wait := q.Ledger.pause(scope)
		if n > 0 && !q.Now.IsOlder(until, 0) {
			return fmt.Sprintf("deletions in %s since a new node was last verified: %d; wait until %s (%s after the last)",
				scopeName(scope), n, formatTime(until), wait)
		}
	}
	return ""
}

// withheldByHalt holds every deletion for good, once the last pause is over and nothing good has followed.
func (q Question) withheldByHalt() string {
	for _, scope := range q.scopes() {
		if text := describeHalt(scope, q.Ledger.haltBegan(scope, q.Now)); text != "" {
			return text
		}
	}
	return ""
}

// pause returns how many deletions of a scope nothing good has followed, until when the next one waits for that, and how long
// that is after the last.
func (l Ledger) pause(scope string) (n int, until time.Time, wait time.Duration) {
	unanswered := l.unanswered(scope)
	if n = len(unanswered); n == 0 {
		return 0, time.Time{}, 0
	}
	wait = pauses()[min(n, len(pauses()))-1]
	return n, unanswered[n-1].Time.Add(wait), wait
}

// haltBegan returns since when a scope is halted, which may be now; zero: it is not.
func (l Ledger) haltBegan(scope string, now clock.Now) time.Time {
	if began := l.Guards[scope].Halted; !began.IsZero() {
		return began
	}
	n, until, _ := l.pause(scope)
	if n >= len(pauses()) && now.IsOlder(until, 0) {
		return now.Server()
	}
	return time.Time{}
}

// noteHalt notes the first of some scopes that is halted.
func (d *Decision) noteHalt(scopes []string, now clock.Now) {
	for _, scope := range scopes {
		guard := d.Ledger.Guards[scope]
		since := d.Ledger.haltBegan(scope, now)
		if since.IsZero() {
			continue
		}
		if guard.Halted.IsZero() {
			guard.Halted = since
			d.Ledger.Guards[scope] = guard
			d.Changed, d.NewlyHalted = true, append(d.NewlyHalted, scope)
		}
		return
	}
}

// unanswered returns the deletions of a scope, in their order, that no verified node has followed and nobody has cleared.
func (l Ledger) unanswered(scope string) (found []Deletion) {
	for _, deletion := range l.Deletions {
		inScope := scope == Cluster || deletion.Scope == scope
		if inScope && !l.isAnswered(deletion, deletion.Scope) && !l.isAnswered(deletion, scope) {
			found = append(found, deletion)
		}
	}
	return found
}

func (l Ledger) isAnswered(deletion Deletion, scope string) bool {
	return deletion.Time.Before(l.Guards[scope].Answered)
}

// describeHalt says since when a scope is halted, and how that is cleared, or "" if it is not.
func describeHalt(scope string, since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return fmt.Sprintf("halted in %s since %s: deletions led to no verified node; "+
		"find out why, then set the annotation %s=%s on the ledger's ConfigMap",
		scopeName(scope), formatTime(since), ClearHalt, scope)
}

// haltedScopes returns the scopes that are halted: somebody has to clear them.
func (l Ledger) haltedScopes() []string {
	isRunning := func(scope string) bool { return l.Guards[scope].Halted.IsZero() }
	return slices.DeleteFunc(slices.Sorted(maps.Keys(l.Guards)), isRunning)
}

func scopeName(scope string) string {
	if scope == Cluster {
		return "the cluster"
	}
	if strings.Contains(scope, "=") {
		return scope
	}
	return "NodePool " + scope
}

// clear ends the halts of the scopes that an annotation names, separated by commas. The cluster's scope stands for all of them.
func (l *Ledger) clear(scopes string, now clock.Now) {
	named := strings.Split(strings.ReplaceAll(scopes, " ", ""), ",")
	for scope := range l.Guards {
		if slices.Contains(named, scope) || slices.Contains(named, Cluster) {
			l.Guards[scope] = Guard{Answered: now.Server()}
		}
	}
}
