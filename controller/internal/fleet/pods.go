package fleet

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// nodeKey is whom a pod is for: the name of a node, and for workers its uid.
type nodeKey struct{ name, uid string }

// podsByNode returns the agent's pod of each node: the one that is not being deleted, and of those the newest.
func podsByNode(pods []corev1.Pod) map[nodeKey]*corev1.Pod {
	found := make(map[nodeKey]*corev1.Pod, len(pods))
	for i := range pods {
		pod := &pods[i]
		node := nodeKey{NodeOf(pod), pod.Annotations[NodeUIDAnnotation]}
		if other := found[node]; other == nil || Newer(pod, other) > 0 {
			found[node] = pod
		}
	}
	return found
}

// Newer compares two pods of a node: one that is not being deleted is newer than one that is, and one that has not ended than one
// that has. The later attempt is newer. Only then the time of the creation counts: the API server's clock may have been set back.
func Newer(a, b *corev1.Pod) int {
	is := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	return cmp.Or(is(b.DeletionTimestamp != nil)-is(a.DeletionTimestamp != nil),
		is(HasEnded(b))-is(HasEnded(a)), Attempt(a)-Attempt(b),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// IsReplaced reports whether the agent that failed at a time is gone. pod is the present one of its node, and may be nil.
func IsReplaced(pod *corev1.Pod, failedAt metav1.Time) bool {
	return pod == nil || pod.DeletionTimestamp != nil || !pod.CreationTimestamp.Before(&failedAt)
}

// NodeOf returns the node that a pod runs on, or that it is made for: the DaemonSet controller names it as the controller does.
func NodeOf(pod *corev1.Pod) string {
	for _, term := range requiredTerms(pod.Spec.Affinity) {
		for _, field := range term.MatchFields {
			if pod.Spec.NodeName == "" && field.Key == "metadata.name" && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return pod.Spec.NodeName
}

// LastTime returns when an event has happened last.
func LastTime(event corev1.Event) time.Time {
	if event.Series != nil {
		return event.Series.LastObservedTime.Time
	}
	return cmp.Or(event.LastTimestamp.Time, event.EventTime.Time, event.FirstTimestamp.Time, event.CreationTimestamp.Time)
}

// IsReady reports whether kubelet reports pod as ready, and it is not being deleted.
func IsReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && podCondition(pod, corev1.PodReady).Status == corev1.ConditionTrue
}

// podCondition returns one of a pod's conditions, or an empty one.
func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	return firstOf(pod.Status.Conditions, func(condition corev1.PodCondition) bool { return condition.Type == kind })
}

// Component is the label that tells agents, workers and controllers of a release apart.
const Component = "app.kubernetes.io/component"

// OwnLabels returns the labels that the chart selects a pod by, without the user's.
func OwnLabels(all map[string]string) labels.Set {
	return pick(all, "app.kubernetes.io/name", "app.kubernetes.io/instance", Component)
}

// Annotations of a worker's pod. They record why the pod was created.
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
	Interrupted                // kubelet evicted, refused or stopped it, so no check has failed
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
	isDisrupted := podCondition(pod, corev1.DisruptionTarget).Status == corev1.ConditionTrue
	switch hasFailed := pod.Status.Phase == corev1.PodFailed; {
	case isDisrupted, hasFailed && pod.Status.Reason != "":
		return Interrupted, verdict.Verdict{}
	case ended != nil:
		return Crashed, verdict.Verdict{}
	case hasFailed, pod.Status.Phase == corev1.PodSucceeded: // it has never had a container
		return Interrupted, verdict.Verdict{}
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
	first, _ := time.Parse(time.RFC3339, First(pod)) // an invalid time counts as long ago
	return pod.CreationTimestamp.Sub(first)
}

// HasEnded reports whether a pod's containers have ended.
func HasEnded(pod *corev1.Pod) bool {
	isOver := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	statuses := Containers(pod)
	goesOn := func(status corev1.ContainerStatus) bool { return status.State.Terminated == nil }
	return isOver || len(statuses) > 0 && !slices.ContainsFunc(statuses, goesOn)
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

func hasRestarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(Containers(pod), func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 })
}
