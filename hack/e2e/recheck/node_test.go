package recheck

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// What three broken nodes report.
const (
	peersFailed  = "PeersFailed"
	silent       = "Silent"
	withoutNames = "DNSFailed,ServiceFailed"
)

// The first failure of a node is a warning; at the threshold its condition says what fails, and the others see a neighbour that they
// do not reach. The condition is True again once it passes.
func TestConditionOfANode(t *testing.T) {
	s := start(t, 4, 4)
	broken := nodes[0]
	agent := s.AgentPod(broken)
	s.dropForwarded(broken, dropPods)
	first := s.AwaitLog(agent, func(line harness.LogLine) bool {
		return line.Time.After(s.Began) && line.Msg == harness.MsgRecheckFailed
	})
	s.Contains(first.Reason, "peers")
	s.True(isGood(s.Node(broken)), "a single failure is no verdict")
	s.awaitFails(broken, peersFailed)
	t.Log(harness.Condition(s.Node(broken), harness.ConditionType).Message)
	s.Contains(s.event(broken, "NodeRecheckFailed", "peers: ")[0].Message, "none of ")
	others := append(slices.Clone(healthy), nodes[1:]...)
	for _, other := range others {
		s.AwaitLog(s.AgentPod(other), func(line harness.LogLine) bool {
			return line.Time.After(s.Began) && line.Check == "peers" && strings.Contains(line.Warning, broken)
		})
		s.True(isGood(s.Node(other)))
	}
	s.repair(broken)
	s.awaitGood(broken)
	s.event(broken, "NodeRecovered", "")
	s.Equal([]string{"False " + peersFailed, "True Verified"}, s.seen.conditions(broken))
	for _, other := range others {
		s.Empty(s.seen.conditions(other), other)
	}
}

// Three nodes fail for reasons of their own. Each is closed, once, and no other one. The leading controller is killed right after it
// has closed the first, and the next one finds that node closed. Once all are repaired, their agents open them without a controller.
func TestClosedOnceAndOpenedWithoutController(t *testing.T) {
	s := start(t, 5, 5)
	isolated, cutOff, nameless := nodes[0], nodes[1], nodes[2]
	reasons := map[string]string{isolated: peersFailed, cutOff: silent, nameless: withoutNames}
	s.dropForwarded(isolated, dropPods)
	s.dropForwarded(cutOff, "drop")
	s.drop(nameless, dropDNS)

	s.awaitFails(isolated, peersFailed)
	if harness.Long() { // the next one waits until its own checks have passed for long enough
		s.killLeader()
	}
	s.awaitAnyClosed(nodes)
	s.killLeader()
	for node, reason := range reasons {
		s.awaitClosed(node, reason)
		s.event(node, "FailedTaintAdded", strings.Split(reason, ",")[0])
	}
	s.awaitSeries("closed_nodes 3")
	s.awaitSeries(`recheck_failed_nodes{reason="Silent"} 1`)
	s.Len(s.seen.taints(), 3, "another node was touched")

	s.Undo(func(ctx context.Context) error { return s.scaleController(ctx, 2) })
	s.NoError(s.scaleController(s.Ctx, 0))
	s.repair(nodes...)
	s.awaitGood(nodes...)
	for node := range reasons {
		s.Equal([]string{closed, opened}, s.seen.taints()[node], node)
	}
	s.Empty(s.seen.conditions(harness.RealNode))
}
