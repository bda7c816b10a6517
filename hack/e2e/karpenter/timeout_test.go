package karpenter

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const failedTaint = "node-ready/failed"

// badNetwork makes a pod's network in which no name server is reached.
func (s *suite) badNetwork() (network string) {
	s.T.Helper()
	network = s.realPod("no-dns")
	s.dropDNS(network)
	return network
}

// dropDNS lets no name server be reached from a pod's network any more.
func (s *suite) dropDNS(network string) {
	s.T.Helper()
	s.nft(network, "table inet nodns { chain out { type filter hook output priority 0; meta l4proto { tcp, udp } th dport 53 drop; }; }")
}

func (s *suite) nft(network, script string) {
	s.T.Helper()
	_, err := s.Cluster.Run(s.Ctx, script, "nsenter", "--target", network, "--net", "nft", "-f", "-")
	s.NoError(err)
}

// A node that never passes. Until its time is over Karpenter counts on it: a second pod that would fit it gets no other node. Then
// the failed taint, which is no startup taint, says that nothing will run there: both pods get another node. When the node recovers, it
// is released and the failed taint removed at once.
func TestFailedTaintMakesKarpenterProvisionElsewhere(t *testing.T) {
	s := start(t, "config.onTimeout=taint", "config.initialTimeout=3s", "config.maxRetries=0")
	network := s.badNetwork()
	s.kubelet.networkOfTheFirst(network)
	choose, nominated := s.kubelet.network, make(chan struct{})
	s.kubelet.network = func(node string) string {
		select { // the time of its agent begins when Karpenter has counted on the node
		case <-nominated:
		case <-s.Ctx.Done():
		}
		return choose(node)
	}
	s.nodePools("1s")
	s.workload("stuck", 1)
	claim := s.await("Karpenter makes a node for a pod", nodeClaims, ofPool)
	known := s.await("it is registered", nodes, func(s state) bool {
		return ofPool(s) && labelled(registered)(s.node())
	})
	name := known.name()
	s.workload("more", 1)
	s.Contains(s.karpenterSays("more", "Nominated"), name, "Karpenter means to run it there")
	s.Len(s.seen.now(nodeClaims, always), 1, "and makes no other node")

	close(nominated)
	failed := s.await("its agent finds no name server, and INITIAL_TIMEOUT has passed: node-ready/failed:NoSchedule on", nodes, on(name, func(n *corev1.Node) bool { return harness.HasTaint(n, failedTaint) }))
	s.True(harness.HasTaint(failed.node(), harness.Taint))
	other := s.await("Karpenter makes another node", nodeClaims, func(s state) bool { return ofPool(s) && s.name() != claim.name() })
	good := s.await("which is verified", nodes, func(s state) bool { return ofPool(s) && s.name() != name && harness.Verified(s.node()) })
	away := func(p *corev1.Pod) bool { return p.Spec.NodeName == good.name() }
	bound := s.await("the pod that waited is bound there", pods, workloadPod("stuck", away))
	inOrder(t, claim, known, failed, other, good, bound)
	_ = s.await("and the second one", pods, workloadPod("more", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" && p.Spec.NodeName != name }))

	s.nft(network, "delete table inet nodns")
	recovered := s.await("the first node recovers: both taints off, label on", nodes, on(name, harness.Verified))
	s.False(harness.HasTaint(recovered.node(), failedTaint), "in the same patch")
	ready := s.await("Karpenter marks it initialized", nodes, on(name, labelled(initialized)))
	inOrder(t, bound, recovered, ready)
	printSteps(t, []step{claim, known, failed, other, good, bound, recovered, ready})
	s.Contains(s.kubelet.said(name), harness.MsgMarkedFailed)
}

// In a systemic failure every replacement fails too: Karpenter makes nodes up to the pool's limit, and stops there. With
// config.onTimeout=keep it makes one.
func TestLimitsEndReplacementsInAnOutage(t *testing.T) {
	const pools, limit = 2, 2 // CPUs of each pool; a node has one at least
	failing := []string{"config.initialTimeout=3s", "config.maxRetries=0"}
	for _, each := range []struct {
		policy  string
		cpus    int
		minimum int // of nodes
	}{{"keep", limit, 1}, {"taint", limit, 2}, {"taint", 1000, pools*limit + 2}} {
		t.Run(fmt.Sprintf("onTimeout=%s, limit %d", each.policy, each.cpus), func(t *testing.T) {
			if short := each.policy == "taint" && each.cpus == limit; !short && !harness.Long() {
				t.Skip("a minute, to compare with: make e2e-karpenter runs it")
			}
			s := start(t, append(failing, "config.onTimeout="+each.policy)...)
			network := s.badNetwork()
			s.kubelet.network = func(string) string { return network }
			s.nodePools("1s", "cpu: 64", fmt.Sprintf("cpu: %d", each.cpus))
			s.workload("stuck", 1)
			made := func() int { return len(s.seen.now(nodeClaims, ofPool)) }
			s.Until(func() (bool, error) { return made() >= each.minimum, nil }, "%d nodes", made())
			switch {
			case each.policy == "keep":
				node := s.await("its node is registered", nodes, func(s state) bool { return ofPool(s) && labelled(registered)(s.node()) })
				s.Until(func() (bool, error) { return strings.Contains(s.kubelet.said(node.name()), harness.MsgTimedOut), nil })
				s.Equal(1, made())
			case each.cpus == limit:
				s.Until(func() (bool, error) {
					return strings.Contains(s.karpenterSays("stuck", "FailedScheduling"), "exceed limits for nodepool"), nil
				})
				s.LessOrEqual(made(), pools*limit)
			}
			t.Logf("%d nodes for one pod", made())
		})
	}
}

// networkOfTheFirst makes the first node one with another network than the rest.
func (k *kubelet) networkOfTheFirst(network string) {
	first := ""
	k.network = func(node string) string {
		if first == "" {
			first = node
		}
		if node == first {
			return network
		}
		return k.home
	}
}
