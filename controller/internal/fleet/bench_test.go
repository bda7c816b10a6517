package fleet

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
)

// BenchmarkDecide decides about 5,000 verified nodes with the labels of a cloud.
func BenchmarkDecide(b *testing.B) {
	s := newStory(nil)
	for i := range 5000 {
		node := s.node(fmt.Sprint(i))
		node.Spec.Taints = nil
		node.Labels[verified] = "true"
		for j := range 25 {
			node.Labels[fmt.Sprintf("karpenter.k8s.aws/instance-%d", j)] = "value"
		}
		node.CreationTimestamp = metav1.Now()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	}
	b.ReportAllocs()
	for b.Loop() {
		s.objects.Seen = s.settings.Decide(s.objects, clock.At(time.Now(), time.Now())).Seen
	}
}
