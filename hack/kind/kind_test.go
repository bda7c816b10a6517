// Package kind checks the example for kind, which cannot run here, against kind's own types and kubeadm's.
package kind

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/v1beta4"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/yaml"
)

func TestWorkersJoinWithTheStartupTaint(t *testing.T) {
	text, err := os.ReadFile("../examples/kind/kind.yaml")
	require.NoError(t, err)
	var cluster v1alpha4.Cluster
	require.NoError(t, yaml.UnmarshalStrict(text, &cluster))
	assert.Equal(t, v1alpha4.TypeMeta{Kind: "Cluster", APIVersion: "kind.x-k8s.io/v1alpha4"}, cluster.TypeMeta)
	workers := 0
	for _, node := range cluster.Nodes {
		if node.Role == v1alpha4.ControlPlaneRole {
			assert.Empty(t, node.KubeadmConfigPatches, "the DNS pods run there")
			continue
		}
		workers++
		require.Len(t, node.KubeadmConfigPatches, 1)
		var join kubeadm.JoinConfiguration
		require.NoError(t, yaml.UnmarshalStrict([]byte(node.KubeadmConfigPatches[0]), &join))
		assert.Equal(t, "JoinConfiguration", join.Kind)
		assert.Empty(t, join.APIVersion, "kind applies a patch of another version to nothing")
		assert.Equal(t, []corev1.Taint{{Key: "node-ready/unverified", Value: "true", Effect: corev1.TaintEffectNoSchedule}},
			join.NodeRegistration.Taints)
	}
	assert.NotZero(t, workers)
}
