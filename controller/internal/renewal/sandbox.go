package renewal

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// renewalTakes is how long an agent's pod is waited for: its deletion, one in 10 s in the cluster, and the start of the next.
const renewalTakes = 5 * time.Minute

// sandboxFailure is the failure of a node that the sandbox of its agent may cause, at one moment. Whether the node is in doubt,
// and its agent renewable, depends on which agent runs, and whether that has failed too: it had the time to pass, and has not.
//
//	                           in doubt               renewable
//	the first agent runs       yes                    once it has failed
//	the next has not started   yes                    no
//	the second agent runs      until it has failed    no: re-taint and remediation come before a third one
//	the time for both is over  no                     once the agent that runs has failed
type sandboxFailure struct {
	began      metav1.Time // by the API server's clock, so that another leader decides the same
	isOver     bool        // the time for a renewal and for the second agent has passed
	isReplaced bool        // the first agent is gone
	hasFailed  bool        // the agent that runs
}

// sandboxFailureOf returns the failure of a node. It returns false if the node does not fail, or the sandbox cannot be the cause,
// or no DaemonSet would make another pod.
func sandboxFailureOf(s fleet.Settings, status fleet.Status, now clock.Now) (f sandboxFailure, isSuspected bool) {
	condition := s.Condition(status.Node)
	fails := status.Recheck.IsFresh(now) || status.State == fleet.Failed && status.Reason == fleet.FirstReason(condition)
	hasDaemonSet := status.Pod == nil || metav1.GetControllerOf(status.Pod) != nil
	if s.Workers || !fails || !hasDaemonSet || !fleet.MayBeSandbox(condition) { // each worker has a sandbox of its own
		return sandboxFailure{}, false
	}
	timeToPass, hasReported := s.FailedAfter, true
	if status.State == fleet.Verified { // a failing agent reports it
		timeToPass = s.Rechecks.Rounds(s.Rechecks.RecoveryThreshold + 1)
		hasReported = status.RunningSince.Before(status.Recheck.Refreshed)
	}
	began := condition.LastTransitionTime
	return sandboxFailure{
		began: began, isOver: now.IsStale(began.Time, timeToPass+renewalTakes), isReplaced: fleet.IsReplaced(status.Pod, began),
		hasFailed: hasReported && now.HasLasted(status.RunningSince, timeToPass),
	}, true
}

// InDoubt reports whether a node may fail only because the sandbox of its agent is broken. Nothing may be done to the node until
// an agent whose pod was created since has failed too. A doubt never lasts longer than a renewal and that agent need.
func InDoubt(s fleet.Settings, status fleet.Status, now clock.Now) bool {
	f, isSuspected := sandboxFailureOf(s, status, now)
	// While kubelet is not ready no agent is renewed, and the node may be replaced, unless kubelet was ready when the node failed.
	kubelet := fleet.NodeCondition(status.Node, corev1.NodeReady)
	canRenew := kubelet.Status == corev1.ConditionTrue || f.began.Before(&kubelet.LastTransitionTime)
	switch {
	case !isSuspected, f.isOver, !canRenew:
		return false
	case status.RunningSince.IsZero(): // an agent that does not start is the failure, unless another one has reported it
		return status.State == fleet.Verified || status.Reported != 0
	}
	return !f.isReplaced || !f.hasFailed
}

// isRenewable reports whether a new pod for the agent may help now: the agent's pod may be deleted, and another one would come.
func isRenewable(s fleet.Settings, status fleet.Status, now clock.Now) bool {
	f, isSuspected := sandboxFailureOf(s, status, now)
	if !isSuspected || !f.hasFailed || f.isReplaced && !f.isOver {
		return false
	}
	hasBegun := now.IsOlder(f.began.Time, 0) // unknown as long as the API server's clock is
	comesBack := s.Rules.Select(status.Node) && s.Rules.Untolerated(status.Node) == nil
	return hasBegun && comesBack && status.Untouchable == "" && fleet.IsNodeReady(status.Node)
}
