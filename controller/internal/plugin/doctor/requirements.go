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
		unmet, met := "", false
		for i := range c.Nodes.Value {
			for _, judged := range (requirement.List{e}).Judge(fleet.PatchNode(&c.Nodes.Value[i]), nil) {
				unmet, met = c.Nodes.Value[i].Name+": "+judged.Unmet, met || judged.Unmet == ""
			}
		}
		if unmet != "" && !met {
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
	switch pod := (corev1.Pod{Spec: set.Spec.Template.Spec}); {
	case repels(&pod, c.ownTaints()...):
		r.find("let it tolerate "+strings.Join(c.Release.TaintKeys(), " and ")+" (operator Exists)",
			"%s does not tolerate the startup taint: it never runs on a node that waits for it", e)
	case set.Status.DesiredNumberScheduled > 0 && set.Status.NumberReady == 0:
		r.find("kubectl -n "+set.Namespace+" describe daemonset "+set.Name, "%s: none of its pods is ready", e)
	}
}
