package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const failedTaint = "node-ready/failed"

// onTimeout starts a test with a policy whose timeout passes within seconds, and gates the node; its name servers do not answer. It
// returns the node as it was before.
func onTimeout(t *testing.T, policy string) (s *harness.Suite, before *corev1.Node) {
	t.Helper()
	s = start(t, append(slices.Clone(quick), "config.initialTimeout=3s", "config.onTimeout="+policy)...)
	before = s.Node(node)
	s.Break("meta l4proto { tcp, udp } th dport 53 drop")
	s.Gate(node)
	return s, before
}

// With the rights and under the policy that the chart gives for it.
func TestOnTimeoutTaint(t *testing.T) {
	s, _ := onTimeout(t, "taint")
	pod := s.AgentPod(node)
	marked, _ := s.AwaitNode(node, func(n *corev1.Node) bool { return harness.HasTaint(n, failedTaint) })
	s.True(harness.HasTaint(marked, harness.Taint))
	s.Event("NodeVerificationTimedOut", "dns: ")
	s.Repair()
	now, _ := s.AwaitVerified(node)
	s.False(harness.HasTaint(now, failedTaint), "in the same patch")
	s.AwaitGone(pod)
	requests := s.Requests(pod)
	releases := slices.DeleteFunc(slices.Clone(requests), func(r harness.Request) bool {
		return r.Verb != "patch" || r.Response.Code != 200 || !strings.Contains(string(r.Body), "/metadata/labels")
	})
	s.Len(releases, 1, "%v", requests)
}

func TestOnTimeoutCondition(t *testing.T) {
	s, before := onTimeout(t, "condition")
	s.DeleteCondition(node)
	is := func(status corev1.ConditionStatus, reason string) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool {
			found := harness.Condition(n, harness.ConditionType)
			return found != nil && found.Status == status && found.Reason == reason
		}
	}
	// The first attempt that failed is known at the timeout, all of them after the round: in one, just these.
	failed, _ := s.AwaitNode(node, is(corev1.ConditionFalse, "DNSFailed,ServiceFailed"))
	s.Contains(harness.Condition(failed, harness.ConditionType).Message, "dns: ")
	s.Regexp(harness.ConditionType+` +False .* DNSFailed\S+ +.*dns: `, s.Kubectl("", "describe", "node", node))
	s.False(harness.HasTaint(failed, failedTaint))
	s.Repair()
	s.AwaitVerified(node)
	verified, _ := s.AwaitNode(node, is(corev1.ConditionTrue, "Verified"))
	s.True(harness.Condition(verified, harness.ConditionType).LastTransitionTime.After(harness.Condition(failed, harness.ConditionType).LastTransitionTime.Time))
	for _, kubelets := range before.Status.Conditions {
		s.NotNil(harness.Condition(verified, kubelets.Type), "kubelet's condition %s", kubelets.Type)
	}
	s.Len(verified.Status.Conditions, len(before.Status.Conditions)+1)
}

// A node whose taint another client owns and that never had the startup taint: False after the first failed round, and never verified
// without True. See faults/readinessrule_test.go for that client.
func TestConditionAlways(t *testing.T) {
	s := start(t, append(slices.Clone(quick), "config.condition=always", "config.lateTaintWindow=0s")...)
	s.NoError(s.Cluster.DeleteCondition(s.Ctx, node))
	s.DeleteCondition(node)
	s.Break("meta l4proto { tcp, udp } th dport 53 drop")
	s.Patch(node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}},"spec":{"taints":[{"key":"readiness.k8s.io/pod-network","effect":"NoSchedule"}]}}`, harness.Label))
	pod := s.AgentPod(node)
	failed, _ := s.AwaitNode(node, func(n *corev1.Node) bool {
		found := harness.Condition(n, harness.ConditionType)
		return found != nil && found.Status == corev1.ConditionFalse && found.Reason == "DNSFailed,ServiceFailed"
	})
	s.NotContains(failed.Labels, harness.Label)
	s.Repair()
	verified, _ := s.AwaitVerified(node)
	s.Equal(corev1.ConditionTrue, harness.Condition(verified, harness.ConditionType).Status)
	s.True(harness.HasTaint(verified, "readiness.k8s.io/pod-network"))
	s.AwaitGone(pod)
	writes := slices.DeleteFunc(s.Requests(pod), func(r harness.Request) bool { return r.Verb != "patch" || r.Response.Code != 200 })
	s.Equal("status", writes[len(writes)-2].ObjectRef.Subresource, "%v", writes)
	s.Contains(string(writes[len(writes)-1].Body), "/metadata/labels", "%v", writes)
}

// What guards the condition: the API server applies it to no other node of the same name.
func TestConditionOfAnotherNode(t *testing.T) {
	s := start(t)
	_, err := s.Cluster.Kube.CoreV1().Nodes().Patch(s.Ctx, node, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"uid":"another"},"status":{"conditions":[{"type":"NodeVerified","status":"False"}]}}`), metav1.PatchOptions{}, "status")
	s.True(apierrors.IsInvalid(err), "%v", err)
	s.ErrorContains(err, "metadata.uid")
}

// A network plugin that has not removed its own startup taint yet: nothing is checked before.
func TestWaitForTaints(t *testing.T) {
	const foreign = "node.cilium.io/agent-not-ready"
	s := start(t, "config.waitForTaints={node.cilium.io/}")
	s.Patch(node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}},"spec":{"taints":[{"key":%q,"effect":"NoSchedule"},{"key":%q,"effect":"NoSchedule"}]}}`,
		harness.Label, foreign, harness.Taint))
	pod := s.AgentPod(node)
	s.AwaitLog(pod, harness.Says(harness.MsgForeignTaints))
	lines, err := s.Cluster.Logs(s.Ctx, pod)
	s.NoError(err)
	for _, line := range lines {
		s.NotEqual(harness.MsgCheckPassed, line.Msg)
	}
	s.Unverified(node)
	s.Patch(node, fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"effect":"NoSchedule"}]}}`, harness.Taint))
	s.AwaitVerified(node)
}
