package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Controller mode: a node failed DNS, and somebody has let it in by hand, and left it out by the label: the stale False must go.
func TestStaleFalseOfAnExcludedNode(t *testing.T) {
	keys := nodepatch.Keys{TaintKey: "t", FailedTaintKey: "f", Label: "l", LabelValue: "true"}
	s := Settings{Rules: NewRules(new(corev1.PodTemplateSpec), keys), Keys: keys, ConditionType: "NodeVerified", Workers: true}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{"l": "preexisting"}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse, Reason: "DNSFailed"}}
	plan := s.Decide(Objects{Nodes: []corev1.Node{node}}, clock.At(time.Now(), time.Now()))
	require.Len(t, plan.Conditions, 1)
	require.Equal(t, corev1.ConditionUnknown, plan.Conditions[0].Status)
}
