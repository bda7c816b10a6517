package doctor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// readinessRule is as in hack/examples, for nodes with a label.
func readinessRule(key, value string) ReadinessRule {
	rule := ReadinessRule{ObjectMeta: metav1.ObjectMeta{Name: "network"}}
	rule.Spec.Conditions, rule.Spec.EnforcementMode = []corev1.NodeCondition{{Type: "NodeVerified"}}, "bootstrap-only"
	rule.Spec.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}}}
	return rule
}

// The nodes are one that is verified, old, and one that waits for its release, new.
func TestReadinessRules(t *testing.T) {
	const linux = "linux"
	for name, test := range map[string]struct {
		edit func(*Cluster, *ReadinessRule)
		want []string
	}{
		"a verified node without the condition": {func(*Cluster, *ReadinessRule) {},
			[]string{"the NodeReadinessRule network selects the node old, where no agent comes to write NodeVerified"}},
		"a verified node with the condition": {func(c *Cluster, _ *ReadinessRule) {
			c.Nodes.Value[0].Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionTrue}}
		}, nil},
		"new pools only": {func(_ *Cluster, rule *ReadinessRule) { *rule = readinessRule("pool", "new") }, nil},
		"continuous": {func(_ *Cluster, rule *ReadinessRule) {
			*rule = readinessRule("pool", "new")
			rule.Spec.EnforcementMode = "continuous"
		}, []string{"the NodeReadinessRule network taints every node whose NodeVerified turns False, however many they are"}},
		"another condition": {func(_ *Cluster, rule *ReadinessRule) {
			rule.Spec.Conditions[0].Type, rule.Spec.EnforcementMode = "example.com/Storage", "continuous"
		}, nil},
		"a condition of ours with another name": {func(c *Cluster, rule *ReadinessRule) {
			rule.Spec.Conditions = append(rule.Spec.Conditions, corev1.NodeCondition{Type: "Ours"})
			c.Release.Agent.ConditionType, c.Release.Settings.ConditionType = "Ours", "Ours"
		}, []string{"the NodeReadinessRule network selects the node old, where no agent comes to write Ours"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, rule := clean(t), readinessRule("kubernetes.io/os", linux)
			test.edit(c, &rule)
			c.ReadinessRules.Value = []ReadinessRule{rule}
			var got []string
			for _, warning := range set(t, c, "readiness-rules").Warnings {
				got = append(got, warning.Text)
				assert.NotEmpty(t, warning.Remedy)
			}
			assert.Equal(t, test.want, got)
			var out strings.Builder
			assert.Zero(t, Report(&out, *c, nil), "warnings are no traps")
		})
	}
}
