package fleet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// agents is daemonset mode: an agent verifies its node, writes what fails to the condition, and releases the node itself.
type agents struct{}

func (agents) key(node *corev1.Node) nodeKey { return nodeKey{name: node.Name} }

func (agents) expects(snapshot) bool { return true }

func (agents) writes(reason condition.Reasons) bool { return reason.Meaning().Controller }

// verifiesOpened is false because a DaemonSet's agent comes to every node without the label, opened or not.
func (agents) verifiesOpened() bool { return false }

func (agents) judge(e evidence) Finding {
	finding := e.downgradeIfServing(e.judgePod())
	hadFailed := e.judgedState == Failed && e.judgedReason == FirstReason(e.condition)
	isRenewed := MayBeSandbox(e.condition) && IsReplaced(e.pod, e.condition.LastTransitionTime)
	if e.isGated && finding.State != Failed && hadFailed && isRenewed {
		// A new agent does not end a failure: it releases the node, fails too, or does not start.
		wanted := finding.EventsWanted
		finding = e.fromCondition()
		finding.EventsWanted = wanted
	}
	return finding
}

// downgradeIfServing makes a failure Pending if the node serves while it waits to be verified again after a reboot: only a check
// that fails is evidence against such a node.
func (e evidence) downgradeIfServing(finding Finding) Finding {
	isServing := e.isRebooted && !HasTaint(e.node, e.Keys.TaintKey)
	if isServing && finding.State == Failed && finding.Reported == 0 {
		finding.State = Pending
	}
	return finding
}

// judgePod judges a node by its pod. If that runs, the condition must show in time what fails.
func (e evidence) judgePod() Finding {
	// A container that has crashed counts as running only once it has settled.
	isRunning := e.container != "" && (!e.absence.Is || !hasRestarted(e.pod))
	isOverdue := e.now.Since(e.runningSince) >= e.SilentAfter && HasTaint(e.node, e.Keys.TaintKey) // the agent marks no other node
	switch {
	case !isRunning:
		return e.judgeNotRunning()
	case e.isFalseByAgent() && e.isGated:
		return e.fromCondition()
	case isOverdue:
		return Finding{State: Failed, Reason: condition.Silent, Message: fmt.Sprintf("pod %s/%s has run for %s and has neither "+
			"verified the node nor reported a failure: read its log, and check the node's path to the API server",
			e.pod.Namespace, e.pod.Name, e.SilentAfter)}
	}
	return Finding{State: InProgress}
}

// judgeNotRunning judges a node whose pod does not run, or crashes. It fails once that has lasted, and the reason is known.
func (e evidence) judgeNotRunning() Finding {
	finding := Finding{State: Pending}
	if e.pod == nil {
		finding.State = Unverified
	}
	finding.Reason, finding.Message = e.whyNotRunning()
	isOverdue := e.isGated && e.absence.HasLasted(e.NotStartedAfter)
	finding.EventsWanted = isOverdue && finding.Reason == 0
	if isOverdue && !finding.EventsWanted {
		finding.State = Failed
	}
	return finding
}
