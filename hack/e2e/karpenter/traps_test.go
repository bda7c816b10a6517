package karpenter

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Under `taints` in place of `startupTaints`, Karpenter takes the taint for one that stays: no node of that pool is any use to a pod
// that does not tolerate it. TestPendingPodGetsAVerifiedNode is the same with the default, and the pod gets its node.
func TestTrapTaintsGetNoNode(t *testing.T) {
	s := start(t)
	s.nodePools("1s", " startupTaints:", " taints:")
	s.workload("trap", 1)
	message := s.karpenterSays("trap", "FailedScheduling")
	s.Contains(message, "did not tolerate taint")
	s.Contains(message, harness.Taint)
	s.Empty(s.seen.now(nodeClaims, always))
	s.T.Logf("no node: %s", message)
}

// karpenterSays waits for an Event of Karpenter's about a pod of a deployment.
func (s *suite) karpenterSays(workload, reason string) string {
	s.T.Helper()
	var message string
	s.Until(func() (bool, error) {
		events, err := s.Cluster.Kube.CoreV1().Events("default").List(s.Ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,reason=" + reason})
		if err != nil {
			return false, err
		}
		now := s.seen.now(pods, always)
		for _, event := range events.Items {
			// Not about a pod of an earlier run.
			pod, there := now[event.InvolvedObject.Name]
			if there && pod.object.GetUID() == event.InvolvedObject.UID && pod.object.GetLabels()["app"] == workload && event.Source.Component == "karpenter" {
				message = event.Message
			}
		}
		return message != "", nil
	}, "Karpenter says nothing about %s", workload)
	return message
}

// A machine that joins while Karpenter is busy: kubelet has put both taints on, as --register-with-taints does, and nobody has
// registered the node yet.
func (s *suite) unregisteredNode() (node string) {
	s.T.Helper()
	s.nodePools("1h") // the provider makes no Node in this test: this function does
	s.workload("early", 1)
	claim := s.await("launched", nodeClaims, func(s state) bool { return ofPool(s) && s.condition("Launched") })
	s.NoError(programs.karpenter.Process.Signal(syscall.SIGSTOP))
	s.Undo(func(context.Context) error { return programs.karpenter.Process.Signal(syscall.SIGCONT) })

	id, _, err := unstructured.NestedString(claim.object.Object, "status", "providerID")
	s.NoError(err)
	node = strings.TrimPrefix(id, "kwok://")
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata:
  name: %[1]s
  annotations: {kwok.x-k8s.io/node: fake}
  labels: {kubernetes.io/os: linux, kubernetes.io/arch: arm64, kubernetes.io/hostname: early}
spec:
  providerID: %[2]s
  taints:
  - {key: karpenter.sh/unregistered, effect: NoExecute}
  - {key: node-ready/unverified, value: "true", effect: NoSchedule}
status:
  allocatable: {cpu: "4", memory: 8Gi, pods: "110"}
  capacity: {cpu: "4", memory: 8Gi, pods: "110"}
`, node, id))
	return node
}

func (s *suite) registers(node string) step {
	s.T.Helper()
	s.NoError(programs.karpenter.Process.Signal(syscall.SIGCONT))
	return s.await("Karpenter registers the node", nodes, on(node, labelled(registered)))
}

// An agent that tolerates everything is on the node before Karpenter has registered it. It waits: the registration puts the startup
// taint back, which would stay behind the label.
func TestTolerationOfUnregisteredWaits(t *testing.T) {
	s := start(t, "tolerations[0].operator=Exists")
	node := s.unregisteredNode()
	agent := s.await("the agent's pod comes before the registration", pods, agentPod(node, always))
	s.Until(func() (bool, error) { return strings.Contains(s.kubelet.said(node), harness.MsgForeignTaints), nil })
	early := s.Node(node)
	s.True(harness.HasTaint(early, unregistered))
	s.NotContains(early.Labels, harness.Label)
	known := s.registers(node)
	verified := s.await("the node is verified", nodes, on(node, harness.Verified))
	s.False(harness.HasTaint(verified.node(), harness.Taint))
	inOrder(t, agent, known, verified)
	printSteps(t, []step{agent, known, verified})
}

// The same with the chart's tolerations: the agent comes after the registration.
func TestDefaultTolerationsWaitForTheRegistration(t *testing.T) {
	s := start(t)
	node := s.unregisteredNode()
	known := s.registers(node)
	agent := s.await("the agent's pod comes", pods, agentPod(node, always))
	verified := s.await("the node is verified", nodes, on(node, harness.Verified))
	ready := s.await("and initialized", nodes, on(node, labelled(initialized)))
	s.False(harness.HasTaint(ready.node(), harness.Taint))
	born := s.await("", pods, func(s state) bool { return s.name() == agent.name() })
	inOrder(t, known, step{"the agent's pod is made", born.state}, verified, ready)
	bound := s.await("the pending pod is bound", pods, workloadPod("early", func(p *corev1.Pod) bool { return p.Spec.NodeName == node }))
	inOrder(t, verified, bound)
	printSteps(t, []step{known, agent, verified, ready})
}
