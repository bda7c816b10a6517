package recheck

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// What broken nodes report.
const (
	peersFailed = "PeersFailed"
	silent      = "Silent"
	dnsFailed   = "DNSFailed"               // the DNS pods are all on one node: that they do not answer may be that node's fault
	noDNS       = "DNSFailed,ServiceFailed" // there is no ready DNS pod
)

// Nodes of two releases fail at the same time.
func TestFailingNodes(t *testing.T) {
	s := start(t)
	t.Run("re-tainted once", func(t *testing.T) {
		t.Parallel()
		s.part(t).retaintedOnce()
	})
	t.Run("another release", func(t *testing.T) {
		t.Parallel()
		s.part(t).anotherRelease()
	})
}

// Three nodes fail for reasons of their own, and each is re-tainted, once. The leading controller is killed when a condition turns False,
// and when all nodes are re-tainted: the next one goes on from what it finds. Once the nodes are repaired, their agents remove the taint
// without a controller. Other nodes stay as they are.
func (s *suite) retaintedOnce() {
	isolated, cutOff, nameless, reported := nodes[0], nodes[1], nodes[2], inFleet(0, 0)
	reasons := map[string]string{isolated: peersFailed, cutOff: silent, nameless: dnsFailed, reported: networkFailed}
	repair := s.fail(reported)
	s.killLeader()
	s.awaitControlGroup() // of the next leader
	s.dropForwarded(isolated, dropPods()...)
	s.dropForwarded(cutOff, "drop")
	s.drop(nameless, dropDNS)
	// As an agent does every five minutes: the next leader does not know how old a False is that it finds.
	s.NoError(s.report(s.Ctx, corev1.ConditionFalse, networkFailed, reported))
	// Not each peer: the sample of an agent that has started early may lack a few.
	s.Until(func() (bool, error) {
		return s.warnsOf(harness.RealNode, isolated) || s.warnsOf(nameless, isolated), nil
	}, "no peer names %s", isolated)
	for node, reason := range reasons {
		s.awaitRetainted(node, reason)
		s.event(node, "FailedTaintAdded", strings.Split(reason, ",")[0])
	}
	s.event(isolated, "NodeRecheckFailed", "agents on other nodes answers")
	s.failedTwice(isolated)
	s.awaitSeries("retainted_nodes 4")
	s.awaitSeries(`recheck_failed_nodes{reason="Silent"} 1`)
	s.killLeader()
	s.awaitSeries("retainted_nodes 4") // the next leader knows

	s.Undo(func(ctx context.Context) error { return s.scaleController(ctx, 2) })
	s.NoError(s.scaleController(s.Ctx, 0))
	s.repair(nodes...)
	s.awaitGood(nodes...)
	s.event(isolated, "NodeRecovered", "")
	repair()
	s.NoError(s.scaleController(s.Ctx, 2))
	s.awaitTaintRemoved(reported) // nobody plays its agent: the controller does it
	for node := range reasons {
		s.Equal([]string{added, removed}, s.taints()[node], node)
	}
	s.Len(s.seen.taintsBut(others()...), len(reasons), "another node was touched")
	for _, shown := range s.seen.conditions(harness.RealNode) {
		s.NotContains(shown, peersFailed, "a peer that fails is no failure of this node")
	}
}

// One node loses the way to other pods: it is re-tainted, its pods stay, and once it is repaired its agent removes the taint.
// TestFailingNodes has more of them.
func TestFailingNode(t *testing.T) {
	s := start(t)
	s.dropForwarded(nodes[0], dropPods()...)
	s.awaitRetainted(nodes[0], peersFailed)
	s.event(nodes[0], "FailedTaintAdded", peersFailed)
	s.failedTwice(nodes[0])
	s.repair(nodes[0])
	s.awaitGood(nodes[0])
	s.awaitTaintRemoved(nodes[0])
	s.Len(s.taints(), 1, "another node was touched")
}

// failedTwice asserts that a round had failed, and another one, before the condition turned False: a single failure is no verdict.
func (s *suite) failedTwice(node string) {
	s.T.Helper()
	shown := harness.Condition(s.Node(node), harness.ConditionType)
	s.Equal(corev1.ConditionFalse, shown.Status)
	lines, err := s.Cluster.Logs(s.Ctx, s.AgentPod(node))
	s.NoError(err)
	failed := slices.DeleteFunc(lines, func(line harness.LogLine) bool {
		return line.Msg != harness.MsgRecheckFailed || line.Time.Before(s.Began) || line.Time.After(shown.LastTransitionTime.Add(5*time.Second))
	})
	s.GreaterOrEqual(len(failed), 2, "%v", failed)
	s.Contains(failed[0].Reason+failed[1].Reason, "peers")
}

// warnsOf reports whether the agent on a node has logged in this test that it does not reach another one.
func (s *suite) warnsOf(node, other string) bool {
	s.T.Helper()
	lines, err := s.Cluster.Logs(s.Ctx, s.AgentPod(node))
	s.NoError(err)
	return slices.ContainsFunc(lines, func(line harness.LogLine) bool {
		return line.Time.After(s.Began) && line.Check == "peers" && strings.Contains(line.Warning, "on node "+other)
	})
}
