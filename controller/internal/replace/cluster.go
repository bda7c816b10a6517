package replace

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	karpenterGroup = "karpenter.sh"
	nodeClaimKind  = "NodeClaim"
)

// readLive reads what Confirm needs from the API server, not from a cache.
func (r *Replacer) readLive(ctx context.Context, name string) (live Live, err error) {
	node := new(corev1.Node)
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return live, client.IgnoreNotFound(err)
	}
	live.Node = node
	if live.Claims, err = r.readClaims(ctx, node); err != nil {
		return live, err
	}
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.MatchingFields{"spec.nodeName": name}); err != nil {
		return live, fmt.Errorf("pods on node %s: %w", name, err)
	}
	live.Pods = pods.Items
	namespaces := make(map[string]bool)
	for i := range live.Pods {
		if pod := &live.Pods[i]; !r.Settings.isExpendable(pod) && toleratesStartup(pod, node, r.Settings.Request.TaintKey) {
			namespaces[pod.Namespace] = true
		}
	}
	for namespace := range namespaces {
		if err := r.Client.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return live, fmt.Errorf("pods in namespace %s: %w", namespace, err)
		}
		live.Siblings = append(live.Siblings, pods.Items...)
	}
	return live, nil
}

// readClaims reads the NodeClaims of a node, in the version that the API server prefers. None is no error.
func (r *Replacer) readClaims(ctx context.Context, node *corev1.Node) ([]unstructured.Unstructured, error) {
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
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(nodeClaimKind + "List"))
	if err := r.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("NodeClaims: %w", err)
	}
	var found []unstructured.Unstructured
	for _, claim := range list.Items {
		if name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName"); name == node.Name {
			found = append(found, claim)
		}
	}
	return found, nil
}

// delete deletes a NodeClaim, if it is still the one that was read.
func (r *Replacer) delete(ctx context.Context, claim *unstructured.Unstructured) error {
	uid, version := claim.GetUID(), claim.GetResourceVersion()
	return r.Client.Delete(ctx, claim, client.Preconditions{UID: &uid, ResourceVersion: &version})
}

// isRefused reports whether the API server has said that it did not do what it was asked. After any other error it may have.
func isRefused(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}
