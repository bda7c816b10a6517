package replace

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// Live is one candidate as the API server has it now.
type Live struct {
	Node *corev1.Node // nil: gone
	Pods []corev1.Pod // on the node
	// Siblings are the pods in the namespaces of those that tolerate the startup taint.
	Siblings []corev1.Pod
	// Claims are the NodeClaims that the Node's ownerReference names, else those whose status names the Node.
	Claims []unstructured.Unstructured
}

// Confirm decides about a candidate with its live objects, once Decide has allowed it. It returns the NodeClaim to delete, or
// the rule that withholds the deletion.
func (s Settings) Confirm(candidate fleet.Status, live Live, serverNow, now time.Time) (claim *unstructured.Unstructured,
	rule Rule, text string) {
	if live.Node == nil || live.Node.UID != candidate.Node.UID {
		return nil, Changed, "the node is gone"
	}
	candidate.Node, candidate.Untouchable = live.Node, fleet.Untouchable(live.Node)
	if !s.isCandidate(candidate, serverNow, now) {
		return nil, Changed, "the node has changed meanwhile"
	}
	if rule, text := protected(live.Node); rule != "" {
		return nil, rule, text
	}
	if claim, rule, text = claimOf(live); rule != "" {
		return nil, rule, text
	}
	if name := s.workload(live); name != "" {
		return nil, Workload, "pod " + name + " runs on the node"
	}
	return claim, "", ""
}

// claimOf returns the node's one NodeClaim. It must be for this machine, not for an earlier one of the same name.
func claimOf(live Live) (*unstructured.Unstructured, Rule, string) {
	switch n := len(live.Claims); {
	case n == 0:
		return nil, NoNodeClaim, "the node has no NodeClaim: its machine would stay"
	case n > 1:
		return nil, NoNodeClaim, fmt.Sprintf("%d NodeClaims name the node", n)
	}
	claim := &live.Claims[0]
	providerID, _, _ := unstructured.NestedString(claim.Object, "status", "providerID")
	switch {
	case providerID != live.Node.Spec.ProviderID:
		return nil, NoNodeClaim, "NodeClaim " + claim.GetName() + " is for another machine"
	case nodePool(claim) != nodePool(live.Node):
		return nil, NoNodeClaim, "NodeClaim " + claim.GetName() + " is of another NodePool"
	case claim.GetDeletionTimestamp() != nil:
		return nil, Changed, "NodeClaim " + claim.GetName() + " is being deleted"
	}
	if key := forbids(claim); key != "" {
		return nil, Protected, "NodeClaim " + claim.GetName() + " has " + key
	}
	return claim, "", ""
}

// workload returns a pod that would miss the node, or "".
func (s Settings) workload(live Live) string {
	for i := range live.Pods {
		pod := &live.Pods[i]
		isReplicated := toleratesStartup(pod, live.Node, s.Request.TaintKey) && hasReadySibling(pod, live.Siblings)
		if !s.isExpendable(pod) && !isReplicated {
			return pod.Namespace + "/" + pod.Name
		}
	}
	return ""
}

// isExpendable reports whether a pod belongs to the node (a DaemonSet's, a static one), is a worker of ours, or has finished.
func (s Settings) isExpendable(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	if _, static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return true
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	return owner.Kind == "DaemonSet" && owner.APIVersion == "apps/v1" || owner.Kind == "Node" && pod.Namespace == s.PodNamespace
}

// toleratesStartup reports whether a pod may run on gated nodes.
func toleratesStartup(pod *corev1.Pod, node *corev1.Node, key string) bool {
	for i, taint := range node.Spec.Taints {
		tolerates := func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &node.Spec.Taints[i], true) }
		if taint.Key == key && !slices.ContainsFunc(pod.Spec.Tolerations, tolerates) {
			return false
		}
	}
	return true
}

// hasReadySibling reports whether another pod of the same owner is ready on another node.
func hasReadySibling(pod *corev1.Pod, siblings []corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && slices.ContainsFunc(siblings, func(other corev1.Pod) bool {
		otherOwner := metav1.GetControllerOf(&other)
		isElsewhere := other.Spec.NodeName != "" && other.Spec.NodeName != pod.Spec.NodeName
		return otherOwner != nil && otherOwner.UID == owner.UID && isElsewhere && isReady(&other)
	})
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
