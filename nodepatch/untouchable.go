package nodepatch

import "slices"

// Untouchable says why nothing is to be done to node, or "": it is being drained, or goes away.
func Untouchable(node *Node) string {
	has := func(keys ...string) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(taint Taint) bool { return slices.Contains(keys, taint.Key) })
	}
	switch {
	case node.DeletionTimestamp != nil:
		return "it is being deleted"
	case node.Spec.Unschedulable:
		return "it is cordoned"
	case has("karpenter.sh/disrupted", "karpenter.sh/disruption"):
		return "Karpenter is disrupting it"
	case has("ToBeDeletedByClusterAutoscaler"):
		return "Cluster Autoscaler is deleting it"
	}
	return ""
}
