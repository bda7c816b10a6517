package installation

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// doctor -f reads any file.
func FuzzManifests(f *testing.F) {
	rendered, err := os.ReadFile("../../../../hack/manifests/kube-node-ready.yaml")
	require.NoError(f, err)
	f.Add(string(rendered))
	workers := ""
	for i, object := range controllerMode("own", "mine") {
		text, err := yaml.Marshal(object)
		require.NoError(f, err)
		kind := []string{"apps/v1\nkind: Deployment", "v1\nkind: ConfigMap", "v1\nkind: ConfigMap"}[i]
		workers += "---\napiVersion: " + kind + "\n" + string(text)
	}
	f.Add(workers)
	const set = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: a, labels: {app.kubernetes.io/part-of: kube-node-ready}}\n"
	f.Add(set)
	f.Add(set + "spec: {template: {spec: {containers: [{envFrom: [{}, {configMapRef: {name: a}}]}]}}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
	f.Add("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: ConfigMap}]")
	f.Add("\xff\xfea\x00p\x00i\x00V\x00")
	f.Add("a: &a [*a]\n--- # a comment\n---\nkind: Node\n---\napiVersion: v1\nkind: DaemonSet\n---\n[]")
	f.Fuzz(func(t *testing.T, text string) {
		objects, err := parseManifests("a.yaml", text)
		for _, object := range objects {
			assert.NotNil(t, object)
		}
		assert.True(t, err == nil || err.Error() != "")
		releases, err := Find(t.Context(), objects, "", "", true)
		if err != nil {
			return
		}
		found := releases[0]
		assert.NotNil(t, found.Template)
		assert.Equal(t, found.Known == Everything, found.Invalid == nil)
		_ = found.Settings.Rules.Select(new(corev1.Node))
		pods, err := found.Pods(t.Context(), Manifests{&corev1.Pod{}})
		assert.NoError(t, err)
		assert.LessOrEqual(t, len(pods), 1)
		assert.NotEmpty(t, found.Remedy())
		assert.True(t, client.IgnoreNotFound(objects.Get(t.Context(), client.ObjectKey{Name: "a"}, new(corev1.ConfigMap))) == nil)
	})
}
