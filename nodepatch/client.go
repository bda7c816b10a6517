package nodepatch

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Client reads and patches one Node through the API. Each call is one request, whatever the answer:
// client-go would wait for as long as a Retry-After says, and then report that the time was over
// instead of what the API server had said.
type Client struct {
	REST rest.Interface // of the core group
	Name string         // of the Node
}

// Get reads the Node.
func (c Client) Get(ctx context.Context) (*Node, error) {
	return c.read(c.REST.Get().Resource("nodes").Name(c.Name).MaxRetries(0).Do(ctx))
}

// Patch sends a JSON patch and returns the Node as it is after it.
func (c Client) Patch(ctx context.Context, patch []byte) (*Node, error) {
	return c.read(c.REST.Patch(types.JSONPatchType).Resource("nodes").Name(c.Name).Body(patch).MaxRetries(0).Do(ctx))
}

func (c Client) read(answer rest.Result) (*Node, error) {
	if err := answer.Error(); err != nil {
		return nil, err
	}
	body, err := answer.Raw()
	if err != nil {
		return nil, err
	}
	node := new(Node)
	if err := json.Unmarshal(body, node); err != nil {
		return nil, fmt.Errorf("node %s as the API server sent it: %w", c.Name, err)
	}
	if node.Name != c.Name || node.UID == "" {
		return nil, fmt.Errorf("node %s as the API server sent it: another object, or none", c.Name)
	}
	return node, nil
}
