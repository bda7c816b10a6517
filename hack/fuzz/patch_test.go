// Package fuzz applies the patches of package nodepatch with the API server's own library.
package fuzz

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/imunhatep/kube-node-ready/hack/apitest"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// FuzzPatch builds a patch for a Node as it was read, and applies it to the Node as others have
// changed it in the meantime. The patch must be refused, or leave the changed Node as it is but for
// our taints that were read, our label and our annotation. If nobody changed anything that the
// patch is about, it must be applied.
//
// taints are those that were read, one a line: key=value:effect. labels and annotations are
// key=value, one a line; "-" means that there is no map. edits are what others do: see change.
func FuzzPatch(f *testing.F) {
	const (
		key, label = "node-ready/unverified", "node-ready/verified"
		tainted    = key + "=true:NoSchedule"
		labels     = "kubernetes.io/os=linux\nkubernetes.io/arch=amd64"
	)
	for _, taints := range []string{
		"", tainted, "a=:NoSchedule\n" + tainted, tainted + "\na=:NoSchedule",
		"a=:NoSchedule\n" + tainted + "\nb=c:NoExecute",
		tainted + "\na=:NoSchedule\n" + key + "=:NoExecute\nb=:NoSchedule\n" + key + "=:PreferNoSchedule",
	} {
		for edit := range byte(kinds) {
			f.Add(taints, labels, "x=y", key, label, []byte{edit, 0, edit, 1, edit, 2})
			f.Add(taints, "-", "-", key, label, []byte{edit, 1})
		}
	}
	f.Add("~/~1=:NoSchedule", "~1=a\n/=b\n~0=c", "-", "~/~1", "~/", []byte{})
	f.Add(strings.Repeat("a=:NoSchedule\n", 3)+tainted, "a=1", "", key, "a", []byte{insertForeign, 200})

	f.Fuzz(func(t *testing.T, taints, labels, annotations, key, label string, edits []byte) {
		keys := nodepatch.Keys{TaintKey: valid(key), Label: valid(label), LabelValue: "true"}
		record := func(*nodepatch.Node, []nodepatch.Taint) string { return `{"time":"<now>"}` }
		read := &corev1.Node{
			TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "node1", UID: "uid-1", ResourceVersion: "1",
				Labels: parseMap(labels), Annotations: parseMap(annotations),
			},
			Spec: corev1.NodeSpec{Taints: parseTaints(taints), ProviderID: "cloud://1"},
		}
		now := read.DeepCopy()
		for edit := range slices.Chunk(edits, 2) {
			if len(edit) == 2 {
				change(now, keys, edit[0]%kinds, int(edit[1]))
			}
		}

		failed(t, read, now, keys)
		patch, err := json.Marshal(nodepatch.Build(asRead(t, read), nodepatch.Release{Keys: keys, Value: record}))
		require.NoError(t, err)
		got, refusal := apply(t, now, patch)
		if refusal != nil {
			unchanged := now.UID == read.UID && assert.ObjectsAreEqual(read.Spec, now.Spec) &&
				(read.Labels == nil) == (now.Labels == nil) && (read.Annotations == nil) == (now.Annotations == nil)
			assert.False(t, unchanged, "refused though nothing changed: %v", refusal)
			return
		}

		assert.Equal(t, read.UID, now.UID, "applied to another node")
		want := now.DeepCopy()
		want.Spec.Taints = nil
		for _, taint := range now.Spec.Taints {
			// The API server takes no two taints with the same key and effect, so that is what tells
			// whether a taint is one of those that were read.
			if !slices.ContainsFunc(read.Spec.Taints, func(r corev1.Taint) bool { return r.Key == keys.TaintKey && r.MatchTaint(&taint) }) {
				want.Spec.Taints = append(want.Spec.Taints, taint)
			}
		}
		want.Labels = with(want.Labels, keys.Label, keys.LabelValue)
		want.Annotations = with(want.Annotations, nodepatch.Annotation, record(nil, nil))
		if len(got.Spec.Taints) == 0 {
			got.Spec.Taints = nil // an empty list is none
		}
		assert.Equal(t, want, got)
	})
}

// failed does the same with the patch that adds the failed taint: it is refused, or all that it changes is one more taint behind the
// others. It is refused where the startup taint has gone or our annotation has changed, as the release does; without a startup taint
// there is no patch.
func failed(t *testing.T, read, now *corev1.Node, keys nodepatch.Keys) {
	keys.FailedTaintKey = "node-ready/failed"
	startup := func(taint corev1.Taint) bool { return taint.Key == keys.TaintKey }
	ops := nodepatch.BuildFailedTaint(asRead(t, read), keys, "dns")
	assert.Equal(t, slices.ContainsFunc(read.Spec.Taints, startup), len(ops) > 0)
	if len(ops) == 0 {
		return
	}
	patch, err := json.Marshal(ops)
	require.NoError(t, err)
	got, refusal := apply(t, now, patch)
	before, had := read.Annotations[nodepatch.Annotation]
	after, has := now.Annotations[nodepatch.Annotation]
	same := had == has && before == after
	if refusal != nil {
		unchanged := now.UID == read.UID && same && assert.ObjectsAreEqual(read.Spec, now.Spec) &&
			(len(read.Annotations) == 0) == (len(now.Annotations) == 0)
		assert.False(t, unchanged, "refused though nothing changed: %v", refusal)
		return
	}
	assert.Equal(t, read.UID, now.UID, "applied to another node")
	assert.True(t, same, "applied after a release")
	assert.True(t, slices.ContainsFunc(now.Spec.Taints, startup), "applied to a node that is not gated")
	want := now.DeepCopy()
	want.Spec.Taints = append(want.Spec.Taints, corev1.Taint{Key: keys.FailedTaintKey, Value: "dns", Effect: corev1.TaintEffectNoSchedule})
	assert.Equal(t, want, got)
}

// asRead is what the agent knows of a Node.
func asRead(t *testing.T, node *corev1.Node) *nodepatch.Node {
	text, err := json.Marshal(node)
	require.NoError(t, err)
	read := new(nodepatch.Node)
	require.NoError(t, json.Unmarshal(text, read))
	return read
}

// apply is what the API server does with a JSON patch (k8s.io/apiserver, handlers/patch.go).
func apply(t *testing.T, node *corev1.Node, patch []byte) (*corev1.Node, error) {
	var operations []struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		From  string `json:"from"`
		Value any    `json:"value"`
	}
	strict, err := kjson.UnmarshalStrict(patch, &operations)
	require.NoError(t, err)
	require.Empty(t, strict)

	var object bytes.Buffer // written as the API server's serializer does
	require.NoError(t, json.NewEncoder(&object).Encode(node))
	decoded, err := jsonpatch.DecodePatch(patch)
	require.NoError(t, err)
	patched, refusal := decoded.Apply(object.Bytes())
	fake, err := apitest.Patch(node, patch)
	require.Equal(t, refusal == nil, err == nil, "the API server of the unit tests answers %v, the library %v", err, refusal)
	if refusal != nil {
		return nil, refusal
	}
	got := new(corev1.Node)
	strict, err = kjson.UnmarshalStrict(patched, got)
	require.NoError(t, err)
	require.Empty(t, strict)
	assert.Equal(t, got, fake, "the API server of the unit tests patches as the library does")
	return got, nil
}

// What others do to a Node.
const (
	insertForeign = iota // a taint anywhere in the list
	insertOurs           // a taint with our key and some effect
	removeTaint
	swapTaints
	touchTaint // another value, and a time
	reverseTaints
	clearTaints
	setForeignLabel
	setOurLabel
	dropLabels
	setForeignAnnotation
	setOurAnnotation
	dropAnnotations
	recreate
	kinds
)

var effects = []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}

func change(node *corev1.Node, r nodepatch.Keys, kind byte, n int) {
	taints := node.Spec.Taints
	at := 0
	if len(taints) > 0 {
		at = n % len(taints)
	}
	switch kind {
	case insertForeign:
		node.Spec.Taints = insert(taints, n%(len(taints)+1), corev1.Taint{Key: fmt.Sprintf("foreign-%d", n), Effect: effects[n%3]})
	case insertOurs:
		node.Spec.Taints = insert(taints, n%(len(taints)+1), corev1.Taint{Key: r.TaintKey, Effect: effects[n%3]})
	case removeTaint:
		if len(taints) > 0 {
			node.Spec.Taints = slices.Delete(taints, at, at+1)
		}
	case swapTaints:
		if len(taints) > 0 {
			taints[at], taints[0] = taints[0], taints[at]
		}
	case touchTaint:
		if len(taints) > 0 {
			time := metav1.Unix(int64(n), 0)
			taints[at].Value, taints[at].TimeAdded = fmt.Sprint(n), &time
		}
	case reverseTaints:
		slices.Reverse(taints)
	case clearTaints:
		node.Spec.Taints = nil
	case setForeignLabel:
		node.Labels = with(node.Labels, fmt.Sprintf("foreign/%d", n), "kept")
	case setOurLabel:
		node.Labels = with(node.Labels, r.Label, fmt.Sprint(n))
	case dropLabels:
		node.Labels = nil
	case setForeignAnnotation:
		node.Annotations = with(node.Annotations, fmt.Sprintf("foreign~%d", n), "kept")
	case setOurAnnotation:
		node.Annotations = with(node.Annotations, nodepatch.Annotation, fmt.Sprint(n))
	case dropAnnotations:
		node.Annotations = nil
	case recreate:
		node.UID = types.UID(fmt.Sprintf("uid-%d", n+2))
	}
}

// insert keeps the list as the API server would: no two taints with the same key and effect.
func insert(taints []corev1.Taint, at int, taint corev1.Taint) []corev1.Taint {
	if slices.ContainsFunc(taints, func(other corev1.Taint) bool { return other.MatchTaint(&taint) }) {
		return taints
	}
	return slices.Insert(taints, at, taint)
}

func with(in map[string]string, key, value string) map[string]string {
	out := maps.Clone(in)
	if out == nil {
		out = make(map[string]string)
	}
	out[key] = value
	return out
}

// valid is text as it is in every object of the API: JSON has no other.
func valid(s string) string { return strings.ToValidUTF8(s, "?") }

func parseTaints(text string) (taints []corev1.Taint) {
	for line := range strings.Lines(valid(text)) {
		line, effect, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		key, value, _ := strings.Cut(line, "=")
		taints = insert(taints, len(taints), corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return taints
}

func parseMap(text string) map[string]string {
	if text == "-" {
		return nil
	}
	m := make(map[string]string)
	for line := range strings.Lines(valid(text)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		m[key] = value
	}
	if len(m) == 0 {
		return nil // the API server keeps no empty map
	}
	return m
}
