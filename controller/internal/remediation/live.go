package remediation

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// Live is one candidate as the API server has it now.
type Live struct {
	Node *corev1.Node // nil: gone
	Pods []corev1.Pod // on the node
	// Events are those of the agent's pod, if the candidate's reason depends on them.
	Events []corev1.Event
	// Unmet is what the node does not show of what REQUIRE demands, if the candidate's reason depends on it.
	Unmet string
	// Workload is the first of Pods that would miss the node, "": none would.
	Workload string
	// Claims are the NodeClaims that the Node's ownerReference names, else those whose status names the Node.
	Claims []unstructured.Unstructured
}

// Confirm decides about a candidate with its live objects, once Decide has allowed it. It returns the NodeClaim or the Node to
// delete, or what withholds the deletion. seen is the memory of the plan that the candidate comes from.
func (s Settings) Confirm(candidate fleet.Status, live Live, seen fleet.Memory, now clock.Now) (client.Object, *act.Withheld) {
	if live.Node == nil || live.Node.UID != candidate.Node.UID {
		return nil, s.withheld(candidate, Changed, "the node is gone")
	}
	if statuses := s.decideAgain(candidate, live, seen, now); len(statuses) == 0 || !s.isCandidate(statuses[0], now) {
		return nil, s.withheld(candidate, Changed, "the node or its pod has changed since the decision")
	}
	if candidate.Reason == condition.NodeFailed && live.Unmet == "" { // its agent or the controller is about to release it
		return nil, s.withheld(candidate, Changed, "the node shows what REQUIRE demands")
	}
	if text := protected(live.Node); text != "" {
		return nil, s.withheld(candidate, Protected, text)
	}
	if text := s.noNodePool(live.Node); text != "" {
		return nil, s.withheld(candidate, NoNodePool, text)
	}
	object, rule, text := toDelete(live)
	if rule != "" {
		return nil, s.withheld(candidate, rule, text)
	}
	if live.Workload != "" {
		return nil, s.withheld(candidate, Workload, "pod "+live.Workload+" runs on the node")
	}
	return object, nil
}

// decideAgain decides about a candidate as the fleet does, from its live objects: what is not as it was begins just now. It
// returns nothing if the node is not selected any more.
func (s Settings) decideAgain(candidate fleet.Status, live Live, seen fleet.Memory, now clock.Now) []fleet.Status {
	objects := fleet.Objects{Nodes: []corev1.Node{*live.Node}, Unmet: map[string]string{live.Node.Name: live.Unmet}, Seen: seen}
	if candidate.Pod != nil {
		pod := candidate.Pod
		objects.Events = map[types.UID][]corev1.Event{pod.UID: append([]corev1.Event{}, live.Events...)} // not nil: they have been read
		isSame := func(other corev1.Pod) bool { return other.UID == pod.UID }
		isForeign := func(other corev1.Pod) bool {
			isOurs := other.Namespace == pod.Namespace && maps.Equal(fleet.OwnLabels(other.Labels), fleet.OwnLabels(pod.Labels))
			return !isSame(other) && !isOurs
		}
		if slices.ContainsFunc(live.Pods, isSame) { // with any other agent or worker of the release: it may have passed
			objects.Pods = slices.DeleteFunc(slices.Clone(live.Pods), isForeign)
		}
	}
	return s.Fleet.Decide(objects, now).Statuses
}

// toDelete returns the node's one NodeClaim, or the Node where nothing says that Karpenter manages it. The NodeClaim must be for
// this machine, not for an earlier one of the same name.
func toDelete(live Live) (client.Object, Rule, string) {
	switch {
	case len(live.Claims) > 1:
		return nil, NoNodeClaim, fmt.Sprintf("%d NodeClaims name the node", len(live.Claims))
	case len(live.Claims) == 0 && (nodePool(live.Node) != "" || len(live.Node.OwnerReferences) > 0):
		return nil, NoNodeClaim, "the node has no NodeClaim: its machine would stay"
	case len(live.Claims) == 0: // without DeleteNodes, noNodePool has withheld it
		return live.Node, "", ""
	}
	claim := &live.Claims[0]
	providerID, _, _ := unstructured.NestedString(claim.Object, "status", "providerID")
	switch {
	case providerID != live.Node.Spec.ProviderID:
		return nil, NoNodeClaim, "NodeClaim " + claim.GetName() + " is for another machine"
	case nodePool(claim) != nodePool(live.Node) || nodePool(claim) == "":
		return nil, NoNodeClaim, "NodeClaim " + claim.GetName() + " is of another NodePool"
	case claim.GetDeletionTimestamp() != nil:
		return nil, Changed, "NodeClaim " + claim.GetName() + " is being deleted"
	case isInitialized(claim): // the chart's policy refuses this one too
		return nil, Protected, "Karpenter has initialized NodeClaim " + claim.GetName() + ": declare the startup taint in its NodePool"
	}
	if key := forbiddenBy(claim); key != "" {
		return nil, Protected, "NodeClaim " + claim.GetName() + " has " + key
	}
	return claim, "", ""
}

// isInitialized reports whether Karpenter regards the startup as over: the startup taints that it knows are removed.
func isInitialized(claim *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(claim.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(condition any) bool {
		fields, _ := condition.(map[string]any)
		return fields["type"] == "Initialized" && fields["status"] == "True"
	})
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

// replicatedBy returns the owner of a pod that tolerates the startup taint, else nil: its other pods may stand in for this one.
func (s Settings) replicatedBy(pod *corev1.Pod, node *corev1.Node) *metav1.OwnerReference {
	for i, taint := range node.Spec.Taints {
		tolerates := func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &node.Spec.Taints[i], true) }
		if taint.Key == s.Fleet.Keys.TaintKey && !slices.ContainsFunc(pod.Spec.Tolerations, tolerates) {
			return nil
		}
	}
	return metav1.GetControllerOf(pod)
}
