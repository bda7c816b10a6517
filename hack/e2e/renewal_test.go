package e2e

import (
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
