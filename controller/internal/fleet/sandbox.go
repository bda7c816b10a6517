package fleet

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// renewalTakes is how long an agent's pod is waited for: its deletion, one in 10 s in the cluster, and the start of the next.
const renewalTakes = 5 * time.Minute

// doubt notes whether the sandbox of the agent's pod may be all that is broken: from the failure until an agent whose pod was
// created since has failed too, and never for longer than a renewal and that agent need.
func (s Settings) doubt(status *Status, v view) {
	condition, pod, m, now := v.condition, v.pod, v.seen, v.now
	reason, failedAt := firstReason(condition), condition.LastTransitionTime
	if s.Workers || condition.Status != corev1.ConditionFalse || failedAt.IsZero() || !reason.Meaning().BySandbox {
		return // each worker has a sandbox of its own
	}
	// A new pod does not end a failure: it is released, fails too, or does not start.
	isReplaced := pod == nil || pod.DeletionTimestamp != nil || !pod.CreationTimestamp.Before(&failedAt)
	goesOn := isReplaced && status.Gated && m.state == Failed && m.reason == reason && status.State != Failed
	if goesOn {
		status.failAs(condition)
	}
	fails, began, enough := status.State == Failed && status.Reason == reason, m.running, s.FailedAfter
	if v.isVerified {
		fails, began = status.Recheck.IsFresh(now), m.rechecked.began
		enough = rounds(s.Rechecks.RecoveryThreshold+1, s.Rechecks.Interval)
	}
	if !fails || pod != nil && metav1.GetControllerOf(pod) == nil { // without a DaemonSet no other pod would come
		return
	}
	hasFailed := now.Since(began) >= enough && (!v.isVerified || began.Before(status.Recheck.Refreshed))
	// By the API server's clock, so that another leader decides the same.
	switch isOver := now.IsStale(failedAt.Time, enough+renewalTakes); {
	case m.container == "": // between two agents
		status.InDoubt = !isOver && (goesOn || v.isVerified)
	case isOver:
		status.Renewable = hasFailed
	case isReplaced: // the second agent: if it fails too, re-taint and remediation come before a third one
		status.InDoubt = !hasFailed
	default: // the first one
		status.InDoubt, status.Renewable = true, hasFailed
	}
	// Beside a kubelet that is not ready, no agent is renewed: such a node may be replaced, unless that has begun since.
	ready := nodeCondition(v.node, corev1.NodeReady)
	isReady := ready.Status == corev1.ConditionTrue
	status.InDoubt = status.InDoubt && (isReady || failedAt.Before(&ready.LastTransitionTime))
	status.Renewable = status.Renewable && isReady && now.IsOlder(failedAt.Time, 0) && status.Untouchable == "" &&
		s.Rules.matches(v.node) && s.Rules.Untolerated(v.node) == nil // else no other pod would come either
}
