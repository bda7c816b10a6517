package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// finding is why the agent does not run, as far as objects tell.
type finding struct {
	reason  Reason
	message string
	// unknown means that only the pod's Events tell, and that they have not been read.
	unknown bool
}

// notRunning says why no agent runs on node. events are those of the pod; nil: they have not been read.
func (r Rules) notRunning(node *corev1.Node, pod *corev1.Pod, events []corev1.Event) finding {
	if pod == nil {
		return finding{reason: NoPod, message: r.noPod(node)}
	}
	name := "pod " + pod.Namespace + "/" + pod.Name + ": "
	if condition := podCondition(pod, corev1.PodScheduled); pod.Spec.NodeName == "" {
		if condition != nil && condition.Message != "" {
			return finding{reason: Unschedulable, message: name + condition.Message}
		}
		return finding{reason: Unschedulable, message: name + "the scheduler has not bound it: check kube-scheduler"}
	}
	if reason := pod.Status.Reason; pod.Status.Phase == corev1.PodFailed && reason != "" {
		return finding{reason: Unschedulable,
			message: name + "kubelet has refused or evicted it: " + reason + ": " + pod.Status.Message}
	}
	if pod.DeletionTimestamp != nil {
		return finding{reason: Silent,
			message: name + "it is deleted, and kubelet does not end it: check kubelet and the CNI on the node"}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if reason := waitingReason(status); reason != "" {
			return finding{reason: reason, message: name + containerMessage(status)}
		}
	}
	if len(pod.Status.Conditions) == 0 || podCondition(pod, corev1.PodInitialized) == nil {
		return finding{reason: Silent, message: name + "kubelet has not reported about it: check kubelet on the node"}
	}
	if events == nil {
		return finding{unknown: true}
	}
	found := fromEvents(events)
	if found.reason == Silent && hasRestarted(pod) {
		found = finding{reason: CrashLoop, message: containerMessage(pod.Status.ContainerStatuses[0])}
	}
	found.message = name + found.message
	return found
}

// waitingReason says why a container does not run, "" where its status does not tell.
// https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff
func waitingReason(status corev1.ContainerStatus) Reason {
	if status.State.Waiting != nil {
		switch status.State.Waiting.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable":
			return ImagePull
		case "CrashLoopBackOff", "CreateContainerError", "CreateContainerConfigError", "RunContainerError":
			return CrashLoop
		}
	}
	if status.State.Terminated != nil {
		return CrashLoop
	}
	return "" // also of one that was started before: after a reboot its sandbox may be what fails
}

// containerMessage is what kubelet says about a container, and what its last run has said.
func containerMessage(status corev1.ContainerStatus) string {
	var parts []string
	if waiting := status.State.Waiting; waiting != nil {
		parts = append(parts, strings.TrimSpace(waiting.Reason+" "+waiting.Message))
	}
	for _, ended := range []*corev1.ContainerStateTerminated{status.State.Terminated, status.LastTerminationState.Terminated} {
		if ended != nil {
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("exit code %d %s", ended.ExitCode, ended.Message)))
			break
		}
	}
	return strings.Join(parts, "; ")
}

// fromEvents tells by the newest Event how far kubelet has come: a sandbox without network, an image that does not come, a
// volume. PodReadyToStartContainers=False does not: it is also a slow first pull (before kubelet 1.36) and a volume that is
// waited for.
func fromEvents(events []corev1.Event) finding {
	// In the order in which kubelet does it: of Events of the same second the later one counts.
	steps := []string{"FailedScheduling", "FailedMount", "FailedAttachVolume", "NetworkNotReady", "FailedCreatePodSandBox",
		"Pulling", "Failed", "Pulled", "Created", "Started"}
	var newest *corev1.Event
	for i, event := range events {
		if step := slices.Index(steps, event.Reason); step >= 0 && (newest == nil ||
			cmp.Or(LastTime(event).Compare(LastTime(*newest)), step-slices.Index(steps, newest.Reason)) > 0) {
			newest = &events[i]
		}
	}
	if newest == nil {
		return finding{reason: Silent, message: "kubelet has not started its container, and no Event says why: check kubelet"}
	}
	switch newest.Reason {
	case "NetworkNotReady", "FailedCreatePodSandBox":
		return finding{reason: SandboxFailed, message: newest.Message}
	case "Pulling":
		return finding{reason: ImagePull, message: newest.Message + ", and it does not end: check the path to the registry"}
	case "Pulled", "Created", "Started":
		return finding{reason: Silent, message: "kubelet does not start its container: " + newest.Message}
	default:
		return finding{reason: Silent, message: newest.Message}
	}
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i, condition := range pod.Status.Conditions {
		if condition.Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
