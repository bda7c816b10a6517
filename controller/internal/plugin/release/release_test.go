package release

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"
)

// manifests are those that the chart renders, as they are committed.
func manifests(t *testing.T) Manifests {
	objects, err := readManifests([]string{"../../../../hack/manifests/kube-node-ready.yaml"}, nil)
	require.NoError(t, err)
	return objects
}

func newClient(objects ...client.Object) client.Client {
	return fake.NewClientBuilder().WithObjects(objects...).Build()
}

func TestFindWhatTheChartRenders(t *testing.T) {
	c := newClient(manifests(t)...)
	found, err := Find(t.Context(), c, "", "")
	require.NoError(t, err)
	rendered, err := Find(t.Context(), manifests(t), "", "")
	require.NoError(t, err)
	assert.Equal(t, found.Agent, rendered.Agent, "a file is read like a cluster")
	assert.Equal(t, found.Template, rendered.Template)
	assert.Equal(t, "kube-node-ready", found.Name)
	assert.Equal(t, "kube-system", found.Namespace)
	assert.Equal(t, "kube-node-ready", found.Fullname)
	assert.False(t, found.Settings.Workers)
	assert.Nil(t, found.Controller)
	assert.Equal(t, "node-ready/unverified", found.Agent.TaintKey)
	assert.Equal(t, []string{"node-ready/unverified"}, found.TaintKeys())
	assert.Equal(t, "kube-system/kube-dns", found.Agent.DNSService)

	linux := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kubernetes.io/os": "linux", "node-ready/verified": "true"}}}
	assert.True(t, found.Settings.Rules.Select(linux))
	linux.Labels["eks.amazonaws.com/compute-type"] = "fargate"
	assert.False(t, found.Settings.Rules.Select(linux))

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: "kube-system", Labels: found.Template.Labels}}
	require.NoError(t, c.Create(t.Context(), pod))
	pods, err := found.Pods(t.Context(), c)
	require.NoError(t, err)
	assert.Len(t, pods, 1)

	_, err = Find(t.Context(), c, "kube-system", "kube-node-ready")
	require.NoError(t, err)
	_, err = Find(t.Context(), c, "default", "")
	require.ErrorContains(t, err, "no release of kube-node-ready in the namespace default")
	require.ErrorContains(t, err, "before the installation, run helm template ... | kubectl node-ready doctor -f -")
	_, err = Find(t.Context(), c, "", "other")
	require.ErrorContains(t, err, "no release other of kube-node-ready in any namespace")
}

// controller returns the objects of a release in controller mode.
func controllerMode(namespace, name string) []client.Object {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{partOf: product, instance: "second"}}
	}
	from := func(name string) []corev1.EnvFromSource {
		return []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
	}
	deployment := &appsv1.Deployment{ObjectMeta: meta(name + "-controller")}
	deployment.Spec.Template.Spec = corev1.PodSpec{
		ServiceAccountName: name + "-controller",
		Containers: []corev1.Container{{EnvFrom: from(name), Env: []corev1.EnvVar{
			{Name: "DEPLOYMENT_MODE", Value: "controller"}, {Name: "AGENT_NAME", Value: name},
			{Name: "NODE_IP", ValueFrom: &corev1.EnvVarSource{}}, {Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{}}}}},
		Volumes: []corev1.Volume{{Name: "other"}, {Name: "agent", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name + "-controller"}}}}},
	}
	template, err := yaml.Marshal(corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{instance: "second"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{EnvFrom: from(name),
			Env: []corev1.EnvVar{{Name: "NODE_IP", ValueFrom: &corev1.EnvVarSource{}}}}}}})
	if err != nil {
		panic(err)
	}
	return []client.Object{deployment,
		&corev1.ConfigMap{ObjectMeta: meta(name), Data: map[string]string{"TAINT_KEY": "example.com/gate", "CONDITION_TYPE": "Good",
			"NETWORK_TARGETS": "http://$(NODE_IP):10256/healthz"}},
		&corev1.ConfigMap{ObjectMeta: meta(name + "-controller"), Data: map[string]string{"agent.yaml": string(template)}}}
}

func TestControllerMode(t *testing.T) {
	objects := controllerMode("own", "mine")
	for _, reader := range []client.Reader{newClient(objects...), Manifests(objects)} {
		found, err := Find(t.Context(), reader, "own", "")
		require.NoError(t, err)
		assert.Equal(t, "second", found.Name)
		assert.Equal(t, "mine", found.Fullname)
		assert.True(t, found.Settings.Workers)
		assert.Equal(t, "mine", found.Settings.FailedTaintValue)
		assert.Equal(t, "example.com/gate", found.Settings.Keys.TaintKey)
		assert.Equal(t, "Good", found.Settings.ConditionType)
		assert.Equal(t, 3*time.Minute, found.Controller.NotStartedAfter)
	}
}

func TestFindErrors(t *testing.T) {
	both := newClient(append(manifests(t), controllerMode("own", "mine")...)...)
	_, err := Find(t.Context(), both, "", "")
	require.ErrorContains(t, err, "there are 2 releases of kube-node-ready: choose one with "+
		"--namespace kube-system --release kube-node-ready, or --namespace own --release second")
	_, err = Find(t.Context(), both, "own", "")
	require.NoError(t, err)

	objects := controllerMode("own", "mine")
	settings := objects[1].(*corev1.ConfigMap)
	settings.Data["TAINT_KEY"] = "not a key"
	_, err = Find(t.Context(), newClient(objects...), "", "")
	require.ErrorContains(t, err, "settings in the ConfigMap own/mine: TAINT_KEY")
	forbidden := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "daemonsets"}, "", errors.New("not you"))
		}})
	_, err = Find(t.Context(), forbidden, "", "")
	require.ErrorContains(t, err, "try: --namespace with the release's namespace")
	_, err = Find(t.Context(), forbidden, "own", "")
	require.ErrorContains(t, err, "not you")
}

// The taints can be removed with settings that no pod starts with, and without any.
func TestInvalidSettings(t *testing.T) {
	objects := controllerMode("other", "theirs")
	found, err := Find(t.Context(), newClient(objects[0], objects[2]), "", "")
	require.NoError(t, err)
	require.ErrorContains(t, found.Invalid, "settings of the release: configmaps \"theirs\" not found")
	assert.Equal(t, DefaultKeys, found.Known)
	assert.Contains(t, found.Remedy(), "open works for named nodes")
	assert.Equal(t, "node-ready/unverified", found.Settings.Keys.TaintKey)
	assert.True(t, found.Settings.Workers)

	settings := objects[1].(*corev1.ConfigMap)
	settings.Data = map[string]string{"TAINT_KEY": "example.com/gate", "FAILED_TAINT_KEY": "example.com/bad",
		"ALSO_REMOVE_TAINTS": "example.com/old", "VERIFIED_LABEL": "example.com/good", "MAX_RETRIES": "many"}
	found, err = Find(t.Context(), newClient(objects...), "", "")
	require.NoError(t, err)
	require.ErrorContains(t, found.Invalid, "settings in the ConfigMap other/theirs: MAX_RETRIES")
	assert.Equal(t, NodeRules, found.Known)
	keys := found.Settings.Keys
	assert.Equal(t, "example.com/gate", keys.TaintKey)
	assert.Equal(t, "example.com/bad", keys.FailedTaintKey)
	assert.Equal(t, []string{"example.com/old"}, keys.AlsoRemove)
	assert.Equal(t, "example.com/good", keys.Label)

	delete(settings.Data, "MAX_RETRIES")
	settings.Data["NOT_STARTED_AFTER"] = "soon"
	found, err = Find(t.Context(), newClient(objects...), "", "")
	require.NoError(t, err)
	require.ErrorContains(t, found.Invalid, "settings of the Deployment other/theirs-controller: NOT_STARTED_AFTER")
	assert.Equal(t, "example.com/gate", found.Settings.Keys.TaintKey)
}

// The taints can be removed when the template of the workers is gone: the controller's variables name the same settings.
func TestTemplateOfTheWorkersIsGone(t *testing.T) {
	const noSettings = "template of the workers: agent.yaml in the ConfigMap theirs-controller: its first container names no ConfigMap"
	objects := controllerMode("other", "theirs")
	test := func(text string, objects ...client.Object) {
		found, err := Find(t.Context(), newClient(objects...), "", "")
		require.NoError(t, err)
		require.ErrorContains(t, found.Invalid, text)
		assert.Equal(t, Keys, found.Known)
		assert.Contains(t, found.Remedy(), "open still works")
		assert.True(t, found.Settings.Workers)
		assert.Equal(t, "example.com/gate", found.Settings.Keys.TaintKey)
		assert.Equal(t, "Good", found.Settings.ConditionType)
	}
	test("template of the workers: configmaps \"theirs-controller\" not found", objects[:2]...)
	data := objects[2].(*corev1.ConfigMap).Data
	for template, text := range map[string]string{
		"[]":                     "template of the workers: agent.yaml in the ConfigMap theirs-controller: ",
		"":                       noSettings,
		"spec: {containers: []}": noSettings,
		"spec: {containers: [{name: worker, envFrom: [{secretRef: {name: theirs}}]}]}": noSettings,
	} {
		data["agent.yaml"] = template
		test(text, objects...)
	}
	delete(data, "agent.yaml")
	test("template of the workers: the Deployment other/theirs-controller has no ConfigMap with agent.yaml", objects...)

	found, err := Find(t.Context(), newClient(controllerMode("other", "theirs")[0]), "", "")
	require.NoError(t, err)
	require.ErrorContains(t, found.Invalid, "template of the workers: ")
	require.ErrorContains(t, found.Invalid, "settings of the release: configmaps \"theirs\" not found")
	assert.Equal(t, DefaultKeys, found.Known)

	refused := interceptor.NewClient(fake.NewClientBuilder().WithObjects(controllerMode("other", "theirs")...).Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("not you"))
		}})
	_, err = Find(t.Context(), refused, "", "")
	require.ErrorContains(t, err, "not you")
}
