package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const failedTaint = "node-ready/failed"

// late are values with which a node is late within seconds.
var late = append(slices.Clone(quick), "config.initialTimeout=3s")

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// noDNS drops what the node's pods ask name servers.
func (s *suite) noDNS() {
	s.Helper()
	s.cleanup(func(ctx context.Context) error { return s.Mend(ctx, node) })
	s.require.NoError(s.Break(s.ctx, node, "meta l4proto { tcp, udp } th dport 53 drop"))
}

// With the rights and under the policy that the chart gives for it.
func TestOnTimeoutTaint(t *testing.T) {
	s := start(t, append(late, "config.onTimeout=taint")...)
	s.noDNS()
	s.gate()
	pod := s.agent()
	marked, _, err := s.AwaitNode(s.ctx, node, func(n *corev1.Node) bool { return harness.HasTaint(n, failedTaint) })
	s.require.NoError(err)
	s.require.True(harness.HasTaint(marked, harness.Taint))
	s.event("NodeVerificationTimedOut", "dns: ")
	s.require.NoError(s.Mend(s.ctx, node))
	now, _ := s.verified()
	s.require.False(harness.HasTaint(now, failedTaint), "in the same patch")
	s.gone(pod)
	patches := 0
	for _, request := range s.requests(pod) {
		if request.Verb == "patch" {
			patches++
		}
	}
	s.require.Equal(2, patches, "%v", s.requests(pod))
}

func TestOnTimeoutCondition(t *testing.T) {
	const kind = "NodeVerified"
	s := start(t, append(late, "config.onTimeout=condition")...)
	s.cleanup(func(ctx context.Context) error {
		_, err := s.Kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType,
			fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"$patch":"delete"}]}}`, kind), metav1.PatchOptions{}, "status")
		return err
	})
	before, err := s.Node(s.ctx, node)
	s.require.NoError(err)
	s.noDNS()
	s.gate()
	is := func(status corev1.ConditionStatus, reason string) func(*corev1.Node) bool {
		return func(n *corev1.Node) bool {
			found := condition(n, kind)
			return found != nil && found.Status == status && found.Reason == reason
		}
	}
	// The first attempt that failed is known at the timeout, all of them after the round.
	bad, _, err := s.AwaitNode(s.ctx, node, is(corev1.ConditionFalse, "DNSFailed,ServiceFailed"))
	s.require.NoError(err)
	s.require.Contains(condition(bad, kind).Message, "dns: ")
	described, err := s.Kubectl(s.ctx, "", "describe", "node", node)
	s.require.NoError(err)
	s.require.Regexp(kind+` +False .* DNSFailed,ServiceFailed +.*dns: `, described)
	s.require.False(harness.HasTaint(bad, failedTaint))
	s.require.NoError(s.Mend(s.ctx, node))
	s.verified()
	good, _, err := s.AwaitNode(s.ctx, node, is(corev1.ConditionTrue, "Verified"))
	s.require.NoError(err)
	s.require.True(condition(good, kind).LastTransitionTime.After(condition(bad, kind).LastTransitionTime.Time))
	for _, theirs := range before.Status.Conditions {
		s.require.NotNil(condition(good, theirs.Type), "kubelet's condition %s", theirs.Type)
	}
	s.require.Len(good.Status.Conditions, len(before.Status.Conditions)+1)
}

// What guards the condition: the API server takes it for no other node of the same name.
func TestConditionOfAnotherNode(t *testing.T) {
	s := start(t)
	_, err := s.Kube.CoreV1().Nodes().Patch(s.ctx, node, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"uid":"another"},"status":{"conditions":[{"type":"NodeVerified","status":"False"}]}}`), metav1.PatchOptions{}, "status")
	s.require.True(apierrors.IsInvalid(err), "%v", err)
	s.require.ErrorContains(err, "metadata.uid")
}

// A network plugin that has not taken its own startup taint off yet: nothing is checked before.
func TestWaitForTaints(t *testing.T) {
	const theirs = "node.cilium.io/agent-not-ready"
	s := start(t, "config.waitForTaints={node.cilium.io/}")
	s.require.NoError(s.Patch(s.ctx, node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}},"spec":{"taints":[{"key":%q,"effect":"NoSchedule"},{"key":%q,"effect":"NoSchedule"}]}}`,
		harness.Label, theirs, harness.Taint)))
	pod := s.agent()
	s.awaitLog(pod, s.Logs, func(line harness.LogLine) bool { return line.Msg == "waiting until others have taken their taint off" })
	lines, err := s.Logs(s.ctx, pod)
	s.require.NoError(err)
	for _, line := range lines {
		s.require.NotEqual("check passed", line.Msg)
	}
	s.unverified()
	s.require.NoError(s.Patch(s.ctx, node, fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"effect":"NoSchedule"}]}}`, harness.Taint)))
	s.verified()
}
