package recheck

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// What three broken nodes report.
const (
	peersFailed = "PeersFailed"
	silent      = "Silent"
	dnsFailed   = "DNSFailed,ServiceFailed"
)

// The first failure of a node is a warning; at the threshold its condition says what fails. The others name the neighbour that they do
// not reach, and pass.
func TestNeighboursOfANode(t *testing.T) {
	s := start(t, 4, 4)
	broken := nodes[0]
	agent := s.AgentPod(broken)
	s.dropForwarded(broken, dropPods()...)
	first := s.AwaitLog(agent, func(line harness.LogLine) bool {
		return line.Time.After(s.Began) && line.Msg == harness.MsgRecheckFailed
	})
	s.Contains(first.Reason, "peers")
	s.True(isGood(s.Node(broken)), "a single failure is no verdict")
	s.awaitFails(broken, peersFailed)
	t.Log(harness.Condition(s.Node(broken), harness.ConditionType).Message)
	s.Contains(s.event(broken, "NodeRecheckFailed", "peers: ")[0].Message, "agents on other nodes answers")
	others := append(slices.Clone(healthy), nodes[1:]...)
	// Not each of them: the sample of an agent that has started early may lack a few.
	s.Until(func() (bool, error) {
		return slices.ContainsFunc(others, func(other string) bool { return s.warnsOf(other, broken) }), nil
	}, "no neighbour names %s", broken)
	s.repair(broken)
	s.awaitGood(broken)
	s.event(broken, "NodeRecovered", "")
	s.Equal([]string{"False " + peersFailed, "True Verified"}, s.seen.conditions(broken))
	for _, other := range others {
		s.Empty(s.seen.conditions(other), other)
	}
}

// Three nodes fail for reasons of their own. Each is closed, once, and no other one. The leading controller is killed when a condition
// turns False, and when all nodes are closed: the next one goes on from what it finds. Once the nodes are repaired, their agents open
// them without a controller.
func TestFailingNodesAreClosedOnce(t *testing.T) {
	s := start(t, 6, 6)
	isolated, cutOff, nameless, reported := nodes[0], nodes[1], nodes[2], inFleet(0, 0)
	reasons := map[string]string{isolated: peersFailed, cutOff: silent, nameless: dnsFailed, reported: networkFailed}
	recover := s.fail(reported)
	s.killLeader()
	s.awaitControlGroup() // of the next leader
	s.dropForwarded(isolated, dropPods()...)
	s.dropForwarded(cutOff, "drop")
	s.drop(nameless, dropDNS)
	// As an agent does every five minutes: the next leader does not know how old a False is that it finds.
	s.NoError(s.report(s.Ctx, corev1.ConditionFalse, networkFailed, reported))
	for node, reason := range reasons {
		s.awaitClosed(node, reason)
		s.event(node, "FailedTaintAdded", strings.Split(reason, ",")[0])
	}
	s.awaitSeries("closed_nodes 4")
	s.awaitSeries(`recheck_failed_nodes{reason="Silent"} 1`)
	s.killLeader()
	s.awaitSeries("closed_nodes 4") // the next leader knows

	s.Undo(func(ctx context.Context) error { return s.scaleController(ctx, 2) })
	s.NoError(s.scaleController(s.Ctx, 0))
	s.repair(nodes...)
	s.awaitGood(nodes...)
	recover()
	s.NoError(s.scaleController(s.Ctx, 2))
	s.awaitOpen(reported) // nobody plays its agent: the controller does it
	for node := range reasons {
		s.Equal([]string{closed, opened}, s.seen.taints()[node], node)
	}
	s.Len(s.seen.taints(), len(reasons), "another node was touched")
	for _, node := range healthy {
		s.Empty(s.seen.conditions(node), node)
	}
}

// warnsOf reports whether the agent on a node has logged in this test that it does not reach another one.
func (s *suite) warnsOf(node, other string) bool {
	s.Helper()
	lines, err := s.Logs(s.Ctx, s.AgentPod(node))
	s.NoError(err)
	return slices.ContainsFunc(lines, func(line harness.LogLine) bool {
		return line.Time.After(s.Began) && line.Check == "peers" && strings.Contains(line.Warning, "on node "+other)
	})
}
