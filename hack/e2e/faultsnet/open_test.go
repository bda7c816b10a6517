package faultsnet

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// opens is the node of the test with onTimeout=open: its Node is deleted and created again.
const opens = "node2"

// initial is INITIAL_TIMEOUT there.
const initial = 20 * time.Second

// TestOpen cuts DNS from a node with onTimeout=open, whose agent is the chart's DaemonSet: it is opened without the label, stays open
// while its agent is started again, and is verified as soon as DNS is back. A Node that is created again begins again.
func TestOpen(t *testing.T) {
	row := harness.BeginRow(t, "DNS cut for longer than INITIAL_TIMEOUT, onTimeout=open", "opened without the label; verified when DNS is back")
	s := &suite{harness.Start(t), row}
	const nowhere = "nodeSelector.faultsnet=none"
	s.Undo(func(ctx context.Context) error { return s.Cluster.Deploy(ctx, nowhere) })
	s.Deploy(nowhere, `config.onTimeout=open\,condition`, "config.initialTimeout="+initial.String())
	s.Undo(func(ctx context.Context) error { return s.Cluster.DeleteNodes(ctx, opens) })
	s.NoError(s.Cluster.AddNodes(s.Ctx, opens))
	s.AwaitNode(opens, func(now *corev1.Node) bool {
		ready := harness.Condition(now, corev1.NodeReady)
		return ready != nil && ready.Status == corev1.ConditionTrue && harness.HasTaint(now, harness.Taint)
	})
	s.NoError(s.Cluster.Break(s.Ctx, opens, "udp dport 53 drop", "tcp dport 53 drop"))
	cut := time.Now()
	s.Patch(opens, `{"metadata":{"labels":{"faultsnet":"none"}}}`) // the DaemonSet makes its pod

	pod := s.AgentPod(opens)
	node := s.opened(pod)
	s.Equal(corev1.ConditionFalse, harness.Condition(node, harness.ConditionType).Status)
	s.Until(func() (bool, error) {
		events, err := s.Cluster.Events(s.Ctx, opens, "NodeOpened")
		return len(events) == 1 && events[0].Type == corev1.EventTypeWarning, err
	}, "no Event")

	s.KillContainer(&pod)
	s.Until(func() (bool, error) {
		now, err := s.Cluster.Kube.CoreV1().Pods(pod.Namespace).Get(s.Ctx, pod.Name, metav1.GetOptions{})
		return err == nil && now.Status.ContainerStatuses[0].RestartCount > 0 && now.Status.ContainerStatuses[0].State.Running != nil, err
	}, "the agent is not started again")
	s.AwaitMetric(pod, "node_check_opened", 0)
	s.Equal(record(node), record(s.Node(opens)), "the agent that was started again writes nothing")

	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: opens, Labels: node.Labels}, Spec: node.Spec}
	again.Spec.Taints = []corev1.Taint{{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	s.NoError(s.Cluster.Kube.CoreV1().Nodes().Delete(s.Ctx, opens, metav1.DeleteOptions{}))
	again, err := s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, again, metav1.CreateOptions{})
	s.NoError(err)
	node, at := s.AwaitNode(opens, func(now *corev1.Node) bool { return !harness.HasTaint(now, harness.Taint) })
	s.Equal(again.UID, node.UID)
	s.T.Logf("opened %s after the Node was created again", at.Sub(again.CreationTimestamp.Time).Round(time.Millisecond))
	s.GreaterOrEqual(at.Sub(again.CreationTimestamp.Time), initial, "it has an INITIAL_TIMEOUT of its own")
	s.NotContains(node.Labels, harness.Label)

	s.NoError(s.Cluster.Repair(s.Ctx, opens))
	back := time.Now()
	verified, at := s.AwaitVerified(opens)
	row.Recovered(at.Sub(back))
	s.Less(at.Sub(back), 1500*time.Millisecond+back.Sub(cut)/40)
	s.Empty(record(verified).Opened)
	s.Equal(record(node).Removed, record(verified).Removed, "it was gated")
	s.NoError(s.Cluster.NoAgents(s.Ctx))
	s.AwaitNode(opens, func(now *corev1.Node) bool {
		return harness.Condition(now, harness.ConditionType).Status == corev1.ConditionTrue
	})
}

// opened waits until an agent has opened its node, and asserts when.
func (s *suite) opened(pod corev1.Pod) *corev1.Node {
	s.T.Helper()
	node, at := s.AwaitNode(opens, func(now *corev1.Node) bool { return !harness.HasTaint(now, harness.Taint) })
	started := pod.Status.ContainerStatuses[0].State.Running.StartedAt.Time // whole seconds
	s.T.Logf("opened %s after the start of its agent", at.Sub(started).Round(time.Millisecond))
	s.GreaterOrEqual(at.Sub(started), initial)
	s.LessOrEqual(at.Sub(started), initial+13*time.Second)
	s.NotContains(node.Labels, harness.Label)
	s.NotEmpty(record(node).Opened)
	s.Equal([]string{harness.Taint + "=true:NoSchedule"}, record(node).Removed)
	s.AwaitMetric(pod, "node_check_opened", 0)
	return node
}

// written is what the test reads of the annotation.
type written struct {
	Opened  string
	Removed []string
}

func record(node *corev1.Node) (w written) {
	if err := json.Unmarshal([]byte(node.Annotations[harness.Annotation]), &w); err != nil {
		return written{Opened: fmt.Sprintf("no record: %v", err)}
	}
	return w
}
