package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// old is how many nodes were there before the release, without the startup taint.
const old = 1000

// Without the DaemonSet no node has an agent: that is one Event for each gated node, and nothing about nodes that were never gated.
// A controller that restarts finds the same, and says nothing again. What people release by hand does not stay False.
func TestWithoutDaemonSet(t *testing.T) {
	s := start(t)
	s.Undo(s.redeploy)
	s.Kubectl("", "delete", "daemonset", "-n", harness.Namespace, harness.Name)
	s.NoError(s.Cluster.NoAgents(s.Ctx))
	removeOld := s.oldNodes()
	for _, node := range nodes {
		s.Gate(node)
	}
	for _, node := range nodes {
		s.awaitFailed(node, "NoPod", "check the DaemonSet")
		s.Until(func() (bool, error) { return len(s.events(node, "NoPod")) > 0, nil }, "no Event about node "+node)
	}

	before, _ := s.Leader()
	s.NoError(s.Cluster.Kube.CoreV1().Pods(harness.Namespace).Delete(s.Ctx, before.Name, metav1.DeleteOptions{}))
	s.Until(func() (bool, error) {
		now, _ := s.Leader()
		return now.Name != before.Name, nil
	}, "the Lease stays with the pod that was deleted")
	// Once the new leader has written this, it has decided about the others as well.
	s.awaitFailed(s.bare("another", nil), "NoPod", "check the DaemonSet")

	for _, node := range nodes {
		s.Len(s.conditionsOf(node), 1)
		events := s.events(node, "")
		s.Len(events, 1, node)
		s.Nil(events[0].Series, "counted again")
	}
	list, err := s.Cluster.Kube.CoreV1().Nodes().List(s.Ctx, metav1.ListOptions{LabelSelector: "old"})
	s.NoError(err)
	s.Len(list.Items, old)
	for _, node := range list.Items {
		s.Nil(harness.Condition(&node, harness.ConditionType), node.Name)
	}
	all, err := s.Cluster.Kube.CoreV1().Events("default").List(s.Ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=NodeNotStarted"})
	s.NoError(err)
	for _, event := range all.Items {
		s.NotContains(event.InvolvedObject.Name, "old-")
	}

	verifiedByHand, openedByHand := nodes[0], nodes[1]
	s.Patch(verifiedByHand, fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"taints":null}}`, harness.Label))
	s.awaitRecovered(verifiedByHand)
	s.Patch(openedByHand, `{"spec":{"taints":null}}`)
	s.AwaitNode(openedByHand, func(n *corev1.Node) bool {
		return harness.Condition(n, harness.ConditionType).Status == corev1.ConditionUnknown
	})

	removeOld()
	s.NoError(s.redeploy(s.Ctx))
	for _, node := range nodes {
		s.awaitRecovered(node)
	}
}

// oldNodes makes Nodes that have never borne the startup taint, until the function that it returns is called.
func (s *suite) oldNodes() (remove func()) {
	s.T.Helper()
	deleteAll := func(ctx context.Context) error {
		return s.Cluster.Kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "old"})
	}
	s.Undo(deleteAll)
	var creators errgroup.Group
	creators.SetLimit(8)
	for i := range old {
		creators.Go(func() error {
			_, err := s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("old-%d", i), Labels: map[string]string{"kubernetes.io/os": "linux", "old": ""},
			}}, metav1.CreateOptions{})
			return err
		})
	}
	s.NoError(creators.Wait())
	return func() { s.NoError(deleteAll(s.Ctx)) }
}

// One of two replicas leads, and only that one says how the fleet is.
func TestLeader(t *testing.T) {
	s := start(t)
	s.Until(func() (bool, error) { // while the same one leads
		leader, others := s.Leader()
		both := s.metrics(leader) + s.metrics(others[0])
		return strings.Count(both, "\n# TYPE kube_node_ready_nodes ") == 1 && strings.Contains(s.metrics(leader), "\nkube_node_ready_nodes{"), nil
	}, "not the leader alone has metrics of the fleet")
}

// metrics is "" where the pod does not answer now.
func (s *suite) metrics(pod corev1.Pod) string {
	s.T.Helper()
	body, _, err := s.Cluster.Get(s.Ctx, pod, "metrics")
	s.NoError(err)
	return body
}
