// Package recheck tests released nodes that fail later: the chart with rechecks, peers and re-taint, on nodes with a real
// kubelet that the tests break, beside a fleet whose kubelet kwok plays. `make e2e` runs it, with E2E=long longer faults.
package recheck

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// values deploy rechecks that fail within half a minute, and a controller that re-taints nodes soon after it has started. An attempt
// has the chart's own time limit: the nodes that no test breaks must pass.
var values = append(harness.ControllerValues(), "controller.retaint.enabled=true", "controller.retaint.controlGroupFor=20s",
	"controller.retaint.coolDown=20s", "controller.retaint.noAgentFor=20s",
	"config.recheckInterval=10s", "config.failureThreshold=2", "config.recoveryThreshold=2", "config.peers=true",
	"config.maxRetries=0",
	excluding+".key="+releaseLabel, excluding+".operator=DoesNotExist",
)

const (
	excluding    = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]"
	releaseLabel = "e2e-release" // selects the nodes of a second release

	failedTaint = "node-ready/failed"
	// groupLabel is of a managed node group. The budget is counted for each.
	groupLabel = "eks.amazonaws.com/nodegroup"
)

// nodes have a real kubelet, and faults. Each is a node group of its own.
var nodes = []string{"node2", "node3", "node4"}

// rechecked are all nodes of the release whose agent is a real one. The first one is never broken.
func rechecked() []string { return append([]string{harness.RealNode}, nodes...) }

func TestMain(m *testing.M) { os.Exit(harness.Main(m, prepare)) }

// prepare deploys agent and controller for all tests, and adds the nodes and the fleet.
func prepare(ctx context.Context, cluster *harness.Cluster) (cleanUp func(context.Context) error, err error) {
	removeFleet := func(context.Context) error { return nil }
	if !harness.Core() {
		if removeFleet, err = addFleet(ctx, cluster); err != nil {
			return nil, err
		}
	}
	added := append(rechecked()[1:], secondNode)
	undeploy, err := cluster.DeployController(ctx, added, values)
	if err != nil {
		return nil, err
	}
	for _, node := range added {
		if err := cluster.Patch(ctx, node, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, groupLabel, node)); err != nil {
			return nil, err
		}
	}
	if err := cluster.Patch(ctx, secondNode, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, releaseLabel, second)); err != nil {
		return nil, err
	}
	// CoreDNS stays on the node that no test breaks.
	taint := append(append([]string{"taint", "node", "--overwrite"}, added...), "e2e/no-dns=:NoSchedule")
	if _, err := cluster.Kubectl(ctx, "", taint...); err != nil {
		return nil, err
	}
	// Only a node that was released from the startup taint gets a condition.
	if err := cluster.Gate(ctx, harness.RealNode); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := undeploy(ctx); err != nil {
			return err
		}
		if err := cluster.DeleteCondition(ctx, harness.RealNode); err != nil {
			return err
		}
		return removeFleet(ctx)
	}, nil
}

// suite is one test's access to the cluster.
type suite struct {
	*harness.Suite
	seen *recorder
}

// start gives a test access once every node passes its rechecks and none is re-tainted.
func start(t *testing.T) *suite {
	t.Helper()
	s := &suite{Suite: harness.Start(t)}
	s.NoError(s.Cluster.AwaitController(s.Ctx))
	s.awaitGood(rechecked()...)
	for _, node := range rechecked() {
		s.awaitReady(node)
	}
	s.awaitNoneRetainted()
	s.awaitControlGroup()
	s.seen = s.record()
	return s
}

// part is for a part of the test.
func (s *suite) part(t *testing.T) *suite {
	t.Helper()
	return &suite{s.Part(t), s.seen}
}

// awaitNoneRetainted waits until no node has a failed taint.
func (s *suite) awaitNoneRetainted() {
	s.T.Helper()
	s.Until(func() (bool, error) {
		list, err := s.Cluster.Kube.CoreV1().Nodes().List(s.Ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return !slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return harness.HasTaint(&n, failedTaint) }), nil
	}, "nodes stay re-tainted")
}

// awaitReady waits until the agent on a node is ready: it has no failure left to write.
func (s *suite) awaitReady(node string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		pods, err := s.Cluster.AgentPods(s.Ctx)
		return slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
			return pod.Spec.NodeName == node && pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, isReady)
		}), err
	}, "no agent is ready on %s", node)
}

func isReady(c corev1.PodCondition) bool {
	return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
}

// awaitControlGroup waits until the checks have passed for long enough in the leader's own pod: nothing is re-tainted before.
func (s *suite) awaitControlGroup() {
	s.T.Helper()
	s.awaitBreaker("control-group", false)
}

// isGood reports whether the node is released and its rechecks pass.
func isGood(node *corev1.Node) bool {
	found := harness.Condition(node, harness.ConditionType)
	return harness.Verified(node) && !isRetainted(node) && found != nil && found.Status == corev1.ConditionTrue
}

// isRetainted reports whether the node has the failed taint of this release.
func isRetainted(node *corev1.Node) bool { return retaintedBy(node) == harness.Name }

// retaintedBy returns the value of the failed taint, which names the release.
func retaintedBy(node *corev1.Node) string {
	i := slices.IndexFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == failedTaint && taint.Effect == corev1.TaintEffectNoSchedule
	})
	if i < 0 {
		return ""
	}
	return node.Spec.Taints[i].Value
}

// fails reports whether the condition of the node is False, for these reasons. It may have others too: where one check fails, another
// may take too long.
func fails(node *corev1.Node, reasons string) bool {
	found := harness.Condition(node, harness.ConditionType)
	if found == nil || found.Status != corev1.ConditionFalse {
		return false
	}
	shown := strings.Split(found.Reason, ",")
	return !slices.ContainsFunc(strings.Split(reasons, ","), func(reason string) bool { return !slices.Contains(shown, reason) })
}

// awaitFails waits until the condition of a node is False for a reason.
func (s *suite) awaitFails(node, reason string) {
	s.T.Helper()
	s.AwaitNode(node, func(n *corev1.Node) bool { return fails(n, reason) })
}

// awaitRetainted waits until the controller has re-tainted a node, and asserts that its condition says why.
func (s *suite) awaitRetainted(node, reason string) {
	s.T.Helper()
	now, _ := s.AwaitNode(node, isRetainted)
	s.True(fails(now, reason), "re-tainted without the reason %s: %v", reason, harness.Condition(now, harness.ConditionType))
	s.True(harness.Verified(now), "the label must stay")
}

// awaitTaintRemoved waits until a node has no failed taint.
func (s *suite) awaitTaintRemoved(node string) {
	s.T.Helper()
	s.AwaitNode(node, func(n *corev1.Node) bool { return !harness.HasTaint(n, failedTaint) })
}

// awaitGood waits until a node is released and its rechecks pass.
func (s *suite) awaitGood(nodes ...string) {
	s.T.Helper()
	for _, node := range nodes {
		s.AwaitNode(node, isGood)
	}
}

// drop adds nftables rules for a node's pods until the test ends.
func (s *suite) drop(node string, rules ...string) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error { return s.Cluster.Repair(ctx, node) })
	s.NoError(s.Cluster.Break(s.Ctx, node, rules...))
}

// dropForwarded is drop behind the rewriting of service addresses. What kubelet asks its pods does not pass there.
func (s *suite) dropForwarded(node string, rules ...string) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error { return s.Cluster.Repair(ctx, node) })
	s.NoError(s.Cluster.BreakForwarded(s.Ctx, node, rules...))
}

// dropDNS is the rule that drops what pods ask name servers.
const dropDNS = "meta l4proto { tcp, udp } th dport 53 drop"

// dropPods are the rules that drop what passes between pods, but for DNS. The API server is no pod.
func dropPods() []string {
	return []string{"meta l4proto { tcp, udp } th dport 53 accept", "meta l4proto { tcp, udp } th sport 53 accept",
		"ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 drop"}
}

// repair takes the rules away that were added on nodes.
func (s *suite) repair(nodes ...string) {
	s.T.Helper()
	for _, node := range nodes {
		s.NoError(s.Cluster.Repair(s.Ctx, node))
	}
}

// scaleController sets the number of controllers, and waits until as many are there.
func (s *suite) scaleController(ctx context.Context, replicas int) error {
	if _, err := s.Cluster.Kubectl(ctx, "", "scale", "-n", harness.Namespace, "deployment/"+harness.Controller, fmt.Sprintf("--replicas=%d", replicas)); err != nil {
		return err
	}
	return harness.Until(ctx, func() (bool, error) {
		pods, err := s.Cluster.Pods(ctx, "controller")
		return len(pods) == replicas, err
	})
}

// killLeader kills the container of the controller that leads.
func (s *suite) killLeader() {
	s.T.Helper()
	leader, _ := s.Leader()
	s.KillContainer(&leader)
}

// event waits for an Event of this test about a node, with a part of its message.
func (s *suite) event(node, reason, part string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		events, err := s.Cluster.Events(s.Ctx, node, reason)
		return slices.ContainsFunc(events, func(e corev1.Event) bool {
			return !e.CreationTimestamp.Time.Before(s.Began.Truncate(time.Second)) && strings.Contains(e.Message, part)
		}), err
	}, "no Event %s with %q about %s", reason, part, node)
}

// awaitSeries waits until the leader's metrics have a line.
func (s *suite) awaitSeries(line string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		_, name, err := s.Cluster.Leader(s.Ctx)
		if err != nil || name == "" {
			return false, nil // the API server may be on its way back
		}
		pod := corev1.Pod{}
		pod.Namespace, pod.Name = harness.Namespace, name
		body, _, err := s.Cluster.Get(s.Ctx, pod, "metrics")
		return err == nil && strings.Contains(body, "\nkube_node_ready_"+line+"\n"), nil
	}, "no series %s", line)
}

// awaitBreaker waits until a rule withholds, or does not.
func (s *suite) awaitBreaker(rule string, withholds bool) {
	s.T.Helper()
	value := 0
	if withholds {
		value = 1
	}
	s.awaitSeries(fmt.Sprintf(`breaker{reason="%s"} %d`, rule, value))
}
