package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The agent starts while the CNI gives an address and no route. Once the CNI works, one renewal of the sandbox releases the node. No
// controller, no right and no request does it.
func TestRenewSandbox(t *testing.T) {
	s := start(t, append(slices.Clone(quick), "config.renewSandbox=true", "config.initialTimeout=15s")...)
	repair := s.WithoutRoute(node)
	s.Gate(node)
	pod := s.AgentPod(node)
	s.AwaitLog(pod, func(line harness.LogLine) bool {
		return line.Check == "dns" && strings.Contains(line.Error, "network is unreachable")
	})
	untilDeleted := watchPods(s, metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name, ResourceVersion: pod.ResourceVersion})
	repair()
	s.AwaitVerified(node)

	addresses := []string{pod.Status.PodIP}
	last := untilDeleted(func(now *corev1.Pod) {
		if ip := now.Status.PodIP; ip != "" && !slices.Contains(addresses, ip) {
			addresses = append(addresses, ip)
		}
	})
	s.Equal(pod.UID, last.UID)
	s.Len(addresses, 2, "the address of each sandbox")
	s.EqualValues(1, last.Status.ContainerStatuses[0].RestartCount)
}

// A released node whose agent has lost its network stays released: the agent renews its sandbox, and the rechecks pass again.
func TestRenewSandboxOfAReleasedNode(t *testing.T) {
	s := start(t)
	s.Undo(func(ctx context.Context) error { return s.Cluster.Deploy(ctx) }) // the agents leave
	s.Deploy(append(slices.Clone(quick), "config.renewSandbox=true", "config.recheckInterval=10s", "config.failureThreshold=2",
		"config.initialTimeout=15s")...)
	pod := s.AgentPod(node)
	s.AwaitLog(pod, harness.Says(harness.MsgAlreadyVerified))
	s.Script("enter-pod", pod.Namespace, pod.Name, "ip", "route", "del", "default")
	s.Until(func() (bool, error) {
		now, err := s.Kube.CoreV1().Pods(pod.Namespace).Get(s.Ctx, pod.Name, metav1.GetOptions{})
		if err != nil || len(now.Status.ContainerStatuses) == 0 {
			return false, err
		}
		container := now.Status.ContainerStatuses[0]
		return container.Ready && container.RestartCount == 1, nil
	}, "the sandbox is not renewed, or the rechecks do not pass in the next one")
	now := s.Node(node)
	s.True(harness.Verified(now))
	s.False(harness.HasTaint(now, failedTaint))
}
