package nodepatch

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Client reads and patches one Node. Each call sends one request: client-go would wait for as long
// as a Retry-After says, and then report a timeout instead of the API server's answer.
type Client struct {
	REST rest.Interface // of the core group
	Name string         // of the Node
	// IfUnchanged makes SetCondition fail (409) if the Node has changed since it was read.
	IfUnchanged bool
	// Record is the new value of the annotation, which SetCondition writes in the same patch. If empty, the annotation is unchanged.
	Record string
	// Seen is called with each Node that an answer shows, unless it is nil.
	Seen func(*Node)
}

// Get reads the Node.
func (c Client) Get(ctx context.Context) (*Node, error) {
	return c.read(c.REST.Get().Resource("nodes").Name(c.Name).MaxRetries(0).Do(ctx))
}

// GetCached reads the Node from the API server's cache (resourceVersion=0), which costs etcd nothing and may be
// behind by some seconds.
func (c Client) GetCached(ctx context.Context) (*Node, error) {
	return c.read(c.REST.Get().Resource("nodes").Name(c.Name).Param("resourceVersion", "0").MaxRetries(0).Do(ctx))
}

// Patch sends a JSON patch and returns the patched Node.
func (c Client) Patch(ctx context.Context, patch []byte) (*Node, error) {
	return c.read(c.REST.Patch(types.JSONPatchType).Resource("nodes").Name(c.Name).Body(patch).MaxRetries(0).Do(ctx))
}

func (c Client) read(answer rest.Result) (*Node, error) {
	if err := answer.Error(); err != nil {
		return nil, err
	}
	body, _ := answer.Raw() // its error is that of Error
	node := new(Node)
	if err := json.Unmarshal(body, node); err != nil {
		return nil, fmt.Errorf("node %s: cannot read the API server's answer: %w", c.Name, err)
	}
	if node.Name != c.Name || node.UID == "" {
		return nil, fmt.Errorf("node %s: cannot read the API server's answer: it is not this Node", c.Name)
	}
	if c.Seen != nil {
		c.Seen(node)
	}
	return node, nil
}
