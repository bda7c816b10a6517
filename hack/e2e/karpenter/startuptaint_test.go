package karpenter

import (
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// startupTaints is how the example's NodePools declare the startup taint.
const startupTaints = `      startupTaints:
        - key: node-ready/unverified
          value: "true"
          effect: NoSchedule
`

// With startupTaint.add, a NodePool that does not declare the startup taint: its nodes do not get it, and one pod gets one node.
func TestStartupTaintIsNotForKarpenter(t *testing.T) {
	s := start(t, "startupTaint.add=true", "config.lateTaintWindow=1s")
	s.awaitStartupTaint()
	s.nodePools("1s", startupTaints, "")
	s.workload("one", 1)
	bound := s.await("the pod is bound", pods, workloadPod("one", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }))
	node := bound.pod().Spec.NodeName
	s.await("Karpenter marks the node initialized", nodes, on(node, labelled(initialized)))
	s.await("the agent labels it all the same", nodes, on(node, labelled(harness.Label)))
	s.Len(s.seen.now(nodeClaims, always), 1)
	s.Empty(s.seen.of(nodes, func(s state) bool { return ofPool(s) && harness.HasTaint(s.node(), harness.Taint) }))
	t.Logf("with the exception for Karpenter: %d NodeClaim for one pod", len(s.seen.of(nodeClaims, always)))
}

// What the exception is for: Karpenter takes an undeclared taint for one that stays, and provisions again.
func TestTrapUndeclaredStartupTaintProvisionsTwice(t *testing.T) {
	s := start(t, "startupTaint.add=true")
	// The taint stays long enough for Karpenter to look at the node.
	network := s.badNetwork()
	s.kubelet.network = func(string) string { return network }
	policies := s.Cluster.Kube.AdmissionregistrationV1().MutatingAdmissionPolicies()
	policy, err := policies.Get(s.Ctx, harness.Name+"-startup-taint", metav1.GetOptions{})
	s.NoError(err)
	before := len(policy.Spec.MatchConditions)
	policy.Spec.MatchConditions = slices.DeleteFunc(policy.Spec.MatchConditions, func(c admissionv1.MatchCondition) bool { return c.Name == "not-of-karpenter" })
	s.Len(policy.Spec.MatchConditions, before-1)
	for i, condition := range policy.Spec.MatchConditions {
		if condition.Name == "tolerations" { // which covers it too, as long as the agent does not tolerate that taint
			policy.Spec.MatchConditions[i].Expression = "true"
		}
	}
	_, err = policies.Update(s.Ctx, policy, metav1.UpdateOptions{})
	s.NoError(err)
	s.awaitStartupTaint(corev1.Taint{Key: unregistered, Effect: corev1.TaintEffectNoExecute})

	s.nodePools("1s", startupTaints, "", "cpu: 64", "cpu: 2")
	s.workload("one", 1)
	s.Until(func() (bool, error) {
		// A NodeClaim that is deleted before its Node is there would leave the Node behind.
		claims := len(s.seen.of(nodeClaims, always))
		return claims > 1 && len(s.seen.of(nodes, ofPool)) >= claims, nil
	}, "one NodeClaim only")
	t.Logf("without the exception for Karpenter: %d NodeClaims for one pod", len(s.seen.of(nodeClaims, always)))
}

// awaitStartupTaint waits until a node that registers with taints gets the startup taint.
func (s *suite) awaitStartupTaint(taints ...corev1.Taint) {
	s.T.Helper()
	probe := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	probe.Spec.Taints = taints
	s.Until(func() (bool, error) {
		got, err := s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && harness.HasTaint(got, harness.Taint), err
	}, "the policy is not in force")
}

// of returns the states of a kind that are as wanted, of each object one.
func (tl *timeline) of(kind schema.GroupVersionResource, wanted func(state) bool) map[string]state {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	found := make(map[string]state)
	for _, s := range tl.states {
		if s.kind == kind && wanted(s) {
			found[s.name()] = s
		}
	}
	return found
}
