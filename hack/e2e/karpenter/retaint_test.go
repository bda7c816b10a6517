package karpenter

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// rechecking deploys agents that stay, and a controller that re-taints nodes which fail later.
var rechecking = []string{
	"controller.enabled=true", "controller.replicas=1", "controller.image.repository=" + harness.ControllerImage,
	"controller.image.tag=" + harness.Tag, "controller.image.pullPolicy=Never",
	`controller.nodeSelector.kubernetes\.io/hostname=` + realNode,
	"controller.retaint.enabled=true", "controller.retaint.controlGroupFor=5s",
	"controller.retaint.coolDown=5s", "controller.retaint.noAgentFor=30s", // longer than an agent takes to start again
	"config.enableMetrics=true", "config.recheckInterval=10s", "config.failureThreshold=2", "config.recoveryThreshold=2",
	"config.maxRetries=0",
}

// A verified node fails its rechecks and is re-tainted. Karpenter no longer counts on it: a pod that would fit it gets another node, and
// the pod that runs there stays until Karpenter moves it. Consolidation ends.
func TestRetaintedNodeIsNotCountedOn(t *testing.T) {
	s := start(t, rechecking...)
	s.Undo(func(ctx context.Context) error { return s.Cluster.Undeploy(ctx, rechecking...) })
	networks := s.networkForEach(3)
	s.nodePools("1s")
	s.workload("story", 1)
	firstClaim := s.await("Karpenter makes a node for a pod", nodeClaims, ofPool)
	first := s.await("the first node is verified", nodes, func(s state) bool { return ofPool(s) && harness.Verified(s.node()) })
	running := s.await("its pod runs", pods, workloadPod("story", func(p *corev1.Pod) bool { return p.Spec.NodeName == first.name() }))

	s.dropDNS(networks[0])
	failed := s.await("its condition turns False", nodes, on(first.name(), isFalse))
	retainted := s.await("the controller re-taints it: node-ready/failed:NoSchedule on", nodes, on(first.name(), func(n *corev1.Node) bool { return harness.HasTaint(n, failedTaint) }))
	s.workload("more", 1)
	claim := s.await("Karpenter makes another node for a pod that would fit it", nodeClaims, func(s state) bool { return ofPool(s) && s.name() != firstClaim.name() })
	second := s.await("which is verified", nodes, func(s state) bool {
		return ofPool(s) && s.name() != first.name() && harness.Verified(s.node())
	})
	bound := s.await("the pod is bound there", pods, workloadPod("more", func(p *corev1.Pod) bool { return p.Spec.NodeName == second.name() }))
	inOrder(t, first, failed, retainted, claim, second, bound)
	printSteps(t, []step{first, running, failed, retainted, claim, second, bound})

	made := s.untilNoNewClaim(time.Duration(harness.Pick(20, 300)) * time.Second)
	t.Logf("%d NodeClaims were made in all, %d are there", made, len(s.seen.now(nodeClaims, ofPool)))
	s.LessOrEqual(made, 3, "consolidation loops")
	for _, name := range []string{"story", "more"} {
		running := workloadPod(name, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
		s.Until(func() (bool, error) { return len(s.seen.now(pods, running)) == 1, s.Ctx.Err() }, name) // Karpenter may be moving it
	}
}

// networkForEach gives each of the first n nodes a pod's network of its own, in which its agent serves its metrics.
func (s *suite) networkForEach(n int) (networks []string) {
	s.T.Helper()
	for i := range n {
		networks = append(networks, s.realPod("network-"+string(rune('a'+i))))
	}
	var mu sync.Mutex
	of := make(map[string]string)
	s.kubelet.network = func(node string) string {
		mu.Lock()
		defer mu.Unlock()
		if of[node] == "" {
			of[node] = networks[min(len(of), n-1)]
		}
		return of[node]
	}
	return networks
}

// untilNoNewClaim waits until no NodeClaim was made for so long, and returns how many were made in all.
func (s *suite) untilNoNewClaim(quiet time.Duration) int {
	s.T.Helper()
	made, since := 0, time.Now()
	s.Until(func() (bool, error) {
		if now := s.seen.everMade(nodeClaims); now != made {
			made, since = now, time.Now()
		}
		return time.Since(since) > quiet, nil
	}, "Karpenter goes on making nodes")
	return made
}
