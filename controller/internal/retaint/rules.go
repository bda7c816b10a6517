package retaint

import (
	"cmp"
	"fmt"
	"time"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/renewal"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Rules keep a candidate from being re-tainted, in this order. Tainter adds Changed, by the live Node, and Refused.
func Rules() breaker.Table[Question] {
	return breaker.Table[Question]{
		// A control group that has just started does not fail yet: that withholds each re-taint below, but is no breaker.
		{Rule: breaker.ControlGroup, All: true,
			Holds: func(q Question) string { return q.Settings.FailingLately(q.ControlGroup, q.Now) }},
		{Rule: breaker.ControlNode, All: true, Holds: func(q Question) string { return q.Settings.OwnNode(q.Statuses) }},
		{Rule: breaker.FailedRechecks, All: true, Holds: func(q Question) string { return breaker.TooManyFail(q.Statuses) }},
		{Rule: breaker.ControlGroup, Holds: Question.controlGroupNotProven},
		{Rule: Changed, Holds: Question.behind},
		{Rule: CoolDown, Holds: Question.coolingDown},
		{Rule: Peers, Holds: Question.tooFewPeers},
		{Rule: Budget, Holds: Question.overBudget},
	}
}

// isCandidate reports whether a node that was gated is verified and fails its rechecks now: somebody has just written so. An
// outage may reach this node first: it waits for the next round of the control group.
func (q Question) isCandidate() bool {
	status, node := q.Candidate, q.Candidate.Node
	fails := status.State == fleet.Verified && status.Recheck.IsFresh(q.Now) && !renewal.InDoubt(q.Settings.Fleet, status, q.Now)
	if !q.Settings.Enabled || !fails || q.ControlGroup.Began.Before(status.Recheck.FailedAt) {
		return false
	}
	return status.Untouchable == "" && !fleet.IsControlPlane(node) && q.Settings.Fleet.WasGated(node) &&
		!fleet.HasTaint(node, q.Settings.Fleet.Keys.FailedTaintKey)
}

// controlGroupNotProven demands more time of the control group for a node that failed in an outage: it has recovered by then, or
// fails for another reason.
func (q Question) controlGroupNotProven() string {
	text := q.Settings.NotProvenFor(0, q.ControlGroup, q.Now)
	if text != "" || !q.Candidate.Recheck.FailedAt.Before(q.ControlGroup.PassedSince) {
		return text
	}
	text = q.Settings.NotProvenFor(q.Settings.Fleet.Rechecks.RecoversAfter(), q.ControlGroup, q.Now)
	if text != "" {
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
	if at, retainted := q.Retainted[q.Candidate.Node.UID]; retainted && q.Now.Since(at) < q.Settings.CoolDown {
		return fmt.Sprintf("the node was re-tainted %s ago: it is not re-tainted again within %s",
			q.Now.Since(at).Truncate(time.Second), q.Settings.CoolDown)
	}
	// A time ahead of the clock does not count: it could keep the node from being re-tainted for years.
	opened, err := time.Parse(time.RFC3339, q.Candidate.Node.Annotations[nodepatch.Opened])
	if err == nil && !q.Now.IsStale(opened, q.Settings.CoolDown) {
		return fmt.Sprintf("somebody opened it at %s: it is not re-tainted within %s", opened.Format(time.RFC3339), q.Settings.CoolDown)
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
	if condition.Parse(q.Settings.Fleet.Condition(q.Candidate.Node).Reason) != condition.PeersFailed || others >= enough {
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
			if status.Retainted || of != "" && fleet.HasTaint(status.Node, q.Settings.Fleet.Keys.FailedTaintKey) {
				tainted++
			}
		}
		if allowed := max(1, nodes/10); tainted >= allowed {
			return fmt.Sprintf("%d of %d nodes of %s have the taint %s: at most %d may have it",
				tainted, nodes, cmp.Or(of, "the cluster"), q.Settings.Fleet.Keys.FailedTaintKey, allowed)
		}
	}
	return ""
}
