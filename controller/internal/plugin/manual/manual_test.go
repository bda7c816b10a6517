package manual

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

func node(name string, labels map[string]string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: labels}, Spec: corev1.NodeSpec{Taints: taints}}
}

func taint(key string) corev1.Taint {
	return corev1.Taint{Key: key, Value: "x", Effect: corev1.TaintEffectNoSchedule}
}

func newPatcher(nodes ...client.Object) (Patcher, *strings.Builder) {
	c := fake.NewClientBuilder().WithObjects(nodes...).Build()
	keys := nodepatch.Keys{TaintKey: "node-ready/unverified", FailedTaintKey: "node-ready/failed", AlsoRemove: []string{"old/key"},
		Label: "node-ready/verified", LabelValue: "true"}
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: map[string]string{"os": "linux"}}}
	out := new(strings.Builder)
	return Patcher{Client: c, Out: out, Now: func() time.Time { return time.Date(2026, 11, 24, 14, 0, 0, 0, time.FixedZone("", 7200)) },
		Settings: fleet.Settings{Keys: keys, Rules: fleet.NewRules(template, keys)}}, out
}

func (p Patcher) read(t *testing.T, name string) *corev1.Node {
	node := new(corev1.Node)
	require.NoError(t, p.Client.Get(t.Context(), client.ObjectKey{Name: name}, node))
	return node
}

func TestOpenKeepsForeignTaints(t *testing.T) {
	foreign := []corev1.Taint{taint("example.com/a"), taint("example.com/b")}
	p, out := newPatcher(
		node("both", nil, foreign[0], taint("node-ready/unverified"), foreign[1], taint("node-ready/failed"), taint("old/key")),
		node("none", nil, foreign...))
	err := p.Open(t.Context(), []string{"both", "gone", "none"})
	require.ErrorContains(t, err, `node gone: nodes "gone" not found`)
	assert.Equal(t, "node both: removed node-ready/unverified=x:NoSchedule, node-ready/failed=x:NoSchedule, old/key=x:NoSchedule\n"+
		"node none: has none of the taints: nothing to do\n", out.String())
	for name, annotations := range map[string]map[string]string{"both": {"node-ready/opened": "2026-11-24T12:00:00Z"}, "none": nil} {
		now := p.read(t, name)
		assert.Equal(t, foreign, now.Spec.Taints)
		assert.Empty(t, now.Labels)
		assert.Equal(t, annotations, now.Annotations)
	}
	all := []corev1.Node{*node("both", nil, foreign[0], taint("node-ready/failed")), *node("none", nil, foreign...)}
	names, left, doubtful := Tainted(all, installation.Release{Settings: p.Settings})
	assert.Equal(t, []string{"both"}, names)
	assert.Empty(t, append(left, doubtful...))
}

func TestVerify(t *testing.T) {
	labels := func(more ...string) map[string]string {
		set := map[string]string{"os": "linux", "mine": "x"}
		for _, key := range more {
			set[key] = "true"
		}
		return set
	}
	p, out := newPatcher(node("good", labels("node-ready/verified")), node("unlabelled", labels()), node("windows", map[string]string{"node-ready/verified": "true"}))
	err := p.Verify(t.Context(), []string{"good", "unlabelled", "windows"})
	require.ErrorContains(t, err, "node windows: the release's node rules or its tolerations exclude this node")
	assert.Equal(t, "node good: label node-ready/verified removed: its checks start again\n"+
		"node unlabelled: has no label node-ready/verified: nothing to do, it is not verified\n", out.String())
	assert.Equal(t, labels(), p.read(t, "good").Labels)
	assert.Contains(t, p.read(t, "windows").Labels, "node-ready/verified")

	label := labels("node-ready/verified")
	opened, openedAndLabelled := node("opened", labels()), node("opened-and-labelled", label)
	opened.Annotations = map[string]string{nodepatch.Opened: "2026-11-24T12:00:00Z"}
	openedAndLabelled.Annotations = opened.Annotations
	p, out = newPatcher(node("never", label), opened, openedAndLabelled, node("tainted", label, taint("node-ready/unverified")))
	p.Settings.Workers = true
	err = p.Verify(t.Context(), []string{"never", "opened", "opened-and-labelled", "tainted"})
	require.EqualError(t, err, "node never: no startup taint was removed from it by a release or by `open`: "+
		"with deploymentMode=controller it would get no worker; add the startup taint to verify it")
	assert.Equal(t, "node opened: has no label node-ready/verified: nothing to do, it is not verified\n"+
		"node opened-and-labelled: label node-ready/verified removed: its checks start again\n"+
		"node tainted: label node-ready/verified removed: its checks start again\n", out.String())
}
