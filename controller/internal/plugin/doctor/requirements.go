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
			if domain, _, _ := strings.Cut(key, "/"); domain == "nvidia.com" || strings.HasSuffix(domain, "feature.node.kubernetes.io") {
				r.warn("use a label that such nodes register with, such as node.kubernetes.io/instance-type",
					"%s: feature discovery adds the label %s later: a node may be released before it has the label", e, key)
			}
		}
		if why := c.unmet(e); why != "" {
			r.find("start what provides it, and let it tolerate "+strings.Join(c.Release.TaintKeys(), " and ")+" (operator Exists); "+
				"or correct config.require", "%s: %s: no such node is released", e, why)
		}
	}
	r.Detail = "config.require has nothing that prevents a release"
	return r
}

// unmet says why no node meets a requirement although it is for one, or why no new node will, or "".
func (c Cluster) unmet(e requirement.Entry) (why string) {
	if e.Kind == requirement.DaemonSet {
		i := slices.IndexFunc(c.DaemonSets.Value, func(set appsv1.DaemonSet) bool { return set.Namespace+"/"+set.Name == e.Name })
		switch {
		case i < 0:
			return "there is none"
		case len(c.gateOf([]corev1.Pod{{Spec: c.DaemonSets.Value[i].Spec.Template.Spec}}).missing) > 0:
			return "its pods do not tolerate the taints of a node that waits for them"
		case c.DaemonSets.Value[i].Status.DesiredNumberScheduled > 0 && c.DaemonSets.Value[i].Status.NumberReady == 0:
			return "none of its pods is ready"
		}
		return ""
	}
	for i := range c.Nodes.Value {
		node := fleet.PatchNode(&c.Nodes.Value[i])
		if !e.IsFor(node) {
			continue
		}
		if why = e.Unmet(node, nil); why == "" {
			return ""
		}
		why = node.Name + ", for example: " + why
	}
	return why
}
