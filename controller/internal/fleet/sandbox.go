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

// suspect is the agent on a node that fails, and what it shows about its sandbox.
type suspect int

const (
	noAgent    suspect = iota // none runs
	firstAgent                // the one that has failed: its sandbox may be all that is broken
	newAgent                  // one that was started since: it has not had the time to fail
	failedToo                 // one that was started since, and had that time: it is not the sandbox
	failedLong                // the same for another minute, in which re-taint and remediation come first
)

// suspect says which agent runs on a node that fails since failedAt.
func (s Settings) suspect(status Status, m memory, failedAt metav1.Time, now time.Time) suspect {
	began, enough, hasSaidSo := m.running, s.SilentAfter, true
	if status.State == Verified {
		began, enough = m.rechecked.began, rounds(s.Rechecks.RecoveryThreshold+1, s.Rechecks.Interval)
		hasSaidSo = status.Recheck.Refreshed.After(began)
	}
	switch ran := now.Sub(began); {
	case m.container == "":
		return noAgent
	case status.Pod.CreationTimestamp.Before(&failedAt):
		return firstAgent
	case ran < enough || !hasSaidSo:
		return newAgent
	case ran < enough+time.Minute:
		return failedToo
	default:
		return failedLong
	}
}

// doubt notes whether the sandbox of the agent's pod may be all that is broken. before and m are the memory before and after.
func (s Settings) doubt(status *Status, before, m memory, now time.Time) {
	condition, pod, isVerified := s.Condition(status.Node), status.Pod, status.State == Verified
	reason, failedAt := firstReason(condition), condition.LastTransitionTime
	if s.Workers || condition.Status != corev1.ConditionFalse || failedAt.IsZero() || !reason.isBySandbox() {
		return // each worker has a sandbox of its own
	}
	// A new pod does not end a failure: it is released, fails too, or does not start.
	isReplaced := pod == nil || pod.DeletionTimestamp != nil || !pod.CreationTimestamp.Before(&failedAt)
	goesOn := isReplaced && status.Gated && before.state == Failed && before.reason == reason && status.State != Failed
	if goesOn {
		status.failAs(condition)
	}
	isReady, fails := IsNodeReady(status.Node), status.State == Failed && status.Reason == reason
	if isVerified {
		fails = status.Recheck.IsFresh(now)
	}
	if !fails || !isReady && !isVerified {
		return // beside a kubelet that is not ready, no agent is renewed: such a node may be replaced
	}
	isDue := false
	switch s.suspect(*status, m, failedAt, now) {
	case noAgent:
		status.InDoubt = goesOn || isVerified
	case firstAgent:
		status.InDoubt, isDue = true, true
	case newAgent:
		status.InDoubt = true
	case failedToo:
		status.InDoubt = goesOn
	case failedLong:
		status.InDoubt, isDue = goesOn, true
	}
	status.Renewable = isDue && isReady && status.Untouchable == "" && metav1.GetControllerOf(pod) != nil
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
