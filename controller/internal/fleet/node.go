package fleet

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// isLeftBehind reports whether node, which is not selected (any more), has something that only the controller would correct: the
// failed taint, or the condition False. A node that fails goes on failing while a taint keeps its agent away.
func (s Settings) isLeftBehind(node *corev1.Node) bool {
	condition := s.Condition(node)
	fails := condition.Status == corev1.ConditionFalse && (s.isOwnFalse(condition) || !s.IsExcluded(node))
	return s.IsRetainted(Taints(node)) || fails && s.Rules.matches(node)
}

// IsExcluded reports whether node is left out by another value of the label, so that it has no agent, and has no taint of ours.
func (s Settings) IsExcluded(node *corev1.Node) bool {
	value, labelled := node.Labels[s.Keys.Label]
	return labelled && value != s.Keys.LabelValue && !slices.ContainsFunc(Taints(node), s.Keys.Removes)
}

// IsStranded reports whether node has the startup taint although the rules exclude it, so that it is never released.
func (s Settings) IsStranded(node *corev1.Node) bool {
	return HasTaint(node, s.Keys.TaintKey) && !s.Rules.Select(node)
}

// IsRetainted reports whether taints have the failed taint that this release's controller adds to verified nodes.
func (s Settings) IsRetainted(taints []nodepatch.Taint) bool {
	return slices.ContainsFunc(taints, func(taint nodepatch.Taint) bool {
		return taint.Key == s.Keys.FailedTaintKey && taint.Value == s.FailedTaintValue && s.FailedTaintValue != ""
	})
}

// isOwnFalse reports whether our condition is False for a reason that the controller writes.
func (s Settings) isOwnFalse(condition corev1.NodeCondition) bool {
	return condition.Status == corev1.ConditionFalse && s.mode().writes(FirstReason(condition))
}

// IsGated reports whether only an agent or a worker releases node: it has the startup taint, must be verified again, or was
// opened manually in controller mode. In daemonset mode the agent comes to every node without the label.
func (s Settings) IsGated(node *corev1.Node) bool {
	_, released := node.Annotations[nodepatch.Annotation]
	_, labelled := node.Labels[s.Keys.Label]
	return HasTaint(node, s.Keys.TaintKey) || !labelled && (released || s.isOpened(node))
}

// isOpened reports whether node, in controller mode, was opened manually and has not been verified since.
func (s Settings) isOpened(node *corev1.Node) bool {
	_, released := node.Annotations[nodepatch.Annotation]
	isOpen := node.Annotations[nodepatch.Opened] != "" && !released && !HasTaint(node, s.Keys.TaintKey)
	return isOpen && s.mode().verifiesOpened()
}

// IsVerified reports whether node needs no verification.
func (s Settings) IsVerified(node *corev1.Node) bool {
	if s.Rechecks.Enabled() {
		return s.Keys.StaysVerified(node.Labels, Taints(node))
	}
	return s.Keys.IsVerified(node.Labels, Taints(node))
}

// Condition returns our condition of node, or an empty one.
func (s Settings) Condition(node *corev1.Node) corev1.NodeCondition {
	return NodeCondition(node, corev1.NodeConditionType(s.ConditionType))
}

// NodeCondition returns one of a node's conditions, or an empty one.
func NodeCondition(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	return firstOf(node.Status.Conditions, func(condition corev1.NodeCondition) bool { return condition.Type == kind })
}

// firstOf returns the first of a list that is wanted, or an empty one.
func firstOf[T any](list []T, isWanted func(T) bool) (found T) {
	if i := slices.IndexFunc(list, isWanted); i >= 0 {
		return list[i]
	}
	return found
}

// FirstReason returns the first known reason of a condition, and NotVerified if none is known.
func FirstReason(shown corev1.NodeCondition) condition.Reasons {
	return cmp.Or(condition.Parse(shown.Reason).Meaning().Reason, condition.NotVerified)
}

// MayBeSandbox reports whether our condition is False, since a known time, for a reason that the sandbox of a running agent can
// cause.
func MayBeSandbox(condition corev1.NodeCondition) bool {
	isFalse := condition.Status == corev1.ConditionFalse && !condition.LastTransitionTime.IsZero()
	return isFalse && FirstReason(condition).Meaning().BySandbox
}

// WasGated reports whether node had the startup taint before it was released.
func (s Settings) WasGated(node *corev1.Node) bool {
	return record.WasGated(node.Annotations[nodepatch.Annotation], node.Annotations[nodepatch.Opened], s.Keys.FailedTaintKey)
}

// IsNodeReady reports whether kubelet reports node as ready.
func IsNodeReady(node *corev1.Node) bool {
	return NodeCondition(node, corev1.NodeReady).Status == corev1.ConditionTrue
}

// Untouchable returns why the controller must not change node, or "".
func Untouchable(node *corev1.Node) string {
	asked := nodepatch.Node{ObjectMeta: node.ObjectMeta} // each plan asks: no conversion of the conditions
	asked.Spec.Unschedulable, asked.Spec.Taints = node.Spec.Unschedulable, Taints(node)
	return nodepatch.Untouchable(&asked)
}

// IsControlPlane reports whether node is one of the control plane, or a server of k3s or RKE2 that runs only etcd. The chart's
// policies know the same roles.
func IsControlPlane(node *corev1.Node) bool {
	return slices.ContainsFunc([]string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd",
		"node-role.kubernetes.io/master"}, func(key string) bool {
		_, labelled := node.Labels[key]
		return labelled || HasTaint(node, key)
	})
}

// GroupOf returns the NodePool or managed node group of a node, as LABEL=NAME, or "".
func GroupOf(node metav1.Object) string {
	for _, label := range []string{"karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup", "cloud.google.com/gke-nodepool",
		"kubernetes.azure.com/agentpool"} {
		if name := node.GetLabels()[label]; name != "" {
			return label + "=" + name
		}
	}
	return ""
}

// HasTaint reports whether node has a taint with this key, of any effect.
func HasTaint(node *corev1.Node, key string) bool {
	return HasKey(node.Spec.Taints, key)
}

// HasKey reports whether one of the taints has this key.
func HasKey(taints []corev1.Taint, key string) bool {
	return slices.ContainsFunc(taints, func(taint corev1.Taint) bool { return taint.Key == key })
}
