package fleet

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// renewalTakes is how long an agent's pod is waited for: its deletion, one in 10 s in the cluster, and the start of the next.
const renewalTakes = 5 * time.Minute

// phase is how far a failure has come that a broken sandbox can cause. Each phase begins again with the next failure.
type phase int

const (
	unsuspected   phase = iota // the sandbox is not what fails, or no other pod would come
	firstAgent                 // the agent runs whose sandbox may be broken
	betweenAgents              // the next agent is to start
	secondAgent                // an agent runs whose pod was created after the failure
	over                       // the time for a renewal and for the second agent has passed
)

// judgeSandbox notes whether the sandbox of the agent's pod may be all that is broken. The node is in doubt from the failure
// until an agent whose pod was created since has failed too, and never for longer than a renewal and that agent need. hasFailed
// means that the agent that runs has had the time to pass:
//
//	                in doubt                renewable
//	unsuspected     no                      no
//	firstAgent      yes                     once it has failed
//	betweenAgents   yes                     no
//	secondAgent     until it has failed     no
//	over            no                      once it has failed
func (s Settings) judgeSandbox(status *Status, v view) {
	var inDoubt, renewable bool
	hasFailed := s.hasAgentFailed(*status, v)
	switch s.sandboxPhase(*status, v) {
	case firstAgent:
		inDoubt, renewable = true, hasFailed
	case betweenAgents:
		inDoubt = true
	case secondAgent: // re-taint and remediation come before a third one
		inDoubt = !hasFailed
	case over:
		renewable = hasFailed
	}
	// While kubelet is not ready no agent is renewed, and the node may be replaced, unless kubelet was ready when the node failed.
	kubelet, failedAt := nodeCondition(v.node, corev1.NodeReady), v.condition.LastTransitionTime
	isReady := kubelet.Status == corev1.ConditionTrue
	status.InDoubt = inDoubt && (isReady || failedAt.Before(&kubelet.LastTransitionTime))
	status.Renewable = renewable && isReady && s.mayRenew(v)
}

// sandboxPhase says how far the failure of a node has come.
func (s Settings) sandboxPhase(status Status, v view) phase {
	isRunning := v.seen.container != ""
	fails := status.Recheck.IsFresh(v.now) || status.State == Failed && status.Reason == firstReason(v.condition)
	hasDaemonSet := v.pod == nil || metav1.GetControllerOf(v.pod) != nil // else no other pod would come
	// By the API server's clock, so that another leader decides the same.
	isOver := v.now.IsStale(v.condition.LastTransitionTime.Time, s.timeToPass(v)+renewalTakes)
	switch {
	case !s.isSandboxSuspected(v), !fails, !hasDaemonSet:
		return unsuspected
	case isOver:
		return over
	case isRunning && v.isReplaced():
		return secondAgent
	case isRunning:
		return firstAgent
	case v.isVerified, status.isReported():
		return betweenAgents
	}
	return unsuspected // the agent does not start: that is the failure
}

// isSandboxSuspected reports whether an agent fails for a reason that its sandbox can cause. Each worker has its own sandbox.
func (s Settings) isSandboxSuspected(v view) bool {
	isFalse := v.condition.Status == corev1.ConditionFalse && !v.condition.LastTransitionTime.IsZero()
	return !s.Workers && isFalse && firstReason(v.condition).Meaning().BySandbox
}

// isReplaced reports whether the agent that the condition is about is gone.
func (v view) isReplaced() bool {
	pod, failedAt := v.pod, v.condition.LastTransitionTime
	return pod == nil || pod.DeletionTimestamp != nil || !pod.CreationTimestamp.Before(&failedAt)
}

// goesOn reports whether the failure of a gated node goes on although nothing shows it now. A new pod does not end a failure: it
// is released, fails too, or does not start.
func (s Settings) goesOn(status Status, v view) bool {
	showsNone := status.Gated && status.State != Failed
	hadFailed := v.seen.state == Failed && v.seen.reason == firstReason(v.condition)
	return showsNone && hadFailed && s.isSandboxSuspected(v) && v.isReplaced()
}

// timeToPass is how long an agent needs to pass.
func (s Settings) timeToPass(v view) time.Duration {
	if v.isVerified {
		return rounds(s.Rechecks.RecoveryThreshold+1, s.Rechecks.Interval)
	}
	return s.FailedAfter
}

// hasAgentFailed reports whether the agent that runs now had the time to pass, and has not. On a verified node it says so.
func (s Settings) hasAgentFailed(status Status, v view) bool {
	hadTime := v.seen.container != "" && v.now.Since(v.seen.running) >= s.timeToPass(v)
	hasWritten := v.seen.running.Before(status.Recheck.Refreshed)
	return hadTime && (hasWritten || !v.isVerified)
}

// mayRenew reports whether the agent's pod may be deleted, and the DaemonSet would make another one.
func (s Settings) mayRenew(v view) bool {
	isInThePast := v.now.IsOlder(v.condition.LastTransitionTime.Time, 0) // by the API server's clock, if that is known
	return v.untouchable == "" && isInThePast && s.Rules.matches(v.node) && s.Rules.Untolerated(v.node) == nil
}
