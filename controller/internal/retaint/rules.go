package retaint

import (
	"cmp"
	"fmt"
	"time"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Rules are all that can keep a candidate from being re-tainted.
func Rules() breaker.Table[Question] {
	return breaker.Table[Question]{
		{Rule: breaker.ControlGroup, All: true, Try: "the cluster's DNS, API, network",
			Doc:   "the same checks passed in the controller's own pod for under `controlGroupFor` (10m), or not since the node failed",
			Holds: func(q Question) string { return q.Failing(q.ControlGroup, q.Now) }},
		{Rule: breaker.ControlNode, All: true, Try: "that node",
			Doc: "the controller's own node is not released yet or fails; after a minute another replica leads, " +
				"if its own node passes",
			Holds: func(q Question) string { return q.OwnNode(q.Statuses) }},
		{Rule: breaker.FailedRechecks, All: true, Try: "the cause is common: read the condition",
			Doc:   "at least 10 % of the nodes, and at least 3, fail now or are re-tainted; it withholds remediation too",
			Holds: func(q Question) string { return breaker.TooManyFail(q.Statuses) }},
		{Rule: breaker.ControlGroup, Holds: Question.unproven},
		{Rule: Changed, Doc: "the Node, read live, is not as in the cache; or the cache does not show the last re-taint",
			Holds: Question.behind},
		{Rule: CoolDown, Doc: "this node was re-tainted or opened less than `coolDown` (10m) ago", Try: "the node: it may flap",
			Holds: Question.coolingDown},
		{Rule: Peers, Doc: "`PeersFailed` alone, while fewer than 3 other nodes are ready: this one may be the only good one",
			Try: "the other nodes", Holds: Question.tooFewPeers},
		{Rule: Budget,
			Doc: "more than 10 % of its group, or of the cluster, would then have the failed taint; each may always have one",
			Try: "repair or replace the nodes with the taint", Holds: Question.overBudget},
		{Rule: Refused, Doc: "the API server refuses the taint (an admission policy or webhook)", Try: "its message"},
	}
}

// isCandidate reports whether a node that was gated is verified and fails its rechecks now: somebody has just written so. An
// outage may reach this node first: it waits for the next round of the control group.
func (q Question) isCandidate() bool {
	status := q.Candidate
	return q.Enabled && status.State == fleet.Verified && status.Untouchable == "" && status.Recheck.IsFresh(q.Now) &&
		!status.InDoubt && !fleet.HasTaint(status.Node, q.Fleet.Request.FailedTaintKey) && !fleet.IsControlPlane(status.Node) &&
		q.Fleet.WasGated(status.Node) && !q.ControlGroup.Began.Before(status.Recheck.FailedAt)
}

// unproven demands more time of the control group for a node that failed in an outage: it has recovered by then, or fails for
// another reason.
func (q Question) unproven() string {
	text := q.Unproven(q.ControlGroup, 0, q.Now)
	if text != "" || !q.Candidate.Recheck.FailedAt.Before(q.ControlGroup.PassedSince) {
		return text
	}
	if text = q.Unproven(q.ControlGroup, q.Fleet.Rechecks.RecoversAfter(), q.Now); text != "" {
		text += ", because the node failed before the checks passed"
	}
	return text
}

func (q Question) behind() string {
	if q.Behind {
		return "the cache does not show the last re-taint yet"
	}
	return ""
}

func (q Question) coolingDown() string {
	if at, retainted := q.Retainted[q.Candidate.Node.UID]; retainted && q.Now.Since(at) < q.CoolDown {
		return fmt.Sprintf("the node was re-tainted %s ago: it is not re-tainted again within %s",
			q.Now.Since(at).Truncate(time.Second), q.CoolDown)
	}
	// A time ahead of the clock does not count: it could keep the node from being re-tainted for years.
	opened, err := time.Parse(time.RFC3339, q.Candidate.Node.Annotations[nodepatch.Opened])
	if err == nil && !q.Now.IsStale(opened, q.CoolDown) {
		return fmt.Sprintf("somebody opened it at %s: it is not re-tainted within %s", opened.Format(time.RFC3339), q.CoolDown)
	}
	return ""
}

func (q Question) tooFewPeers() string {
	const enough = 3
	others := 0
	for _, status := range q.Statuses {
		if status.Node.UID != q.Candidate.Node.UID && fleet.IsNodeReady(status.Node) {
			others++
		}
	}
	if q.Fleet.Condition(q.Candidate.Node).Reason != verdict.PeersFailed || others >= enough {
		return ""
	}
	return fmt.Sprintf("no other agent answers; other ready nodes: %d, and blaming this one needs at least %d", others, enough)
}

// overBudget allows a tenth of a group's nodes to have the failed taint, or one; and likewise of all nodes: a fault may creep
// through many small groups.
func (q Question) overBudget() string {
	for _, of := range []string{fleet.GroupOf(q.Candidate.Node), ""} {
		nodes, tainted := 0, 0
		for _, status := range q.Statuses {
			if of != "" && fleet.GroupOf(status.Node) != of {
				continue
			}
			nodes++
			// An agent's taint on a new node is about its group alone.
			if status.Retainted || of != "" && fleet.HasTaint(status.Node, q.Fleet.Request.FailedTaintKey) {
				tainted++
			}
		}
		if allowed := max(1, nodes/10); tainted >= allowed {
			return fmt.Sprintf("%d of %d nodes of %s have the taint %s: at most %d may have it",
				tainted, nodes, cmp.Or(of, "the cluster"), q.Fleet.Request.FailedTaintKey, allowed)
		}
	}
	return ""
}
