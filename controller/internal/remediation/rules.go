package remediation

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// Rules keep a candidate from being replaced, in this order. Confirm adds what the live objects say: Changed, NoNodeClaim and
// Workload. Remediator adds LedgerFailed, Unreadable, DryRun and Refused.
func Rules() breaker.Table[Question] {
	return breaker.Table[Question]{
		{Rule: Protected, Holds: func(q Question) string { return protected(q.Candidate.Node) }},
		{Rule: NoNodePool, Holds: func(q Question) string { return q.Settings.noNodePool(q.Candidate.Node) }},
		// A control group that has just started does not fail yet: that withholds each deletion below, but is no breaker.
		{Rule: breaker.ControlGroup, All: true,
			Holds: func(q Question) string { return q.Settings.FailingLately(q.ControlGroup, q.Now) }},
		{Rule: breaker.ControlNode, All: true, Holds: func(q Question) string { return q.Settings.OwnNode(q.Statuses) }},
		{Rule: breaker.FailedRechecks, All: true, Holds: func(q Question) string { return breaker.TooManyFail(q.Statuses) }},
		{Rule: HourlyBudget, All: true, Holds: func(q Question) string { return q.spent(time.Hour, 3) }},
		{Rule: DailyBudget, All: true, Holds: func(q Question) string { return q.spent(24*time.Hour, 10) }},
		{Rule: Halted, All: true, Holds: func(q Question) string { return describeHalt(Cluster, q.Ledger.Guards[Cluster].Halted) }},
		{Rule: breaker.ControlGroup, Holds: func(q Question) string { return q.Settings.NotProvenFor(0, q.ControlGroup, q.Now) }},
		{Rule: Proof, Holds: Question.noProof},
		{Rule: InFlight, Holds: Question.inFlight},
		{Rule: FailedShare, Holds: Question.tooManyFailed},
		{Rule: Halted, Holds: Question.withheldByHalt},
		{Rule: LoopGuard, Holds: Question.loopGuard},
	}
}

// Breakers are the rules for every node. LedgerFailed is one of them, but no row: without the ledger nothing is decided.
func Breakers() []Rule { return append(Rules().Breakers(), LedgerFailed) }

// noProof demands a younger node that is verified: a new node would do better than this one. Both creation times come from the
// API server, and the other node's annotation says that our checks have passed there, so that a restart changes nothing.
func (q Question) noProof() string {
	node := q.Candidate.Node
	for _, status := range q.Statuses {
		isYounger := status.Node.UID != node.UID && node.CreationTimestamp.Before(&status.Node.CreationTimestamp)
		if isYounger && q.Settings.wasVerified(status) {
			return ""
		}
	}
	return "no node that was created after this one (" + formatTime(node.CreationTimestamp.Time) + ") has been verified"
}

// inFlight allows one deletion at a time.
func (q Question) inFlight() string {
	for _, deletion := range q.Ledger.Deletions {
		if deletion.isInFlight() {
			return fmt.Sprintf("node %s is still being replaced (since %s)", deletion.Node, formatTime(deletion.Time))
		}
	}
	return ""
}

// spent allows so many deletions in a period, in the whole cluster, whatever its size.
func (q Question) spent(period time.Duration, allowed int) string {
	if n := q.Ledger.within(period, q.Now); n >= allowed {
		return fmt.Sprintf("%d deletions within %s, at most %d are allowed", n, period, allowed)
	}
	return ""
}

// tooManyFailed allows a deletion only while at most a fifth of the nodes of a scope have failed, or one. Nodes that are being
// replaced count as failed as long as they are there, whatever becomes of their pods. Gated nodes whose condition is False count
// too: a new leader has to watch an agent for minutes before it finds by itself that the agent does not start or report.
func (q Question) tooManyFailed() string {
	nodes, failed, scope := 0, 0, q.Settings.scopeOf(q.Candidate.Node)
	for _, status := range q.Statuses {
		if q.Settings.scopeOf(status.Node) != scope {
			continue
		}
		nodes++
		isShown := status.Gated && q.Settings.Fleet.Condition(status.Node).Status == corev1.ConditionFalse
		if status.State == fleet.Failed || isShown || q.Ledger.has(status.Node.UID) {
			failed++
		}
	}
	if allowed := max(1, nodes/5); failed > allowed {
		return fmt.Sprintf("%d of %d nodes of %s have failed: at most %d may fail", failed, nodes, scopeName(scope), allowed)
	}
	return ""
}
