package nodepatch

import (
	"context"
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SetCondition adds or changes a condition of the Node, and returns the patched Node. LastTransitionTime changes only with the
// status.
//
// It sends a strategic merge patch, as kubelet does: the API server merges the list by condition type, which
// preserves concurrent changes of other conditions. It refuses the uid of another Node of the same name.
//
// serverNow is the API server's clock, because this node's own may not be set yet; if it is zero, this node's counts.
func (c Client) SetCondition(ctx context.Context, node *Node, condition Condition, serverNow time.Time) (*Node, error) {
	now := metav1.NewTime(serverNow)
	if serverNow.IsZero() {
		now = metav1.Now()
	}
	condition.LastHeartbeatTime, condition.LastTransitionTime = now, now
	if before := node.Status.Conditions.Of(condition.Type); before.Status == condition.Status {
		condition.LastTransitionTime = before.LastTransitionTime
	}
	metadata := map[string]any{"uid": node.UID}
	if c.IfUnchanged {
		metadata["resourceVersion"] = node.ResourceVersion
	}
	if c.Record != "" { // the status subresource accepts changes of annotations; kubelet uses it for its own
		metadata["annotations"] = map[string]string{Annotation: c.Record}
	}
	patch, _ := json.Marshal(map[string]any{ // of strings and times: it cannot fail
		"metadata": metadata,
		"status":   map[string]any{"conditions": []Condition{condition}},
	})
	return c.read(c.REST.Patch(types.StrategicMergePatchType).Resource("nodes").Name(c.Name).SubResource("status").
		Body(patch).MaxRetries(0).Do(ctx))
}
