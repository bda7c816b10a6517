// Package livenode reads and patches Nodes by a client without a cache: the plugin's, or a fake one in tests.
package livenode

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// API is one node. What it returns beside an error means nothing.
type API struct {
	Client client.Client
	Name   string
}

// Get implements nodepatch.NodeAPI.
func (a API) Get(ctx context.Context) (*nodepatch.Node, error) {
	node := new(corev1.Node)
	err := a.Client.Get(ctx, client.ObjectKey{Name: a.Name}, node)
	return fleet.PatchNode(node), err
}

// Patch implements nodepatch.NodeAPI.
func (a API) Patch(ctx context.Context, patch []byte) (*nodepatch.Node, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.Name}}
	err := a.Client.Patch(ctx, node, client.RawPatch(types.JSONPatchType, patch))
	return fleet.PatchNode(node), err
}
