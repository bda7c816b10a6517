package verification

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// judged is what a node is opened by, beside the Node itself.
type judged struct {
	checked types.UID
	now     time.Time
}

func TestWithheld(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, test := range map[string]struct {
		change func(o *judged, node *nodepatch.Node)
		why    string
	}{
		"opened":                         {func(*judged, *nodepatch.Node) {}, ""},
		"another Node":                   {func(_ *judged, node *nodepatch.Node) { node.UID = "uid-2" }, "another Node"},
		"never read":                     {func(o *judged, _ *nodepatch.Node) { o.checked = "" }, "another Node"},
		"being deleted":                  {func(_ *judged, node *nodepatch.Node) { node.DeletionTimestamp = new(metav1.Now()) }, "being deleted"},
		"labelled":                       {func(_ *judged, node *nodepatch.Node) { node.Labels = map[string]string{"node-ready/verified": "true"} }, "label"},
		"too young":                      {func(o *judged, _ *nodepatch.Node) { o.now = o.now.Add(-time.Second) }, "INITIAL_TIMEOUT"},
		"the API server's clock unknown": {func(o *judged, _ *nodepatch.Node) { o.now = time.Time{} }, "INITIAL_TIMEOUT"},
		"a taint of WAIT_FOR_TAINTS": {func(_ *judged, node *nodepatch.Node) {
			node.Spec.Taints = append(node.Spec.Taints, nodepatch.Taint{Key: "cni.example/not-ready"})
		}, "WAIT_FOR_TAINTS"},
		"a Karpenter node without its labels": {func(_ *judged, node *nodepatch.Node) {
			node.Spec.Taints = append(node.Spec.Taints, nodepatch.Taint{Key: "karpenter.sh/unregistered"})
		}, "WAIT_FOR_TAINTS"},
		"opened a moment ago": {func(o *judged, node *nodepatch.Node) {
			node.Annotations = map[string]string{nodepatch.Annotation: record.Record{Opened: o.now.Add(-time.Minute)}.String()}
		}, "INITIAL_TIMEOUT"},
		"opened long ago": {func(o *judged, node *nodepatch.Node) {
			node.Annotations = map[string]string{nodepatch.Annotation: record.Record{Opened: o.now.Add(-time.Hour)}.String()}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			node := &nodepatch.Node{ObjectMeta: metav1.ObjectMeta{UID: "uid-1", CreationTimestamp: metav1.NewTime(created)}}
			node.Spec.Taints = []nodepatch.Taint{{Key: "node-ready/unverified"}, {Key: "example.com/other"}}
			o := judged{"uid-1", created.Add(initialTimeout)}
			test.change(&o, node)
			if why := Begin(settings(), Facts{UID: o.checked}, "", created).Withheld(node, o.now); test.why == "" {
				assert.Empty(t, why)
			} else {
				assert.Contains(t, why, test.why)
			}
		})
	}
}

// The node is opened INITIAL_TIMEOUT after its network checks have begun to fail, once.
func TestOpening(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(m *model)
		want    []time.Duration // when it is opened
		isOpen  bool
	}{
		"the network fails from the start": {func(m *model) { m.fails("dns") }, []time.Duration{initialTimeout + 5*time.Second}, true},
		"it fails later": {func(m *model) {
			m.runFor(4 * time.Minute)
			m.fails("dns")
		}, []time.Duration{9*time.Minute + 5*time.Second}, true},
		"it passes for a moment": {func(m *model) {
			m.fails("dns")
			m.runFor(4 * time.Minute)
			m.apply(Passed{})
			m.fails("dns")
		}, []time.Duration{9*time.Minute + 5*time.Second}, true},
		"only the check node fails":       {func(m *model) { m.fails("node") }, nil, false},
		"the network, then only the node": {func(m *model) { m.fails("dns"); m.fails("node") }, nil, false},
		"a foreign taint is waited for":   {func(m *model) { m.attempts(errBroken, "dns"); m.apply(Waits{Failure: Failure{"taints", "x"}}) }, nil, false},
		"ON_TIMEOUT does not name it":     {func(m *model) { m.settings.Opens = false; m.fails("dns") }, nil, false},
		"it was opened by an earlier agent": {func(m *model) {
			m.node = Facts{UID: "a", Opened: m.start.Add(-time.Hour)}
			m.fails("dns")
		}, nil, true},
		"the API server refuses it at first": {func(m *model) {
			m.fails("dns")
			m.refused = errRefused
			m.runFor(initialTimeout + 10*time.Second)
			m.refused = nil
		}, []time.Duration{initialTimeout + 35*time.Second}, true},
		"the startup taint is put back": {func(m *model) {
			m.fails("dns")
			m.runFor(6 * time.Minute)
			m.node.Locked = true
			m.fails("dns")
			assert.False(m.t, m.TimedOut || m.IsOpen())
			m.fails("dns")
		}, []time.Duration{initialTimeout + 5*time.Second, 11*time.Minute + 5*time.Second}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(settings())
			m.t = t
			test.happens(m)
			m.runFor(time.Hour)
			assert.Equal(t, test.want, m.opened)
			assert.Equal(t, test.isOpen, m.IsOpen())
			assert.Equal(t, len(test.want) > 0, m.OpenedBecause() != "", "an earlier agent has reported its own")
		})
	}
}

// The answer to the patch is lost: the next read shows that it was applied.
func TestOpeningWhoseAnswerIsLost(t *testing.T) {
	m := newModel(settings())
	m.lost = true
	m.fails("dns")
	m.runFor(initialTimeout + 5*time.Second)
	assert.Len(t, m.opened, 1)
	assert.False(t, m.IsOpen())
	m.fails("dns")
	assert.True(t, m.IsOpen())
	assert.Equal(t, "failed", m.OpenedBecause())
	assert.Len(t, m.opened, 1)
}
