package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// Only a pod that has ended as a whole takes no room.
func TestUsedCountsAPodWhoseAgentHasEnded(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dd", Namespace: "x"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{
		{Name: "agent", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}},
		{Name: "other", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "agent", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}},
			{Name: "other", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}
	used, err := Reader{Client: fake.NewClientBuilder().WithObjects(pod).Build()}.used(t.Context())
	require.NoError(t, err)
	q := used["n"]["cpu"]
	assert.Equal(t, "2", q.String())
}
