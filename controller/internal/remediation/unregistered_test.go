package remediation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Karpenter has launched the machine (status.providerID), and has not registered the Node yet: no label, no owner, no nodeName.
func TestNodeThatKarpenterHasNotRegistered(t *testing.T) {
	w := newNodeWorld(t)
	made := false
	for range 180 {
		w.run(time.Minute)
		if n := w.nodes["bad-1"]; n != nil && !made {
			made = true
			claim := new(unstructured.Unstructured)
			claim.SetGroupVersionKind(claimKind())
			claim.SetName("claim-x")
			claim.SetLabels(map[string]string{nodePoolLabel: "p"})
			claim.Object["status"] = map[string]any{"providerID": n.Spec.ProviderID}
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute})
			w.update(n)
			require.NoError(t, w.client.Create(t.Context(), claim))
		}
	}
	require.True(t, made)
	assert.Empty(t, w.deletions, "a node of Karpenter")
}
