package nodepatch

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Somebody else writes taints between the read and the patch: the patch is refused, built again, and loses nothing.
func TestRemoveTaintsLosesNoForeignTaint(t *testing.T) {
	node := newNode()
	node.Spec.Taints = []corev1.Taint{foreign("a"), ours(corev1.TaintEffectNoSchedule), {Key: failedKey, Effect: corev1.TaintEffectNoSchedule}}
	s := newServer(t, node)
	s.patching = func(n int, _ http.ResponseWriter) bool {
		if n == 1 {
			s.change(func(node *corev1.Node) { node.Spec.Taints = append([]corev1.Taint{foreign("b")}, node.Spec.Taints...) })
		}
		return false
	}
	removed, err := newPatcher(s).RemoveTaints(t.Context(), asRead(node), failing, "now")
	require.NoError(t, err)
	assert.Len(t, removed, 2)
	assert.Equal(t, "now", s.node.Annotations[Opened])
	assert.Equal(t, []corev1.Taint{foreign("b"), foreign("a")}, s.node.Spec.Taints)
	assert.Equal(t, node.Labels, s.node.Labels)
	assert.Equal(t, 2, s.count(http.MethodPatch))

	removed, err = newPatcher(s).RemoveTaints(t.Context(), asRead(s.node), failing, "later")
	require.NoError(t, err)
	assert.Empty(t, removed)
	assert.Equal(t, 2, s.count(http.MethodPatch), "nothing to remove, nothing sent")
}

func TestRemoveLabel(t *testing.T) {
	node := newNode()
	node.Labels = map[string]string{failing.Label: "false", "mine": "x"}
	s := newServer(t, node)
	removed, err := newPatcher(s).RemoveLabel(t.Context(), asRead(node), failing)
	require.NoError(t, err)
	assert.True(t, removed)
	assert.Equal(t, map[string]string{"mine": "x"}, s.node.Labels)

	removed, err = newPatcher(s).RemoveLabel(t.Context(), asRead(s.node), failing)
	require.NoError(t, err)
	assert.False(t, removed)

	// A 403 is the answer.
	s.node.Labels[failing.Label] = "true"
	s.patching = func(_ int, w http.ResponseWriter) bool {
		return answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not you")
	}
	_, err = newPatcher(s).RemoveLabel(t.Context(), asRead(s.node), failing)
	require.ErrorContains(t, err, "not you")
}
