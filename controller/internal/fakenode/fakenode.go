// Package fakenode reads and patches Nodes of a fake client, for tests.
package fakenode

import (
	"context"
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	return slim(node, a.Client.Get(ctx, client.ObjectKey{Name: a.Name}, node))
}

// GetCached implements nodepatch.NodeAPI.
func (a API) GetCached(ctx context.Context) (*nodepatch.Node, error) { return a.Get(ctx) }

// Patch implements nodepatch.NodeAPI.
func (a API) Patch(ctx context.Context, patch []byte) (*nodepatch.Node, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.Name}}
	return slim(node, a.Client.Patch(ctx, node, client.RawPatch(types.JSONPatchType, patch)))
}

func slim(node *corev1.Node, failure error) (*nodepatch.Node, error) {
	read := new(nodepatch.Node)
	text, err := json.Marshal(node)
	if err := errors.Join(failure, err, json.Unmarshal(text, read)); err != nil {
		return nil, err
	}
	return read, nil
}
