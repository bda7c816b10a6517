package doctor

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/requirement"
)

// requirements: what meets one must itself run on a node that is not released yet.
func requirements(c Cluster) (r Result) {
	switch {
	case len(c.Release.Agent.Require) == 0:
		return Result{Detail: "config.require is empty"}
	case c.Nodes.Err != nil || c.DaemonSets.Err != nil:
		return unchecked(c.Nodes.Err, c.DaemonSets.Err)
	}
	for _, e := range c.Release.Agent.Require {
		for key := range e.On {
			domain, _, _ := strings.Cut(key, "/")
			if strings.HasSuffix("."+domain, ".feature.node.kubernetes.io") || strings.HasSuffix("."+domain, ".nvidia.com") {
				r.warn("use a label that such nodes register with, such as node.kubernetes.io/instance-type",
					"%s: feature discovery adds the label %s later: a node may be released before it has the label", e, key)
			}
		}
		if e.Kind == requirement.DaemonSet {
			c.requiredDaemonSet(&r, e)
			continue
		}
		unmet := ""
		for i := range c.Nodes.Value {
			node := fleet.PatchNode(&c.Nodes.Value[i])
			if why := e.Unmet(node, nil); e.IsFor(node) && why != "" {
				unmet = node.Name + ": " + why
			} else if e.IsFor(node) {
				unmet = ""
				break
			}
		}
		if unmet != "" {
			r.find("correct config.require, or start what provides it", "no node meets %s (%s): no such node is released", e, unmet)
		}
	}
	r.Detail = "config.require has nothing that prevents a release"
	return r
}

func (c Cluster) requiredDaemonSet(r *Result, e requirement.Entry) {
	i := slices.IndexFunc(c.DaemonSets.Value, func(set appsv1.DaemonSet) bool { return set.Namespace+"/"+set.Name == e.Name })
	if i < 0 {
		r.find("create it, or correct config.require", "%s: there is none, so no node is released", e)
		return
	}
	set := c.DaemonSets.Value[i]
	switch keys := c.gateOf([]corev1.Pod{{Spec: set.Spec.Template.Spec}}).missing; {
	case len(keys) > 0:
		r.find("let it tolerate "+strings.Join(keys, " and ")+" (operator Exists)",
			"%s does not tolerate %s: it does not run on a node that waits for it", e, strings.Join(keys, " and "))
	case set.Status.DesiredNumberScheduled > 0 && set.Status.NumberReady == 0:
		r.find("kubectl -n "+set.Namespace+" describe daemonset "+set.Name, "%s: none of its pods is ready", e)
	}
}
