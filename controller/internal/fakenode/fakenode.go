// Package fakenode reads and patches Nodes of a fake client, for tests.
package fakenode

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// API is one node.
type API struct {
	Client client.Client
	Name   string
}

// Get implements nodepatch.NodeAPI.
func (a API) Get(ctx context.Context) (*nodepatch.Node, error) {
	node := new(corev1.Node)
	return converted(node, a.Client.Get(ctx, client.ObjectKey{Name: a.Name}, node))
}

// GetCached implements nodepatch.NodeAPI.
func (a API) GetCached(ctx context.Context) (*nodepatch.Node, error) { return a.Get(ctx) }

// Patch implements nodepatch.NodeAPI.
func (a API) Patch(ctx context.Context, patch []byte) (*nodepatch.Node, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.Name}}
	return converted(node, a.Client.Patch(ctx, node, client.RawPatch(types.JSONPatchType, patch)))
}

func converted(node *corev1.Node, err error) (*nodepatch.Node, error) {
	if err != nil {
		return nil, err
	}
	return fleet.PatchNode(node), nil
}
