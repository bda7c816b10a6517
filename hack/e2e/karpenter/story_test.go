package karpenter

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	unregistered = "karpenter.sh/unregistered"
	registered   = "karpenter.sh/registered"
	initialized  = "karpenter.sh/initialized"
)

func ofPool(s state) bool { return s.object.GetLabels()["karpenter.sh/nodepool"] == pool }

// await waits for a step of a story.
func (s *suite) await(what string, kind schema.GroupVersionResource, wanted func(state) bool) step {
	s.T.Helper()
	found, err := s.seen.await(s.Ctx, kind, wanted)
	s.NoError(err, "never seen: %s", what)
	return step{what, found}
}

// workloadPod sees a pod of a deployment.
func workloadPod(name string, wanted func(*corev1.Pod) bool) func(state) bool {
	return func(s state) bool { return s.object.GetLabels()["app"] == name && wanted(s.pod()) }
}

func agentPod(node string, wanted func(state) bool) func(state) bool {
	return func(s state) bool {
		return s.object.GetLabels()["app.kubernetes.io/name"] == harness.Name && s.pod().Spec.NodeName == node && wanted(s)
	}
}

// on sees a node as wanted.
func on(name string, wanted func(*corev1.Node) bool) func(state) bool {
	return func(s state) bool { return s.name() == name && !s.deleted && wanted(s.node()) }
}

// labelled reports whether a node has a label that is true.
func labelled(key string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return n.Labels[key] == "true" }
}

func always(state) bool { return true }

func TestPendingPodGetsAVerifiedNode(t *testing.T) {
	s := start(t)
	s.nodePools("1s")
	s.workload("story", 1)

	pending := s.await("a pod is pending: nothing fits it", pods, workloadPod("story", func(p *corev1.Pod) bool { return p.Spec.NodeName == "" }))
	claimed := s.await("Karpenter makes a NodeClaim of pool "+pool, nodeClaims, ofPool)
	created := s.await("the node is there, karpenter.sh/unregistered:NoExecute on", nodes, func(s state) bool {
		return ofPool(s) && harness.HasTaint(s.node(), unregistered)
	})
	name := created.name()
	known := s.await("Karpenter has registered it: that taint off, node-ready/unverified:NoSchedule on", nodes, on(name, func(n *corev1.Node) bool {
		return n.Labels[registered] == "true" && !harness.HasTaint(n, unregistered)
	}))
	s.True(harness.HasTaint(known.node(), harness.Taint), "the startup taint comes with the registration")
	bornAgent := s.await("the DaemonSet controller's pod is on it: the agent starts", pods, agentPod(name, always))
	verified := s.await("the agent has verified it: taint off, label on", nodes, on(name, harness.Verified))
	ready := s.await("Karpenter marks the node initialized", nodes, on(name, labelled(initialized)))
	claim := s.await("and its NodeClaim", nodeClaims, func(s state) bool { return s.name() == claimed.name() && s.condition("Initialized") })
	bound := s.await("the scheduler binds the pending pod to it", pods, workloadPod("story", func(p *corev1.Pod) bool { return p.Spec.NodeName == name }))
	gone := s.await("the agent's pod is gone", pods, agentPod(name, func(s state) bool { return s.deleted }))

	inOrder(t, pending, claimed, created, known, bornAgent, verified, ready, claim)
	inOrder(t, verified, bound) // by the scheduler, which asks nobody else
	inOrder(t, verified, gone)
	steps := []step{pending, claimed, created, known, bornAgent, verified, ready, claim, bound, gone}
	slices.SortStableFunc(steps[6:], func(a, b step) int { return int(a.revision) - int(b.revision) })
	printSteps(t, steps)
	s.overhead(claimed.name())
	s.Contains(s.kubelet.said(name), harness.MsgVerified)
}

// overhead shows what Karpenter has reserved on the node for the agent: the requests of the NodeClaim less those of the pod that
// wanted it.
func (s *suite) overhead(claim string) {
	s.T.Helper()
	object, err := s.dynamic.Resource(nodeClaims).Get(s.Ctx, claim, metav1.GetOptions{})
	s.NoError(err)
	requests, _, err := unstructured.NestedStringMap(object.Object, "spec", "resources", "requests")
	s.NoError(err)
	daemonSet, err := s.Cluster.Kube.AppsV1().DaemonSets(harness.Namespace).Get(s.Ctx, harness.Name, metav1.GetOptions{})
	s.NoError(err)
	agent := daemonSet.Spec.Template.Spec.Containers[0].Resources.Requests
	var lines []string
	for _, each := range []struct{ name, workload string }{{"cpu", "500m"}, {"memory", "256Mi"}} {
		rest := resource.MustParse(requests[each.name])
		rest.Sub(resource.MustParse(each.workload))
		want := agent[corev1.ResourceName(each.name)]
		s.Zero(rest.Cmp(want), "%s: %s reserved for %s of the agent", each.name, rest.String(), want.String())
		lines = append(lines, each.name+" "+rest.String())
	}
	s.T.Logf("Karpenter sizes the node for %v; of that for the agent: %s", requests, strings.Join(lines, ", "))
}

func TestFromNoneToManyAndBack(t *testing.T) {
	many := harness.Pick(10, 100)
	s := start(t)
	s.nodePools("1s")
	s.workload("many", many)
	began := s.await("all pods wait", pods, workloadPod("many", func(*corev1.Pod) bool { return true }))
	await := func(n int, what string, kind schema.GroupVersionResource, wanted func(state) bool) {
		s.Until(func() (bool, error) { return len(s.seen.now(kind, wanted)) == n, s.Ctx.Err() }, what)
	}
	await(many, "nodes", nodes, ofPool)
	await(many, "verified nodes", nodes, func(s state) bool { return ofPool(s) && harness.Verified(s.node()) })
	await(many, "initialized nodes", nodes, func(s state) bool { return ofPool(s) && labelled(initialized)(s.node()) })
	await(many, "running pods", pods, workloadPod("many", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }))

	// When each became what it is, by the watch.
	var steps []step
	for _, each := range []struct {
		what   string
		wanted func(*corev1.Node) bool
	}{
		{"created", func(*corev1.Node) bool { return true }},
		{"registered, with the startup taint", labelled(registered)},
		{"verified", harness.Verified},
		{"initialized", labelled(initialized)},
	} {
		first, last := s.firstAndLast(each.wanted)
		steps = append(steps, step{"the first node is " + each.what, first}, step{"the last node is " + each.what, last})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.revision) - int(b.revision) })
	steps = slices.Insert(steps, 0, began)

	s.scale("many", 0)
	await(0, "nodes left over", nodes, ofPool)
	await(0, "node claims left over", nodeClaims, always)
	last := s.await("all pods deleted; the last node is gone", nodes, func() func(state) bool {
		left := many
		return func(s state) bool {
			if ofPool(s) && s.deleted {
				left--
			}
			return left == 0
		}
	}())
	printSteps(t, append(steps, last))
	s.T.Logf("%d nodes and back to 0, none stuck", many)
}

// firstAndLast return the states at which the first and the last of the nodes came to be as wanted.
func (s *suite) firstAndLast(wanted func(*corev1.Node) bool) (first, last state) {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	done := make(map[string]bool)
	for _, each := range s.seen.states {
		if each.kind == nodes && ofPool(each) && !each.deleted && !done[each.name()] && wanted(each.node()) {
			done[each.name()] = true
			if first.object == nil {
				first = each
			}
			last = each
		}
	}
	return first, last
}
