package loop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

func slim(t *testing.T, node *corev1.Node) *corev1.Node {
	object, err := fleet.SlimNode("NodeVerified", false, "kept")(node)
	require.NoError(t, err)
	return object.(*corev1.Node)
}

// 5,000 kubelets send 17 heartbeats a second: none of them may lead to a decision.
func TestHeartbeatIsNoChange(t *testing.T) {
	node := func(version string, at time.Time, ready corev1.ConditionStatus) *corev1.Node {
		return slim(t, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: version, Annotations: map[string]string{"kept": "a", "other": version}},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.NewTime(at)},
					{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.NewTime(at)}},
				Images: []corev1.ContainerImage{{Names: []string{"image-" + version}}},
			},
		})
	}
	before := node("1", time.Unix(1, 0), corev1.ConditionTrue)
	assert.False(t, Changed().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: node("2", time.Unix(2, 0), corev1.ConditionTrue)}))
	assert.True(t, Changed().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: node("2", time.Unix(2, 0), corev1.ConditionFalse)}))
	assert.Equal(t, map[string]string{"kept": "a"}, before.Annotations)
	assert.Empty(t, before.Status.Images)
}
