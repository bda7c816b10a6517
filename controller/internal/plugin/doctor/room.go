package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	requests "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// room: the agents of an installation come to the existing nodes too, with a priority that makes room for them on a full one.
func room(c Cluster) (r Result) {
	switch {
	case !c.Release.NotInstalled:
		return Result{Detail: "the release is installed: kubectl node-ready lists the nodes without room for an agent"}
	case c.Nodes.Err != nil || c.Used.Err != nil:
		return unchecked(c.Nodes.Err, c.Used.Err)
	}
	needed := requestsOf(&corev1.Pod{Spec: c.Release.Template.Spec})
	for _, node := range c.Nodes.Value {
		if _, labelled := node.Labels[c.Release.Agent.VerifiedLabel]; labelled || !c.Release.Settings.Rules.Select(&node) {
			continue
		}
		var full []string
		for _, name := range slices.Sorted(maps.Keys(needed)) {
			need, free, used := needed[name], node.Status.Allocatable[name], c.Used.Value[node.Name][name]
			if _, known := node.Status.Allocatable[name]; !known {
				continue
			}
			if free.Sub(used); free.Cmp(need) < 0 {
				full = append(full, fmt.Sprintf("%s (%s needed, %s free)", name, need.String(), free.String()))
			}
		}
		if len(full) > 0 {
			r.warn(`free it there; or the README's section "Install" has the command that leaves existing nodes out`,
				"the node %s has no room for the agent: %s; the scheduler preempts a workload there", node.Name, strings.Join(full, ", "))
		}
	}
	r.Detail = "each existing node has room for an agent"
	return r
}

// requestsOf returns what a pod takes of a node, itself included.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	list := requests.PodRequests(pod, requests.PodResourcesOptions{})
	list[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return list
}

// used sums up what the pods on each node request, page by page: a large cluster has many.
func (r Reader) used(ctx context.Context) Read[map[string]corev1.ResourceList] {
	return read(func() (map[string]corev1.ResourceList, error) {
		used := make(map[string]corev1.ResourceList)
		for token := client.Continue(""); ; {
			var pods corev1.PodList
			if err := r.Client.List(ctx, &pods, client.Limit(500), token); err != nil {
				return nil, err
			}
			for _, pod := range pods.Items {
				if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
					continue
				}
				sum := requestsOf(&pod)
				for name, of := range used[pod.Spec.NodeName] {
					of.Add(sum[name])
					sum[name] = of
				}
				used[pod.Spec.NodeName] = sum
			}
			if token = client.Continue(pods.Continue); token == "" {
				return used, nil
			}
		}
	})
}
