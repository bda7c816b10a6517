package remediation

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
)

// stuckAfter is how long a deletion may take. Then it no longer holds the next one.
const stuckAfter = 30 * time.Minute

// within counts the deletions of the last period.
func (l Ledger) within(period time.Duration, now clock.Now) (n int) {
	for _, deletion := range l.Deletions {
		if !now.IsOlder(deletion.Time, period) {
			n++
		}
	}
	return n
}

func (d Deletion) isInFlight() bool { return !d.Gone && !d.Stuck }

// has reports whether a node is or was to be replaced.
func (l Ledger) has(node types.UID) bool {
	return slices.ContainsFunc(l.Deletions, func(d Deletion) bool { return d.NodeUID == node })
}

// track notes which deletions have ended, which are stuck, and which have been followed by a verified node; and forgets old ones.
func (d *Decision) track(s Settings, in Input, now clock.Now) {
	present := make(map[types.UID]bool, len(in.Statuses))
	for _, status := range in.Statuses {
		present[status.Node.UID] = true
	}
	for i := range d.Ledger.Deletions {
		deletion := &d.Ledger.Deletions[i]
		switch {
		case !deletion.isInFlight():
		case !present[deletion.NodeUID]:
			deletion.Gone, d.Changed = true, true
		case now.IsOlder(deletion.Time, stuckAfter):
			deletion.Stuck, d.Changed = true, true
			d.NewlyStuck = append(d.NewlyStuck, *deletion)
		}
	}
	for _, status := range in.Statuses {
		node := status.Node
		// A node that is verified only while it is being deleted is no success of an earlier deletion.
		isDeleted := node.DeletionTimestamp != nil || d.Ledger.has(node.UID)
		if s.wasVerified(status) && !isDeleted && now.IsOlder(node.CreationTimestamp.Time, 0) { // else a clock was wrong
			d.answer(s.scopeOf(node), node.CreationTimestamp.Time)
		}
	}
	if tooMany := len(d.Ledger.Deletions) - kept; tooMany > 0 { // the oldest go
		d.Ledger.Deletions, d.Changed = d.Ledger.Deletions[tooMany:], true
	}
}
