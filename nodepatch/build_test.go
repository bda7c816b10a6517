package nodepatch

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const ourKey = "node-ready/unverified"

var keys = Keys{TaintKey: ourKey, Label: "node-ready/verified", LabelValue: "true"}

func ours(effect corev1.TaintEffect) corev1.Taint {
	now := metav1.Now()
	return corev1.Taint{Key: ourKey, Value: "true", Effect: effect, TimeAdded: &now}
}

func foreign(key string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
}

// fixed is an annotation that does not depend on the removed taints.
func fixed(value string) func(*Node, []Taint) string {
	return func(*Node, []Taint) string { return value }
}

func TestBuild(t *testing.T) {
	const (
		uid        = `{"op":"test","path":"/metadata/uid","value":"uid-1"}`
		label      = `{"op":"add","path":"/metadata/labels/node-ready~1verified","value":"true"}`
		annotation = `{"op":"add","path":"/metadata/annotations/node-ready~1verification","value":"{}"}`
	)
	removal := func(index, effect string) []string {
		return []string{
			`{"op":"test","path":"/spec/taints/` + index + `/key","value":"node-ready/unverified"}`,
			`{"op":"test","path":"/spec/taints/` + index + `/effect","value":"` + effect + `"}`,
			`{"op":"remove","path":"/spec/taints/` + index + `","value":null}`,
		}
	}
	join := func(parts ...[]string) (all []string) {
		for _, part := range parts {
			all = append(all, part...)
		}
		return all
	}
	noSchedule, noExecute := ours(corev1.TaintEffectNoSchedule), ours(corev1.TaintEffectNoExecute)
	empty := map[string]string{}

	for name, test := range map[string]struct {
		taints              []corev1.Taint
		labels, annotations map[string]string
		keys                Keys
		want                []string
	}{
		"no taint": {
			labels: empty, annotations: empty, keys: keys,
			want: []string{uid, label, annotation},
		},
		"only foreign taints": {
			taints: []corev1.Taint{foreign("a"), foreign("node-ready/unverified2"), foreign("unverified")},
			labels: empty, annotations: empty, keys: keys,
			want: []string{uid, label, annotation},
		},
		"alone": {
			taints: []corev1.Taint{noSchedule},
			labels: empty, annotations: empty, keys: keys,
			want: join([]string{uid}, removal("0", "NoSchedule"), []string{label, annotation}),
		},
		"in front": {
			taints: []corev1.Taint{noSchedule, foreign("a"), foreign("b")},
			labels: empty, annotations: empty, keys: keys,
			want: join([]string{uid}, removal("0", "NoSchedule"), []string{label, annotation}),
		},
		"in the middle": {
			taints: []corev1.Taint{foreign("a"), noSchedule, foreign("b")},
			labels: empty, annotations: empty, keys: keys,
			want: join([]string{uid}, removal("1", "NoSchedule"), []string{label, annotation}),
		},
		"at the end": {
			taints: []corev1.Taint{foreign("a"), foreign("b"), noExecute},
			labels: empty, annotations: empty, keys: keys,
			want: join([]string{uid}, removal("2", "NoExecute"), []string{label, annotation}),
		},
		"twice: the highest index first": {
			taints: []corev1.Taint{noSchedule, foreign("a"), noExecute, foreign("b")},
			labels: empty, annotations: empty, keys: keys,
			want: join([]string{uid}, removal("2", "NoExecute"), removal("0", "NoSchedule"), []string{label, annotation}),
		},
		"no labels": {
			annotations: empty, keys: keys,
			want: []string{uid,
				`{"op":"test","path":"/metadata/labels","value":null}`,
				`{"op":"add","path":"/metadata/labels","value":{}}`,
				label, annotation},
		},
		"no annotations": {
			labels: empty, keys: keys,
			want: []string{uid, label,
				`{"op":"test","path":"/metadata/annotations","value":null}`,
				`{"op":"add","path":"/metadata/annotations","value":{}}`,
				annotation},
		},
		"label already there": {
			labels: map[string]string{keys.Label: "false"}, annotations: empty, keys: keys,
			want: []string{uid, label, annotation},
		},
		"opened: no label": {
			taints: []corev1.Taint{noSchedule}, labels: empty, annotations: empty,
			keys: Keys{TaintKey: keys.TaintKey},
			want: join([]string{uid}, removal("0", "NoSchedule"), []string{annotation}),
		},
		"keys to be escaped": {
			labels: empty, annotations: empty,
			keys:   Keys{TaintKey: "a~b/c", Label: "~/~1/~0", LabelValue: "v/~"},
			taints: []corev1.Taint{{Key: "a~b/c", Effect: corev1.TaintEffectPreferNoSchedule}},
			want: []string{uid,
				`{"op":"test","path":"/spec/taints/0/key","value":"a~b/c"}`,
				`{"op":"test","path":"/spec/taints/0/effect","value":"PreferNoSchedule"}`,
				`{"op":"remove","path":"/spec/taints/0","value":null}`,
				`{"op":"add","path":"/metadata/labels/~0~1~01~1~00","value":"v/~"}`,
				annotation},
		},
	} {
		t.Run(name, func(t *testing.T) {
			read := func() *Node {
				node := asRead(&corev1.Node{Spec: corev1.NodeSpec{Taints: test.taints}})
				node.ObjectMeta = metav1.ObjectMeta{UID: "uid-1", Labels: test.labels, Annotations: test.annotations}
				return node
			}
			node := read()
			var got []string
			for _, op := range Build(node, Release{Keys: test.keys, Value: fixed("{}")}) {
				text, err := json.Marshal(op)
				require.NoError(t, err)
				got = append(got, string(text))
			}
			assert.Equal(t, test.want, got)
			assert.Equal(t, read(), node, "Build must not change the Node")
		})
	}
}

func TestTaints(t *testing.T) {
	first, second := ours(corev1.TaintEffectNoSchedule), ours(corev1.TaintEffectNoExecute)
	node := asRead(&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{foreign("a"), first, foreign("b"), second}}})
	assert.Equal(t, []Taint{{ourKey, "true", "NoSchedule"}, {ourKey, "true", "NoExecute"}}, keys.StartupTaints(node.Spec.Taints))
	assert.Empty(t, keys.StartupTaints(nil))
}

// What a log line says is what kubectl and the API's own library say.
func TestTaintString(t *testing.T) {
	for _, taint := range []corev1.Taint{ours(corev1.TaintEffectNoExecute), foreign("a")} {
		node := asRead(&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{taint}}})
		assert.Equal(t, taint.ToString(), node.Spec.Taints[0].String())
	}
}

func TestIsVerified(t *testing.T) {
	right := map[string]string{keys.Label: keys.LabelValue}
	for name, test := range map[string]struct {
		labels map[string]string
		taints []corev1.Taint
		keys   Keys
		want   bool
	}{
		"label right, no taint":             {labels: right, keys: keys, want: true},
		"label right, foreign taint":        {labels: right, taints: []corev1.Taint{foreign("a")}, keys: keys, want: true},
		"label right, our taint":            {labels: right, taints: []corev1.Taint{foreign("a"), ours(corev1.TaintEffectNoExecute)}, keys: keys},
		"no labels":                         {keys: keys},
		"label missing":                     {labels: map[string]string{"other": "true"}, keys: keys},
		"label wrong":                       {labels: map[string]string{keys.Label: "false"}, keys: keys},
		"empty value wanted, label missing": {keys: Keys{TaintKey: ourKey, Label: keys.Label}},
		"empty value wanted, label empty": {labels: map[string]string{keys.Label: ""},
			keys: Keys{TaintKey: ourKey, Label: keys.Label}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: test.taints}}
			assert.Equal(t, test.want, test.keys.IsVerified(test.labels, asRead(node).Spec.Taints))
		})
	}
}

// A released node stays released with the failed taint, and with nothing else that a release removes.
func TestStaysVerified(t *testing.T) {
	k := keys
	k.FailedTaintKey, k.AlsoRemove = "node-ready/failed", []string{"node-ready/failed", "node-ready/former"}
	for key, want := range map[string]bool{"foreign/a": true, "node-ready/failed": true, ourKey: false, "node-ready/former": false} {
		labels, taints := map[string]string{k.Label: "true"}, []Taint{{Key: key, Effect: "NoSchedule"}}
		assert.Equal(t, want, k.StaysVerified(labels, taints), key)
		assert.Equal(t, key == "foreign/a", k.IsVerified(labels, taints), key)
	}
	assert.Equal(t, []string{"node-ready/failed", "node-ready/former"}, k.AlsoRemove, "the original is unchanged")
}

func TestUntouchable(t *testing.T) {
	const none = ""
	for want, edit := range map[string]func(*Node){
		none:                                func(n *Node) { n.Spec.Taints = []Taint{{Key: "karpenter.sh/unregistered"}} },
		"it is cordoned":                    func(n *Node) { n.Spec.Unschedulable = true },
		"it is being deleted":               func(n *Node) { n.DeletionTimestamp = new(metav1.Now()) },
		"Karpenter is disrupting it":        func(n *Node) { n.Spec.Taints = []Taint{{Key: "a"}, {Key: "karpenter.sh/disrupted"}} },
		"Cluster Autoscaler is deleting it": func(n *Node) { n.Spec.Taints = []Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} },
	} {
		node := new(Node)
		edit(node)
		assert.Equal(t, want, Untouchable(node))
	}
}

func TestForeignTaint(t *testing.T) {
	k := Keys{TaintKey: "cni.example/startup", FailedTaintKey: failedKey, WaitFor: []string{"cni.example/", "node-ready/"}}
	for key, want := range map[string]bool{
		"cni.example/not-ready": true, "cni.example.org/not-ready": false, "karpenter.sh/unregistered": true, "karpenter.sh/disrupted": false,
		"cni.example/startup": false, failedKey: false, // nobody else removes them
	} {
		assert.Equal(t, want, k.ForeignTaint([]Taint{{Key: key}}) != nil, key)
	}
	assert.NotNil(t, keys.ForeignTaint([]Taint{{Key: "other"}, {Key: "karpenter.sh/unregistered"}}))
}
