package fleet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// workers is controller mode: the controller makes a worker for a node that is gated, reads its verdict, and releases the node.
type workers struct{}

// key has the uid, because a worker of an earlier Node with the same name is no evidence about this one.
func (workers) key(node *corev1.Node) nodeKey { return nodeKey{node.Name, string(node.UID)} }

// expects is false after a verdict, so that the next worker has all the time to start.
func (workers) expects(s snapshot) bool {
	if s.pod == nil {
		return s.isGated && s.Keys.ForeignTaint(Taints(s.node)) == nil
	}
	outcome, _ := WorkerOutcome(s.pod)
	return outcome != Passed && outcome != FailedRound
}

func (workers) writes(condition.Reasons) bool { return true }

func (workers) verifiesOpened() bool { return true }

func (workers) judge(e evidence) Finding { return e.downgradeIfServing(e.judgeWorker()) }

func (e evidence) judgeWorker() Finding {
	switch {
	case e.pod == nil:
		return e.judgeWithoutWorker()
	case !e.isExpected:
		return e.judgeVerdict()
	case e.isFalseByAgent() && e.container == "" && !e.absence.HasLasted(e.NotStartedAfter):
		// The failure of the last worker goes on until this one runs.
		return e.fromCondition()
	case e.isStillFailing():
		return Finding{State: Failed, Reason: e.judgedReason}
	}
	return e.judgePod()
}

// isStillFailing reports whether the next worker of a node that was opened manually starts or runs after an earlier one has
// reported a failure. No condition shows that failure.
func (e evidence) isStillFailing() bool {
	hadFailed := e.judgedState == Failed && e.judgedReason.Meaning().Check != ""
	return hadFailed && e.isOpened(e.node) && Attempt(e.pod) > 1 && !e.absence.HasLasted(e.NotStartedAfter)
}

// judgeVerdict judges a node whose worker has passed or failed. The node fails once it is not verified for FailedAfter, and goes
// on failing as long as the condition is False.
func (e evidence) judgeVerdict() Finding {
	finding := Finding{State: InProgress, Reason: condition.NotVerified, // the worker has passed, and runs until it is deleted
		Message: "all checks pass, but the node is not released: read the controller's log"}
	outcome, said := WorkerOutcome(e.pod)
	switch {
	case outcome == FailedRound:
		finding.Reported, finding.Message = condition.OfChecks(said.Failed), said.Message
		finding.Reason = finding.Reported.First()
	case e.unmet != "":
		finding.Reason, finding.Message = condition.NodeFailed, e.unmet
	}
	hasFailedLong := outcome == FailedRound && FailingFor(e.pod) >= e.FailedAfter
	if hasFailedLong || e.now.HasLasted(e.gatedSince, e.FailedAfter) || e.condition.Status == corev1.ConditionFalse {
		finding.State = Failed
	}
	return finding
}

// judgeWithoutWorker judges a node that has no worker.
func (e evidence) judgeWithoutWorker() Finding {
	if !e.isGated {
		return Finding{State: Unverified} // it gets none
	}
	finding := Finding{State: Unverified, Reason: condition.NoPod, Message: "there is no worker for this node: wait while " +
		"MAX_CONCURRENT_WORKERS other workers start, or read in the controller's log why it cannot create one"}
	isOverdue := e.absence.HasLasted(e.NotStartedAfter)
	if taint := e.Keys.ForeignTaint(Taints(e.node)); taint != nil {
		finding.Reason = condition.TaintsOfOthers
		finding.Message = fmt.Sprintf("the taint %s is still on the node (WAIT_FOR_TAINTS)", taint)
		isOverdue = e.now.HasLasted(e.gatedSince, e.FailedAfter)
	}
	if isOverdue {
		finding.State = Failed
	}
	return finding
}
