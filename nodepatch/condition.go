package nodepatch

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SetCondition puts a condition on the Node, or changes it, and dates it. The time of its last transition stays as long as its
// status does.
//
// It is a strategic merge patch, as kubelet sends it: the list is merged by the conditions' types, so those of others stay, whoever
// writes them at the same time. The uid makes the API server refuse it for another Node of the same name.
func (c Client) SetCondition(ctx context.Context, node *Node, condition Condition) error {
	now := metav1.Now()
	condition.LastHeartbeatTime, condition.LastTransitionTime = now, now
	for _, before := range node.Status.Conditions {
		if before.Type == condition.Type && before.Status == condition.Status {
			condition.LastTransitionTime = before.LastTransitionTime
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status":   map[string]any{"conditions": []Condition{condition}},
	})
	if err != nil {
		return fmt.Errorf("condition of node %s: %w", c.Name, err)
	}
	return c.REST.Patch(types.StrategicMergePatchType).Resource("nodes").Name(c.Name).SubResource("status").
		Body(patch).MaxRetries(0).Do(ctx).Error()
}
