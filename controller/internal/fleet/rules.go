package fleet

import (
	corev1 "k8s.io/api/core/v1"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Rules select the nodes that the agent's DaemonSet is for.
type Rules struct {
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
	keys        nodepatch.Keys
}

// noNode is the key of a label that no node has.
const noNode = "node-ready/no-node-has-this"

// NewRules reads the rules of the agent's pod template. Those that keep the agent away by the verified label do not count: once
// the label is gone, the agent comes.
func NewRules(template *corev1.PodTemplateSpec, keys nodepatch.Keys) Rules {
	affinity := template.Spec.Affinity.DeepCopy()
	for _, term := range requiredTerms(affinity) {
		for i, rule := range term.MatchExpressions {
			keepsAway := rule.Operator == corev1.NodeSelectorOpDoesNotExist || rule.Operator == corev1.NodeSelectorOpNotIn
			if rule.Key == keys.Label && keepsAway {
				term.MatchExpressions[i].Key = noNode // not removed: a term without a rule would match no node
			}
		}
	}
	return Rules{
		affinity:    nodeaffinity.NewRequiredNodeAffinity(template.Spec.NodeSelector, affinity),
		tolerations: append(addedTolerations(), template.Spec.Tolerations...),
		keys:        keys,
	}
}

// requiredTerms returns the terms of which a node must match one; none: each node may be selected.
func requiredTerms(affinity *corev1.Affinity) []corev1.NodeSelectorTerm {
	if affinity == nil || affinity.NodeAffinity == nil {
		return nil
	}
	required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return nil
	}
	return required.NodeSelectorTerms
}

// addedTolerations are those that the DaemonSet controller adds to each of its pods.
// https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations
func addedTolerations() (added []corev1.Toleration) {
	for key, effect := range map[string]corev1.TaintEffect{
		corev1.TaintNodeNotReady:       corev1.TaintEffectNoExecute,
		corev1.TaintNodeUnreachable:    corev1.TaintEffectNoExecute,
		corev1.TaintNodeDiskPressure:   corev1.TaintEffectNoSchedule,
		corev1.TaintNodeMemoryPressure: corev1.TaintEffectNoSchedule,
		corev1.TaintNodePIDPressure:    corev1.TaintEffectNoSchedule,
		corev1.TaintNodeUnschedulable:  corev1.TaintEffectNoSchedule,
	} {
		added = append(added, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect})
	}
	return added
}

// Select reports whether the rules are for node: affinity and node selector match it, whether it is verified or not. A
// taint that no agent tolerates keeps a node out too, unless the node has the startup taint, which only an agent removes.
func (r Rules) Select(node *corev1.Node) bool {
	return r.matches(node) && (r.Untolerated(node) == nil || HasTaint(node, r.keys.TaintKey))
}

func (r Rules) matches(node *corev1.Node) bool {
	matches, err := r.affinity.Match(node)
	return err == nil && matches
}

// Untolerated returns a taint that keeps the agent away from node, or nil.
func (r Rules) Untolerated(node *corev1.Node) *corev1.Taint {
	return Untolerated(node.Spec.Taints, r.tolerations)
}

// Untolerated returns the first of the taints that keeps a pod with these tolerations away, or nil.
func Untolerated(taints []corev1.Taint, tolerations []corev1.Toleration) *corev1.Taint {
	keepsAway := func(taint *corev1.Taint) bool { return taint.Effect != corev1.TaintEffectPreferNoSchedule }
	taint, found := scheduling.FindMatchingUntoleratedTaint(klog.Background(), taints, tolerations, keepsAway, true)
	if !found {
		return nil
	}
	return &taint
}
