package doctor

import (
	"errors"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// dnsBehindGate: the first node waits for DNS, and the DNS pods wait for the node.
func dnsBehindGate(c Cluster, r *Result) {
	service := c.Release.Agent.DNSService
	switch {
	case service == "":
		r.Passed = "config.dnsService is empty: no DNS pods are expected"
	case c.DNS.Absent:
		r.find("set config.dnsService to the cluster's DNS Service, or to empty where no pods serve DNS",
			"there is no Service %s: the service check never passes", service)
	case c.DNS.Value.External:
		r.Passed = "the Service " + service + " selects no pods: its endpoints are outside the nodes"
	case len(c.DNS.Value.Pods) == 0:
		r.find("start the DNS pods", "the Service %s has no pods: no node can be verified", service)
	default:
		const remedy = "let the DNS pods tolerate %s (operator Exists): docs/operations.md, \"DNS pods\", has the command; " +
			"or run them on nodes that join without the startup taint"
		c.placementOf(c.DNS.Value.Pods).report(r, "", service, "nodes wait for DNS and DNS waits for a node", remedy)
	}
}

// networkBehindGate: the first node waits for its network, and what provides the network waits for the node.
func networkBehindGate(c Cluster, r *Result) {
	agents := []string{"anetd", "antrea-agent", "aws-node", "azure-cns", "calico-node", "canal", "cilium", "kindnet", "kube-flannel",
		"kube-flannel-ds", "kube-proxy", "kube-router", "netd", "node-local-dns", "ovnkube-node", "weave-net"}
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
