package fleet

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// isBySandbox reports whether the sandbox of a running agent's pod can be the reason. It is not where only peers fail: an agent
// that reaches the DNS pods has a network.
func (r Reason) isBySandbox() bool {
	return slices.Contains([]Reason{Silent, DNSFailed, APIFailed, NetworkFailed, ServiceFailed}, r)
}

// doubt notes whether the sandbox of the agent's pod may be all that is broken. before and m are the memory before and after.
func (s Settings) doubt(status *Status, before, m memory, now time.Time) {
	condition, pod := s.Condition(status.Node), status.Pod
	reason, failedAt := firstReason(condition), condition.LastTransitionTime
	if s.Workers || condition.Status != corev1.ConditionFalse || failedAt.IsZero() || !reason.isBySandbox() {
		return // each worker has a sandbox of its own
	}
	isNew := pod == nil || pod.DeletionTimestamp != nil || !pod.CreationTimestamp.Before(&failedAt)
	// A new pod does not end a failure: it is released, fails too, or does not start.
	goesOn := isNew && status.Gated && before.state == Failed && before.reason == reason && status.State != Failed
	if goesOn {
		status.failAs(condition)
	}
	isVerified, runs, isReady := status.State == Verified, m.container != "", IsNodeReady(status.Node)
	fails := isVerified && status.Recheck.IsFresh(now) || status.State == Failed && status.Reason == reason
	began, enough := m.running, s.SilentAfter
	if isVerified {
		began, enough = m.rechecked.began, rounds(s.Rechecks.RecoveryThreshold+1, s.Rechecks.Interval)
	}
	hasFailed := isNew && runs && now.Sub(began) >= enough && (!isVerified || status.Recheck.Refreshed.After(began))
	isDue := !isNew || hasFailed && now.Sub(began) >= enough+time.Minute // re-taint and remediation come first
	status.Renewable = fails && runs && isDue && isReady && status.Untouchable == "" && metav1.GetControllerOf(pod) != nil
	// Beside a kubelet that is not ready, no agent is renewed: such a node may be replaced.
	status.InDoubt = (isReady || isVerified) && (goesOn || fails && (runs || isVerified) && !hasFailed)
}

// lacksSandbox notes that kubelet cannot make the sandbox of the agent's pod on a verified node: that is not a missing agent.
func (s Settings) lacksSandbox(status *Status, m memory, events map[types.UID][]corev1.Event, now time.Time) {
	lost := m.rechecked.NoAgent
	if m.container != "" || status.Pod == nil || lost.IsZero() || now.Sub(lost) < min(s.NotStartedAfter, s.NoAgentFor/2) ||
		!IsNodeReady(status.Node) {
		return
	}
	reason, message := s.Rules.notRunning(status.Node, status.Pod, events)
	if status.EventsWanted = reason == ""; reason == SandboxFailed {
		status.Reason, status.Message = reason, message
	}
}
