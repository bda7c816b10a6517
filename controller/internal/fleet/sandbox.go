package fleet

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// renewalTakes is how long an agent's pod is waited for: its deletion, one in 10 s in the cluster, and the start of the next.
const renewalTakes = 5 * time.Minute

// judgeSandbox notes whether the sandbox of the agent's pod may be all that is broken. The node is in doubt from the failure
// until an agent whose pod was created since has failed too, and never for longer than a renewal and that agent need.
func (s Settings) judgeSandbox(status *Status, v view) {
	failedAt, pod, now := v.condition.LastTransitionTime, v.pod, v.now
	isFalse := v.condition.Status == corev1.ConditionFalse && !failedAt.IsZero()
	if s.Workers || !isFalse || !firstReason(v.condition).Meaning().BySandbox {
		return // each worker has a sandbox of its own
	}
	isReplaced := pod == nil || pod.DeletionTimestamp != nil || !pod.CreationTimestamp.Before(&failedAt)
	goesOn := isReplaced && v.failed() && status.Gated && status.State != Failed
	if goesOn { // a new pod does not end a failure: it is released, fails too, or does not start
		status.failAs(v.condition)
	}
	enough, fails, hasFailed := s.failingAgent(status, v)
	if !fails || pod != nil && metav1.GetControllerOf(pod) == nil { // without a DaemonSet no other pod would come
		return
	}
	// By the API server's clock, so that another leader decides the same.
	isOver := now.IsStale(failedAt.Time, enough+renewalTakes)
	switch {
	case v.seen.container == "": // between two agents
		status.InDoubt = !isOver && (goesOn || v.isVerified)
	case isOver:
		status.Renewable = hasFailed
	case isReplaced: // the second agent: if it fails too, re-taint and remediation come before a third one
		status.InDoubt = !hasFailed
	default: // the first agent
		status.InDoubt, status.Renewable = true, hasFailed
	}
	// While kubelet is not ready no agent is renewed, and the node may be replaced, unless kubelet was ready when the node failed.
	ready := nodeCondition(v.node, corev1.NodeReady)
	isReady := ready.Status == corev1.ConditionTrue
	status.InDoubt = status.InDoubt && (isReady || failedAt.Before(&ready.LastTransitionTime))
	status.Renewable = status.Renewable && isReady && now.IsOlder(failedAt.Time, 0) && status.Untouchable == "" &&
		s.comesAgain(v.node)
}

// failingAgent returns how long an agent needs to pass, whether the node fails, and whether the agent that runs now has had that
// long and fails.
func (s Settings) failingAgent(status *Status, v view) (enough time.Duration, fails, hasFailed bool) {
	ran := v.now.Since(v.seen.running)
	if v.isVerified {
		enough = rounds(s.Rechecks.RecoveryThreshold+1, s.Rechecks.Interval)
		hasWritten := v.seen.running.Before(status.Recheck.Refreshed)
		return enough, status.Recheck.IsFresh(v.now), hasWritten && ran >= enough
	}
	fails = status.State == Failed && status.Reason == firstReason(v.condition)
	return s.FailedAfter, fails, ran >= s.FailedAfter
}

// failed reports whether the node had failed before for the reason that its condition says.
func (v view) failed() bool {
	return v.seen.state == Failed && v.seen.reason == firstReason(v.condition)
}

// comesAgain reports whether the DaemonSet would make another pod for the node.
func (s Settings) comesAgain(node *corev1.Node) bool {
	return s.Rules.matches(node) && s.Rules.Untolerated(node) == nil
}
