package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// Annotations of a worker's pod: what it was created for.
const (
	AttemptAnnotation = "node-ready/attempt" // a number, from 1
	// FirstAnnotation is when the first worker of a node that fails was created, by the API server's clock. A retry has it.
	FirstAnnotation   = "node-ready/first-attempt"
	NodeUIDAnnotation = "node-ready/node-uid"
	BootIDAnnotation  = "node-ready/boot-id"
	// TemplateAnnotation is the hash of the template that it was made from.
	TemplateAnnotation = "node-ready/template"
)

// Outcome is how the round of a worker went.
type Outcome int

// The outcomes of a worker.
const (
	Waiting     Outcome = iota // it has not started
	Running                    // its round goes on
	Passed                     // every check passes
	FailedRound                // a check fails
	Crashed                    // it has ended without a verdict
	Interrupted                // it was evicted, refused or shut down by kubelet: no fault of a check
)

// WorkerOutcome reads the outcome of a worker, and its verdict if that is in the pod's status. A worker that is ready has
// passed: its readiness probe answers when the verdict is known. Else the container's end counts, never the pod's phase, which is
// seconds behind.
func WorkerOutcome(pod *corev1.Pod) (Outcome, verdict.Verdict) {
	if podCondition(pod, corev1.PodReady).Status == corev1.ConditionTrue {
		return Passed, verdict.Verdict{}
	}
	var ended *corev1.ContainerStateTerminated
	for _, status := range Containers(pod) {
		if status.State.Running != nil {
			return Running, verdict.Verdict{}
		}
		ended = status.State.Terminated
	}
	if ended != nil {
		said, err := verdict.Parse(ended.Message)
		switch {
		case ended.ExitCode == 0:
			return Passed, said
		case err == nil && !said.Verified:
			return FailedRound, said
		}
	}
	switch {
	case podCondition(pod, corev1.DisruptionTarget).Status == corev1.ConditionTrue,
		pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "":
		return Interrupted, verdict.Verdict{}
	case ended != nil:
		return Crashed, verdict.Verdict{}
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return Interrupted, verdict.Verdict{} // it has never had a container
	}
	return Waiting, verdict.Verdict{}
}

// Attempt returns the number of the attempt that a worker makes, from 1.
func Attempt(pod *corev1.Pod) int {
	n, _ := strconv.Atoi(pod.Annotations[AttemptAnnotation])
	return max(1, n)
}

// First returns when the first worker was created whose node fails since: this one, if the annotation does not say it.
func First(pod *corev1.Pod) string {
	return cmp.Or(pod.Annotations[FirstAnnotation], pod.CreationTimestamp.UTC().Format(time.RFC3339))
}

// FailingFor returns how long the node had failed when the worker was created: a new leader finds the same.
func FailingFor(pod *corev1.Pod) time.Duration {
	first, _ := time.Parse(time.RFC3339, First(pod)) // what is no time is long ago
	return pod.CreationTimestamp.Sub(first)
}

// HasEnded reports whether a pod's containers have ended.
func HasEnded(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	statuses := Containers(pod)
	goesOn := func(status corev1.ContainerStatus) bool { return status.State.Terminated == nil }
	return len(statuses) > 0 && !slices.ContainsFunc(statuses, goesOn)
}

// Containers returns the statuses of a pod's containers. Only the agent's or the worker's counts: a sidecar that was injected
// does not end with it, and its failure is not theirs.
func Containers(pod *corev1.Pod) []corev1.ContainerStatus {
	statuses := pod.Status.ContainerStatuses
	isOurs := func(status corev1.ContainerStatus) bool { return status.Name == "worker" || status.Name == "agent" }
	if i := slices.IndexFunc(statuses, isOurs); i >= 0 {
		return statuses[i : i+1]
	}
	return statuses
}

// hasVerdict reports whether the worker of an unverified node has passed or failed.
func (s Settings) hasVerdict(v view) bool {
	if !s.Workers || v.isVerified || v.pod == nil {
		return false
	}
	outcome, _ := WorkerOutcome(v.pod)
	return outcome == Passed || outcome == FailedRound
}

// isNextAttempt reports whether a worker starts after an earlier one has failed: until then the failure goes on.
func (s Settings) isNextAttempt(v view) bool {
	isStarting := v.seen.container == "" && v.now.Since(v.seen.noAgent) < s.NotStartedAfter
	return s.Workers && v.isFalseByAgent() && isStarting
}

// isStillFailing reports whether the next worker of a node that was opened manually starts or runs after an earlier one has
// failed for a reason that it reported. No condition shows that failure.
func (s Settings) isStillFailing(v view) bool {
	isStuck := v.now.HasLasted(v.seen.noAgent, s.NotStartedAfter)
	return s.isOpened(v.node) && v.seen.state == Failed && Attempt(v.pod) > 1 && !isStuck && v.seen.reason.Meaning().Check != ""
}

// judgeVerdict judges a node whose worker has passed or failed. A worker that has not started for long, or that has ended without
// a verdict, is judged like an agent.
func (s Settings) judgeVerdict(status *Status, v view) {
	outcome, said := WorkerOutcome(v.pod)
	hasFailedLong := outcome == FailedRound && FailingFor(v.pod) >= s.FailedAfter
	isOverdue := hasFailedLong || v.now.HasLasted(v.seen.waiting, s.FailedAfter)
	if outcome == FailedRound {
		status.AllReasons = condition.OfChecks(said.Failed)
		status.Reason, status.Message = status.AllReasons.First(), said.Message
	} else { // it has passed, and runs until it is deleted
		status.Reason = condition.NotVerified
		status.Message = "all checks pass, but the node is not released: read the controller's log"
		if v.unmet != "" {
			status.Reason, status.Message = condition.NodeFailed, v.unmet
		}
	}
	status.State = InProgress
	if isOverdue || v.condition.Status == corev1.ConditionFalse {
		status.State = Failed
	}
}

// judgeWithoutWorker judges a node that no worker is for.
func (s Settings) judgeWithoutWorker(status *Status, v view) {
	status.State = Unverified
	if !status.Gated {
		return // it gets no worker
	}
	var isOverdue bool
	if taint := s.Keys.ForeignTaint(Taints(v.node)); taint != nil {
		status.Reason = condition.TaintsOfOthers
		status.Message = fmt.Sprintf("the taint %s is still on the node (WAIT_FOR_TAINTS)", taint)
		isOverdue = v.now.HasLasted(v.seen.waiting, s.FailedAfter)
	} else {
		status.Reason = condition.NoPod
		status.Message = "there is no worker for this node: wait while MAX_CONCURRENT_WORKERS other workers start, " +
			"or read in the controller's log why it cannot create one"
		isOverdue = v.now.HasLasted(v.seen.noAgent, s.NotStartedAfter)
	}
	if isOverdue {
		status.State = Failed
	}
}
