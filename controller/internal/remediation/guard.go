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
		if slices.ContainsFunc(d.Ledger.unanswered(scope), func(deletion Deletion) bool { return deletion.Time.Before(created) }) {
			guard := d.Ledger.Guards[scope]
			guard.Answered = created
			d.Ledger.Guards[scope] = guard
			d.Changed = true
		}
	}
}

// guard holds the next deletion in a scope until the last one has been answered, else for longer and longer, else for good.
func (d *Decision) guard(scope string, now clock.Now) (Rule, string) {
	if text := d.Ledger.halted(scope); text != "" {
		return Halted, text
	}
	unanswered := d.Ledger.unanswered(scope)
	n := len(unanswered)
	if n == 0 {
		return "", ""
	}
	wait := pauses()[min(n, len(pauses()))-1]
	if last := unanswered[n-1].Time; !now.IsOlder(last, wait) {
		return LoopGuard, fmt.Sprintf("deletions in %s since a new node was last verified: %d; wait until %s (%s after the last)",
			scopeName(scope), n, formatTime(last.Add(wait)), wait)
	}
	if n < len(pauses()) {
		return "", ""
	}
	guard := d.Ledger.Guards[scope]
	guard.Halted = now.Server()
	d.Ledger.Guards[scope] = guard
	d.Changed = true
	d.Halted = append(d.Halted, scope)
	return Halted, d.Ledger.halted(scope)
}

// unanswered returns the deletions of a scope, in their order, that no verified node has followed and nobody has cleared.
func (l Ledger) unanswered(scope string) (found []Deletion) {
	for _, deletion := range l.Deletions {
		inScope := scope == Cluster || deletion.NodePool == scope
		if inScope && !l.isAnswered(deletion, deletion.NodePool) && !l.isAnswered(deletion, scope) {
			found = append(found, deletion)
		}
	}
	return found
}

func (l Ledger) isAnswered(deletion Deletion, scope string) bool {
	return deletion.Time.Before(l.Guards[scope].Answered)
}

// halted says since when a scope is halted, and how that is cleared, or "".
func (l Ledger) halted(scope string) string {
	since := l.Guards[scope].Halted
	if since.IsZero() {
		return ""
	}
	return fmt.Sprintf("halted in %s since %s: deletions led to no verified node; "+
		"find out why, then set the annotation %s=%s on the ledger's ConfigMap",
		scopeName(scope), formatTime(since), ClearHalt, scope)
}

// halts returns the scopes that are halted: somebody has to clear them.
func (l Ledger) halts() []string {
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
