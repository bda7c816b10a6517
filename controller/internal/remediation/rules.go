package remediation

import (
	"fmt"
	"time"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// Rules are all that can keep a candidate from being replaced. Confirm asks those about its NodeClaim and its pods.
func Rules() breaker.Table[Question] {
	return breaker.Table[Question]{
		{Rule: Protected, Try: "declare the startup taint in the NodePool",
			Doc: "the Node or NodeClaim has the annotation `karpenter.sh/do-not-disrupt`, the annotation or label " +
				"`node-ready/do-not-delete`, or is of the control plane or etcd; or the NodeClaim is initialized: Karpenter does not " +
				"wait for a startup taint that the NodePool does not declare",
			Holds: func(q Question) string { return protected(q.Candidate.Node) }},
		{Rule: NoNodePool, Doc: "there is no NodePool that would replace the node", Try: "delete the machine by hand",
			Holds: func(q Question) string { return q.noNodePool(q.Candidate.Node) }},
		{Rule: breaker.ControlGroup, All: true, Try: "the cluster's DNS, API, network",
			Doc:   "the same checks have not passed in the controller's own pod for `controlGroupFor` (5m)",
			Holds: func(q Question) string { return q.Failing(q.ControlGroup, q.Now) }},
		{Rule: breaker.ControlNode, All: true, Doc: "the controller's own node waits for its release or has failed", Try: "that node",
			Holds: func(q Question) string { return q.OwnNode(q.Statuses) }},
		{Rule: breaker.FailedRechecks, All: true, Doc: "as for re-taint", Try: "the cause is common: read the condition",
			Holds: func(q Question) string { return breaker.TooManyFail(q.Statuses) }},
		{Rule: LedgerFailed, All: true, Try: "rights; the clocks; the error",
			Doc: "ConfigMap `FULLNAME-remediation` cannot be read or written, or was emptied; or the API server's clock is not known: " +
				"it jumped some minutes ago"},
		{Rule: HourlyBudget, All: true, Doc: "this release has made 3 deletions in an hour, in the whole cluster",
			Holds: func(q Question) string { return q.spent(time.Hour, 3) }},
		{Rule: DailyBudget, All: true, Doc: "it has made 10 deletions in a day",
			Holds: func(q Question) string { return q.spent(24*time.Hour, 10) }},
		{Rule: Halted, All: true, Try: "find out why, then clear it",
			Doc:   "2h after the last of four deletions, no newer node is verified: Event `RemediationHalted`",
			Holds: func(q Question) string { return haltText(Cluster, q.Ledger.Guards[Cluster].Halted) }},
		{Rule: breaker.ControlGroup, Holds: func(q Question) string { return q.Unproven(q.ControlGroup, 0, q.Now) }},
		{Rule: Proof, Doc: "no node that was created after this one has been verified", Try: "the cause is common: read the failure",
			Holds: Question.noProof},
		{Rule: InFlight, Doc: "another node is being replaced; after 30m (Event `RemediationStuck`) the next one may be replaced",
			Try: "Karpenter's log", Holds: Question.inFlight},
		{Rule: FailedShare, Doc: "more than 20 % of the NodePool's nodes, and more than one node, have failed",
			Try: "the cause is common: read the failure", Holds: Question.tooManyFailed},
		{Rule: Halted, Holds: Question.halted},
		{Rule: LoopGuard, Doc: "no node created since the last deletion has been verified: the next one waits 30m, then 1h, 2h",
			Holds: Question.loopGuard},
		{Rule: Changed, Doc: "the objects, read live, are not as in the cache"},
		{Rule: NoNodeClaim, Doc: "there is no NodeClaim, or it is for another machine", Try: "delete the machine by hand"},
		{Rule: Workload, Try: "drain the node",
			Doc: "the node runs a pod that is not of a DaemonSet, not static, not finished, and has no ready replica elsewhere"},
		{Rule: Unreadable, Doc: "the objects cannot be read live", Try: "rights; the error"},
		{Rule: DryRun, Doc: "no other rule withholds it: it would be deleted"},
		{Rule: Refused, Doc: "the API server refuses the deletion", Try: "its message"},
	}
}

// noProof demands a younger node that is verified: a new node would do better than this one. Both creation times come from the
// API server, and the other node's annotation says that our checks have passed there, so that a restart changes nothing.
func (q Question) noProof() string {
	node := q.Candidate.Node
	for _, status := range q.Statuses {
		if q.wasVerified(status) && status.Node.UID != node.UID && node.CreationTimestamp.Before(&status.Node.CreationTimestamp) {
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
// replaced count as failed as long as they are there, whatever becomes of their pods.
func (q Question) tooManyFailed() string {
	nodes, failed, scope := 0, 0, q.scopeOf(q.Candidate.Node)
	for _, status := range q.Statuses {
		if q.scopeOf(status.Node) != scope {
			continue
		}
		nodes++
		if status.State == fleet.Failed || q.Ledger.has(status.Node.UID) {
			failed++
		}
	}
	if allowed := max(1, nodes/5); failed > allowed {
		return fmt.Sprintf("%d of %d nodes of %s have failed: at most %d may fail", failed, nodes, scopeName(scope), allowed)
	}
	return ""
}
