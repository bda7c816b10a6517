package doctor

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	requests "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// room: the agents of an installation come to the existing nodes too, with a priority that makes room for them on a full one.
func room(c Cluster) (r Result) {
	if !c.Release.NotInstalled {
		return Result{Detail: "the release is installed: kubectl node-ready lists the nodes without room for an agent"}
	}
	if c.Nodes.Err != nil || c.Used.Err != nil {
		return unchecked(c.Nodes.Err, c.Used.Err)
	}
	agent := requestsOf(&corev1.Pod{Spec: c.Release.Template.Spec})
	for _, node := range c.Nodes.Value {
		if _, labelled := node.Labels[c.Release.Agent.VerifiedLabel]; labelled || !c.Release.Settings.Rules.Select(&node) {
			continue
		}
		for _, name := range []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory} {
			needed, requested := agent[name]
			free, known := node.Status.Allocatable[name]
			if free.Sub(c.Used.Value[node.Name][name]); requested && known && free.Cmp(needed) < 0 {
				r.warn(`move a workload to another node; or leave existing nodes out: the README's section "Install" has the command`,
					"the node %s has no room for the agent (%s: %s needed, %s free): the scheduler preempts a workload there",
					node.Name, name, needed.String(), free.String())
				break
			}
		}
	}
	r.Detail = "each existing node has room for an agent"
	return r
}

// requestsOf returns what a pod takes of a node, its place included.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	list := requests.PodRequests(pod, requests.PodResourcesOptions{})
	list[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return list
}

// used sums up what the pods on each node request, page by page: a large cluster has many.
func (r Reader) used(ctx context.Context) (map[string]corev1.ResourceList, error) {
	used := make(map[string]corev1.ResourceList)
	for token := client.Continue(""); ; {
		var pods corev1.PodList
		if err := r.Client.List(ctx, &pods, client.Limit(500), token); err != nil {
			return nil, err
		}
		for _, pod := range pods.Items {
			if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
				sum := requestsOf(&pod)
				for name, of := range used[pod.Spec.NodeName] {
					of.Add(sum[name])
					sum[name] = of
				}
				used[pod.Spec.NodeName] = sum
			}
		}
		if token = client.Continue(pods.Continue); token == "" {
			return used, nil
		}
	}
}
