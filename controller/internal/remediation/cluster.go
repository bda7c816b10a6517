package remediation

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/pages"
	"github.com/imunhatep/kube-node-ready/internal/condition"
)

const (
	karpenterGroup = "karpenter.sh"
	nodeClaimKind  = "NodeClaim"
)

// readLive reads what Confirm needs from the API server, not from a cache: the node last, because it may be released while the
// others are read.
func (r *Remediator) readLive(ctx context.Context, candidate fleet.Status) (live Live, err error) {
	name := candidate.Node.Name
	if live.Claims, err = r.readClaims(ctx, candidate.Node); err != nil {
		return live, err
	}
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.MatchingFields{"spec.nodeName": name}); err != nil {
		return live, fmt.Errorf("pods on node %s: %w", name, err)
	}
	live.Pods = pods.Items
	if live.Workload, err = r.findWorkload(ctx, candidate.Node, live.Pods); err != nil {
		return live, err
	}
	if live.Events, err = r.readEvents(ctx, candidate); err != nil {
		return live, err
	}
	node := new(corev1.Node)
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return live, client.IgnoreNotFound(err)
	}
	live.Node = node
	if candidate.Reason == condition.NodeFailed {
		live.Unmet = r.Unmet(ctx, fleet.PatchNode(node))
	}
	return live, nil
}

// readEvents reads the Events of the agent's pod, if they may be why the controller says that the node has failed.
func (r *Remediator) readEvents(ctx context.Context, candidate fleet.Status) ([]corev1.Event, error) {
	pod := candidate.Pod
	if !candidate.Reason.Meaning().Controller || pod == nil {
		return nil, nil
	}
	var events corev1.EventList
	of := client.MatchingFields{"involvedObject.uid": string(pod.UID)}
	if err := r.Client.List(ctx, &events, client.InNamespace(pod.Namespace), of); err != nil {
		return nil, fmt.Errorf("events of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return events.Items, nil
}

// findWorkload returns the first of the node's pods that would miss the node, or "". A pod that tolerates the startup taint does
// not, while its owner has a ready pod on another node.
func (r *Remediator) findWorkload(ctx context.Context, node *corev1.Node, pods []corev1.Pod) (string, error) {
	readyElsewhere := sets.New[types.UID]() // owners
	for i := range pods {
		pod := &pods[i]
		if r.Settings.isExpendable(pod) {
			continue
		}
		name := pod.Namespace + "/" + pod.Name
		owner := r.Settings.replicatedBy(pod, node)
		if owner == nil {
			return name, nil
		}
		if readyElsewhere.Has(owner.UID) {
			continue
		}
		isReady, err := r.isReadyElsewhere(ctx, pod, owner.UID)
		if err != nil || !isReady {
			return name, err
		}
		readyElsewhere.Insert(owner.UID)
	}
	return "", nil
}

// isReadyElsewhere reports whether the owner of a pod has a ready one on another node.
func (r *Remediator) isReadyElsewhere(ctx context.Context, pod *corev1.Pod, owner types.UID) (bool, error) {
	isSibling := func(other corev1.Pod) bool {
		of, node := metav1.GetControllerOf(&other), other.Spec.NodeName
		return of != nil && of.UID == owner && node != "" && node != pod.Spec.NodeName && fleet.IsReady(&other)
	}
	for pods, err := range pages.Of(ctx, r.Client, new(corev1.PodList), client.InNamespace(pod.Namespace)) {
		if err != nil {
			return false, fmt.Errorf("pods in namespace %s: %w", pod.Namespace, err)
		}
		if slices.ContainsFunc(pods.Items, isSibling) {
			return true, nil
		}
	}
	return false, nil
}

// readClaims reads the NodeClaims of a node, in the version that the API server prefers. None is no error.
func (r *Remediator) readClaims(ctx context.Context, node *corev1.Node) ([]unstructured.Unstructured, error) {
	mapping, err := r.Client.RESTMapper().RESTMapping(schema.GroupKind{Group: karpenterGroup, Kind: nodeClaimKind})
	switch {
	case meta.IsNoMatchError(err):
		return nil, nil // a cluster without Karpenter
	case err != nil:
		return nil, fmt.Errorf("version of %s: %w", nodeClaimKind, err)
	}
	kind := mapping.GroupVersionKind
	for _, owner := range node.OwnerReferences {
		if owner.Kind != nodeClaimKind || !strings.HasPrefix(owner.APIVersion, karpenterGroup+"/") {
			continue
		}
		var claim unstructured.Unstructured
		claim.SetGroupVersionKind(kind)
		err := r.Client.Get(ctx, client.ObjectKey{Name: owner.Name}, &claim)
		switch {
		case apierrors.IsNotFound(err) || err == nil && claim.GetUID() != owner.UID:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("NodeClaim %s: %w", owner.Name, err)
		}
		return []unstructured.Unstructured{claim}, nil
	}
	return r.findClaims(ctx, kind, node.Name)
}

// findClaims returns the NodeClaims whose status names a node.
func (r *Remediator) findClaims(ctx context.Context, kind schema.GroupVersionKind, node string) (
	found []unstructured.Unstructured, err error) {
	empty := new(unstructured.UnstructuredList)
	empty.SetGroupVersionKind(kind.GroupVersion().WithKind(nodeClaimKind + "List"))
	for claims, err := range pages.Of(ctx, r.Client, empty) {
		if err != nil {
			return nil, fmt.Errorf("NodeClaims: %w", err)
		}
		for _, claim := range claims.Items {
			if name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName"); name == node {
				found = append(found, claim)
			}
		}
	}
	return found, nil
}

// kindOf returns Node or NodeClaim.
func kindOf(object client.Object) string {
	if _, isNode := object.(*corev1.Node); isNode {
		return "Node"
	}
	return nodeClaimKind
}

// isRefused reports whether the API server has not deleted an object, and nobody else has. After an error that is no answer it
// may have; so it may after a 409, where the request was repeated on its way. It reads the object again.
func (r *Remediator) isRefused(ctx context.Context, object client.Object, err error) bool {
	if !apierrors.IsConflict(err) && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return false
	}
	uid := object.GetUID()
	err = r.Client.Get(ctx, client.ObjectKeyFromObject(object), object)
	return err == nil && object.GetUID() == uid && object.GetDeletionTimestamp() == nil
}
