package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// willJoinTainted reports whether a node like this one joins with the startup taint: this one did, or its NodePool or the chart's
// policy adds it.
func (c Cluster) willJoinTainted(node *corev1.Node) bool {
	declares := func(pool NodePool) bool {
		template, key := pool.Spec.Template.Spec, c.Release.Agent.TaintKey
		return pool.Name == node.Labels[nodePoolLabel] &&
			(fleet.HasKey(template.Taints, key) || fleet.HasKey(template.StartupTaints, key))
	}
	_, ofKarpenter := node.Labels[nodePoolLabel]
	adds := c.GateAll || c.Adds.Value && !ofKarpenter // the chart's policy leaves Karpenter's nodes alone
	return c.hasJoinedTainted(node) || slices.ContainsFunc(c.NodePools.Value, declares) || adds && c.isForRelease(node)
}

// hasJoinedTainted reports whether node has the startup taint, or had it before it was released.
func (c Cluster) hasJoinedTainted(node *corev1.Node) bool {
	key := c.Release.Agent.TaintKey
	released, _ := record.Parse(node.Annotations[nodepatch.Annotation])
	isStartup := func(text string) bool { return record.TaintKey(text) == key }
	return fleet.HasTaint(node, key) || slices.ContainsFunc(released.Removed, isStartup)
}

// isForRelease reports whether the release is for nodes like this one: the node rules select it, and it has not joined with
// another value of the verified label.
func (c Cluster) isForRelease(node *corev1.Node) bool {
	return c.Release.Settings.Rules.Select(node) && !c.Release.Settings.IsExcluded(node)
}

// repels reports whether one of the taints keeps a pod away.
func repels(pod *corev1.Pod, taints ...corev1.Taint) bool {
	return fleet.Untolerated(taints, pod.Spec.Tolerations) != nil
}

// placement is whether pods can run while every node that joins with the startup taint is new.
//
//	missing  noneCanRun  noneCouldRun
//	none     false       false         one of the pods tolerates all taints
//	some     false       false         nodes that the release is not for run the pods
//	some     false       true          nodes run the pods that the release is for: they may join with the startup taint later
//	some     true        true          no node that joins without the startup taint could run one of the pods
type placement struct {
	missing                  []string // keys of the taints that keep the pods away
	noneCanRun, noneCouldRun bool
	err                      error // why it is unknown which nodes join without the startup taint, where a pod needs one
}

func (c Cluster) placementOf(pods []corev1.Pod) (p placement) {
	taints := gatesOf(c.Release)
	for _, taint := range taints {
		if !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return !repels(&pod, taint) }) {
			p.missing = append(p.missing, taint.Key)
		}
	}
	if slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return !repels(&pod, taints...) }) {
		return placement{}
	}
	if len(p.missing) == 0 {
		p.missing = c.Release.TaintKeys() // some pod tolerates each, and none tolerates all of them
	}
	p.noneCanRun, p.noneCouldRun = true, true
	for _, node := range c.Nodes.Value {
		certain, possible := c.gates(&node)
		canRunHere := func(pod corev1.Pod) bool { // a Ready pod is where it can run, whatever has placed it, as on Fargate
			isHere := pod.Spec.NodeName == node.Name && fleet.IsReady(&pod)
			isFree := fleet.IsNodeReady(&node) && !repels(&pod, node.Spec.Taints...) && !node.Spec.Unschedulable
			return (isHere || isFree && matches(&pod, &node)) && !repels(&pod, certain...)
		}
		couldRunHere := func(pod corev1.Pod) bool { return canRunHere(pod) && !repels(&pod, possible...) }
		p.noneCanRun = p.noneCanRun && !slices.ContainsFunc(pods, canRunHere)
		p.noneCouldRun = p.noneCouldRun && !slices.ContainsFunc(pods, couldRunHere)
	}
	if !p.noneCanRun {
		p.err = errors.Join(c.Adds.Err, c.NodePools.Err)
	}
	return p
}

// report adds to r that the pods of a component wait for nodes, and what that prevents. The remedy has %s for the taints.
func (p placement) report(r *Result, prefix, component, effect, remedy string) {
	keys := strings.Join(p.missing, " and ")
	remedy = fmt.Sprintf(remedy, keys)
	switch {
	case p.err != nil:
		r.skip("%sthe pods of %s: %w", prefix, component, p.err)
	case p.noneCanRun:
		r.find(remedy, "%sno pod of %s tolerates %s, and no node that joins without the startup taint could run one: "+
			"once all nodes are new, %s", prefix, component, keys, effect)
	case p.noneCouldRun:
		r.warn(remedy, "%sno pod of %s tolerates %s, they run only on nodes that join without it: once all nodes join with the "+
			"startup taint, %s", prefix, component, keys, effect)
	}
}

// gates returns the taints that nodes like this one join with, and those that they may join with later, of every release.
func (c Cluster) gates(node *corev1.Node) (certain, possible []corev1.Taint) {
	for i, of := range c.Release.WithOthers() {
		if i > 0 {
			c = Cluster{Release: of, NodePools: c.NodePools}
		}
		if c.willJoinTainted(node) {
			certain = append(certain, gatesOf(of)...)
		}
		if c.isForRelease(node) {
			possible = append(possible, gatesOf(of)...)
		}
	}
	return certain, possible
}

// gatesOf returns the taints that a node may have until a release removes them. The first one is the startup taint.
func gatesOf(of installation.Release) []corev1.Taint {
	agent := of.Agent
	taints := []corev1.Taint{{Key: agent.TaintKey, Value: agent.TaintValue, Effect: corev1.TaintEffect(agent.TaintEffect)}}
	for _, key := range of.TaintKeys()[1:] {
		taints = append(taints, corev1.Taint{Key: key, Value: "*", Effect: corev1.TaintEffectNoSchedule}) // whatever has failed
	}
	return taints
}

// matches reports whether node has the labels that pod requires.
func matches(pod *corev1.Pod, node *corev1.Node) bool {
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && matches
}

// dnsBehindGate: the first node waits for DNS, and the DNS pods wait for the node.
func dnsBehindGate(c Cluster, r *Result) {
	service := c.Release.Agent.DNSService
	switch {
	case service == "":
		r.Passed = "config.dnsService is empty: no DNS pods are expected"
	case c.DNS.Value.External:
		r.Passed = "the Service " + service + " selects no pods: its endpoints are outside the nodes"
	case len(c.DNS.Value.Pods) == 0:
		r.find("start the DNS pods, or set config.dnsService to the cluster's DNS Service, or to empty if no pods serve DNS",
			"the Service %s has no pods, or is not there: no node can be verified", service)
	default:
		const remedy = "let the DNS pods tolerate %s (operator Exists): docs/operations.md, \"DNS pods\", has the command; " +
			"or run them on nodes that join without the startup taint"
		c.placementOf(c.DNS.Value.Pods).report(r, "", service, "nodes wait for DNS and DNS waits for a node", remedy)
	}
}

// networkBehindGate: the first node waits for its network, and what provides the network waits for the node.
func networkBehindGate(c Cluster, r *Result) {
	agents := append([]string{"anetd", "antrea-agent", "aws-node", "azure-cns", "calico-node", "canal", "cilium", "kindnet",
		"kube-flannel", "kube-flannel-ds", "kube-proxy", "kube-router", "netd", "ovnkube-node", "weave-net"}, dnsCaches()...)
	operators := []string{"calico-typha", "cilium-operator"}
	for _, set := range c.DaemonSets.Value {
		pod, report := corev1.Pod{Spec: set.Spec.Template.Spec}, r.warn
		isFor := func(node corev1.Node) bool { return matches(&pod, &node) && c.willJoinTainted(&node) }
		mayBeFor := func(node corev1.Node) bool { return matches(&pod, &node) && c.isForRelease(&node) }
		switch unknown := errors.Join(c.Adds.Err, c.NodePools.Err); {
		case !slices.Contains(agents, set.Name) || !repels(&pod, gatesOf(c.Release)[0]):
			continue
		case slices.ContainsFunc(c.Nodes.Value, isFor):
			report = r.find
		case !slices.ContainsFunc(c.Nodes.Value, mayBeFor):
			continue
		case unknown != nil:
			r.skip("the DaemonSet %s/%s: %w", set.Namespace, set.Name, unknown)
			continue
		}
		report("let its pods tolerate "+c.Release.Agent.TaintKey+" (operator Exists)", "the DaemonSet %s/%s does not tolerate %s: "+
			"it does not run on nodes that have the taint while they wait for their network", set.Namespace, set.Name,
			c.Release.Agent.TaintKey)
	}
	for _, deployment := range c.Deployments.Value {
		if slices.Contains(operators, deployment.Name) && isScaledUp(deployment) {
			pods := []corev1.Pod{{Spec: deployment.Spec.Template.Spec}}
			c.placementOf(pods).report(r, "", "the Deployment "+deployment.Namespace+"/"+deployment.Name,
				"the network of the nodes waits for it, and it waits for a node", "let its pods tolerate %s (operator Exists)")
		}
	}
}

func isScaledUp(deployment appsv1.Deployment) bool {
	return deployment.Spec.Replicas == nil || *deployment.Spec.Replicas > 0
}
