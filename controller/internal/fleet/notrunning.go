package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// whyNotRunning returns the reason why the pod of a node does not run, and a message, as far as the objects show it. The reason
// is zero if only the pod's Events can explain it, and they have not been read.
func (s snapshot) whyNotRunning() (condition.Reasons, string) {
	pod := s.pod
	if pod == nil {
		return condition.NoPod, s.Rules.noPod(s.node)
	}
	name := "pod " + pod.Namespace + "/" + pod.Name + ": "
	if pod.Spec.NodeName == "" {
		return condition.Unschedulable, name + cmp.Or(podCondition(pod, corev1.PodScheduled).Message,
			"the scheduler has not bound it: check kube-scheduler")
	}
	if reason := pod.Status.Reason; pod.Status.Phase == corev1.PodFailed && reason != "" {
		return condition.Unschedulable, name + "kubelet has refused or evicted it: " + reason + ": " + pod.Status.Message
	}
	if pod.DeletionTimestamp != nil {
		return condition.Silent, name + "it is being deleted, but kubelet does not stop it: check kubelet and the CNI on the node"
	}
	for _, status := range Containers(pod) {
		if reason := waitingReason(status); reason != 0 {
			return reason, name + containerMessage(status)
		}
	}
	if podCondition(pod, corev1.PodInitialized).Type == "" {
		return condition.Silent, name + "kubelet has not reported its status: check kubelet on the node"
	}
	if s.podEvents == nil {
		return 0, ""
	}
	reason, message := fromEvents(s.podEvents)
	if reason == condition.Silent && hasRestarted(pod) {
		reason, message = condition.CrashLoop, containerMessage(Containers(pod)[0])
	}
	return reason, name + message
}

// noPod returns a message that explains why there is no agent's pod on node, as far as the node shows it.
func (r Rules) noPod(node *corev1.Node) string {
	if taint := r.Untolerated(node); taint != nil {
		return verdict.NoPodMessage("the agent does not tolerate the taint "+taint.ToString(), "add a toleration, or remove the taint")
	}
	if value, labelled := node.Labels[r.keys.Label]; labelled {
		return verdict.NoPodMessage("the label "+r.keys.Label+"="+value+" keeps the agent away", "remove the label")
	}
	return verdict.NoPodMessage("there is no pod for this node", "check the DaemonSet and its Events")
}

// waitingReason returns why a container does not run, or zero if its status does not show it.
// https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff
func waitingReason(status corev1.ContainerStatus) condition.Reasons {
	if status.State.Waiting != nil {
		switch status.State.Waiting.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable":
			return condition.ImagePull
		case "CrashLoopBackOff", "CreateContainerError", "CreateContainerConfigError", "RunContainerError":
			return condition.CrashLoop
		}
	}
	if status.State.Terminated != nil {
		return condition.CrashLoop
	}
	return 0 // also of one that was started before: after a reboot its sandbox may be what fails
}

// containerMessage returns kubelet's message about a container, and the termination message of its last run.
func containerMessage(status corev1.ContainerStatus) string {
	var parts []string
	if waiting := status.State.Waiting; waiting != nil {
		parts = append(parts, strings.TrimSpace(waiting.Reason+" "+waiting.Message))
	}
	if ended := cmp.Or(status.State.Terminated, status.LastTerminationState.Terminated); ended != nil {
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("exit code %d %s", ended.ExitCode, ended.Message)))
	}
	return strings.Join(parts, "; ")
}

// fromEvents returns why a pod does not run, by its newest Event, which shows how far kubelet has come: the sandbox, the image,
// or a volume. PodReadyToStartContainers=False does not show it, because a slow first pull (before kubelet 1.36) and a volume
// that is waited for set it, too.
func fromEvents(events []corev1.Event) (condition.Reasons, string) {
	// In the order in which kubelet does it: of Events of the same second the later one counts.
	steps := []string{"FailedScheduling", "FailedMount", "FailedAttachVolume", "NetworkNotReady", "FailedCreatePodSandBox",
		"Pulling", "Failed", "Pulled", "Created", "Started"}
	step := func(event corev1.Event) int { return slices.Index(steps, event.Reason) }
	known := slices.DeleteFunc(slices.Clone(events), func(event corev1.Event) bool { return step(event) < 0 })
	if len(known) == 0 {
		return condition.Silent, "kubelet has not started its container, and no Event says why: check kubelet on the node"
	}
	newest := slices.MaxFunc(known, func(a, b corev1.Event) int { return cmp.Or(LastTime(a).Compare(LastTime(b)), step(a)-step(b)) })
	switch newest.Reason {
	case "NetworkNotReady", "FailedCreatePodSandBox":
		return condition.SandboxFailed, newest.Message
	case "Pulling":
		return condition.ImagePull, newest.Message + ", and the pull does not end: check the path to the registry"
	case "Pulled", "Created", "Started":
		return condition.Silent, "kubelet does not start its container: " + newest.Message
	default:
		return condition.Silent, newest.Message
	}
}
