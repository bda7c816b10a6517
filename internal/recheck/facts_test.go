package recheck

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

func TestRead(t *testing.T) {
	const record = `{"time":"2026-01-02T03:04:05Z","duration":"1s","removed":["node-ready/unverified=true:NoSchedule"]}`
	const leftover = `{"time":"2026-01-02T03:04:05Z","duration":"1s","removed":["node-ready/failed=dns:NoSchedule"]}`
	keys := nodepatch.Keys{TaintKey: "node-ready/unverified", FailedTaintKey: "node-ready/failed",
		Label: "node-ready/verified", LabelValue: "true"}
	at := time.Now()
	ours := nodepatch.Condition{Type: "NodeVerified", Status: False, Reason: "Silent"}
	failed := nodepatch.Taint{Key: "node-ready/failed", Effect: "NoSchedule"}
	for name, test := range map[string]struct {
		edit func(*nodepatch.Node)
		at   time.Time
		want Facts
	}{
		"verified":          {func(*nodepatch.Node) {}, at, Facts{Verified: true}},
		"without the label": {func(n *nodepatch.Node) { n.Labels = nil }, at, Facts{}},
		"the startup taint is back": {func(n *nodepatch.Node) { n.Spec.Taints = []nodepatch.Taint{{Key: "node-ready/unverified"}} }, at,
			Facts{}},
		"released from a startup taint": {func(n *nodepatch.Node) { n.Annotations = map[string]string{nodepatch.Annotation: record} }, at,
			Facts{Verified: true, Gated: true}},
		"released from a leftover": {func(n *nodepatch.Node) { n.Annotations = map[string]string{nodepatch.Annotation: leftover} }, at,
			Facts{Verified: true}},
		"with the condition": {func(n *nodepatch.Node) {
			n.Status.Conditions = []nodepatch.Condition{{Type: "Ready", Status: True}, ours}
		}, at,
			Facts{Verified: true, Gated: true, Shown: Shown{False, "Silent"}}},
		"another condition": {func(n *nodepatch.Node) { n.Status.Conditions = []nodepatch.Condition{{Type: "Ready", Status: True}} }, at,
			Facts{Verified: true}},
		"re-tainted": {func(n *nodepatch.Node) { n.Spec.Taints = []nodepatch.Taint{failed} }, at, Facts{Verified: true, Retainted: true}},
		"cordoned":   {func(n *nodepatch.Node) { n.Spec.Unschedulable = true }, at, Facts{Verified: true, Untouchable: "it is cordoned"}},
	} {
		t.Run(name, func(t *testing.T) {
			node := new(nodepatch.Node)
			node.Labels = map[string]string{"node-ready/verified": "true"}
			test.edit(node)
			test.want.ReadAt = test.at
			assert.Equal(t, test.want, Read(node, test.at, keys, "NodeVerified"))
		})
	}
}
