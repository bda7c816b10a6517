package remediation

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/renewal"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Keys of Karpenter and of this project.
const (
	nodePoolLabel = "karpenter.sh/nodepool"
	// DoNotDisrupt is an annotation that keeps Karpenter from a node.
	// https://karpenter.sh/docs/concepts/disruption/#node-level-controls
	DoNotDisrupt = "karpenter.sh/do-not-disrupt"
	// DoNotDelete keeps the controller from a node, as an annotation or a label, whatever its value is.
	DoNotDelete = "node-ready/do-not-delete"
)

// isCandidate reports whether a node was never verified, has the startup taint, is old enough, and has failed for one curable
// reason for long enough, without a break.
func (s Settings) isCandidate(status fleet.Status, now clock.Now) bool {
	node := status.Node
	_, wasReleased := node.Annotations[nodepatch.Annotation]
	_, isLabelled := node.Labels[s.Fleet.Keys.Label]
	isGated := !wasReleased && !isLabelled && fleet.HasTaint(node, s.Fleet.Keys.TaintKey)
	isOldEnough := !node.CreationTimestamp.IsZero() && now.IsOlder(node.CreationTimestamp.Time, s.DeleteAfter)
	// NodeFailed comes last in a reason: here it is the only failure.
	isCurable := status.Reason.Meaning().Curable || s.UnmetRequirements && status.Reason == condition.NodeFailed
	hasFailed := status.State == fleet.Failed && isCurable && now.Since(status.Since) >= s.FailedFor
	return isGated && isOldEnough && hasFailed && status.Untouchable == "" && !renewal.InDoubt(s.Fleet, status, now)
}

// protected says what forbids to replace a node, whatever its state is, or "".
func protected(node *corev1.Node) string {
	if fleet.IsControlPlane(node) {
		return "the node belongs to the control plane or etcd"
	}
	if key := forbiddenBy(node); key != "" {
		return "the node has " + key
	}
	return ""
}

// noNodePool says that nothing would replace a node, or "".
func (s Settings) noNodePool(node *corev1.Node) string {
	isKarpenters := fleet.HasTaint(node, karpenterGroup+"/unregistered") // Karpenter adds its labels later
	for key := range node.Labels {
		isKarpenters = isKarpenters || strings.HasPrefix(key, karpenterGroup+"/")
	}
	if nodePool(node) == "" && (isKarpenters || !s.DeleteNodes) {
		return "the node has no label " + nodePoolLabel + ": nothing would replace it"
	}
	return ""
}

// forbiddenBy returns the key of an annotation or label that forbids to delete an object, or "".
func forbiddenBy(object metav1.Object) string {
	for _, key := range []string{DoNotDisrupt, DoNotDelete} {
		for _, keys := range []map[string]string{object.GetAnnotations(), object.GetLabels()} {
			if _, found := keys[key]; found {
				return key
			}
		}
	}
	return ""
}

func nodePool(object metav1.Object) string { return object.GetLabels()[nodePoolLabel] }

// NoGroup is the scope of nodes that have neither a NodePool nor a managed node group.
const NoGroup = "node-group=none"

// scopeOf returns what the deletion of a node counts for: its NodePool; where Nodes are deleted too, also LABEL=NAME of a managed
// node group, or NoGroup. It is "" for other nodes.
func (s Settings) scopeOf(node metav1.Object) string {
	if pool := nodePool(node); pool != "" || !s.DeleteNodes {
		return pool
	}
	return cmp.Or(fleet.GroupOf(node), NoGroup)
}
