package remediation

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// proof demands a younger node that is verified: a new node would do better than this one. Both creation times come from the
// API server, and the other node's annotation says that our checks have passed there, so that a restart changes nothing.
func (s Settings) proof(node *corev1.Node, statuses []fleet.Status) (Rule, string) {
	for _, status := range statuses {
		if s.wasVerified(status) && status.Node.UID != node.UID && node.CreationTimestamp.Before(&status.Node.CreationTimestamp) {
			return "", ""
		}
	}
	return Proof, "no node that was created after this one (" + clock(node.CreationTimestamp.Time) + ") has been verified"
}

// wasVerified reports whether a node is verified by our checks, not by a label that somebody has written.
func (s Settings) wasVerified(status fleet.Status) bool {
	_, released := status.Node.Annotations[s.Fleet.Request.Annotation]
	return status.State == fleet.Verified && released
}

// breakers returns what holds every deletion now, with the numbers.
func (s Settings) breakers(in Input, ledger Ledger, now time.Time) map[Rule]string {
	found := s.Holding(in.Statuses, in.ControlGroup, now)
	for rule, budget := range budgets() {
		if n := ledger.within(budget.period, in.ServerNow); n >= budget.deletions {
			found[rule] = fmt.Sprintf("%d deletions within %s, at most %d are allowed", n, budget.period, budget.deletions)
		}
	}
	if halted := ledger.halted(Cluster); halted != "" {
		found[Halted] = halted
	}
	return found
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
