package installation

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

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
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
	found, err := find(t, c, "", "")
	require.NoError(t, err)
	rendered, err := find(t, manifests(t), "", "")
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

	_, err = find(t, c, "kube-system", "kube-node-ready")
	require.NoError(t, err)
	_, err = find(t, c, "default", "")
	require.ErrorContains(t, err, "no release of kube-node-ready in the namespace default")
	require.ErrorContains(t, err, "before the installation, run helm template ... | kubectl node-ready doctor -f -")
	_, err = find(t, c, "", "other")
	require.ErrorContains(t, err, "no release other of kube-node-ready in any namespace")
}

// find returns the only release.
func find(t *testing.T, c client.Reader, namespace, name string) (Release, error) {
	found, err := Find(t.Context(), c, namespace, name, true)
	if err != nil {
		return Release{}, err
	}
	if found[0].Known == Unreadable {
		return Release{}, found[0].Invalid
	}
	return found[0], nil
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
		found, err := find(t, reader, "own", "")
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
	_, err := find(t, both, "", "")
	require.ErrorContains(t, err, "there are 2 releases of kube-node-ready: choose one with "+
		"--namespace kube-system --release kube-node-ready, or --namespace own --release second")
	_, err = find(t, both, "own", "")
	require.NoError(t, err)

	objects := controllerMode("own", "mine")
	settings := objects[1].(*corev1.ConfigMap)
	settings.Data["TAINT_KEY"] = "not a key"
	_, err = find(t, newClient(objects...), "", "")
	require.ErrorContains(t, err, "settings in the ConfigMap own/mine: TAINT_KEY")
	forbidden := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "daemonsets"}, "", errors.New("not you"))
		}})
	_, err = find(t, forbidden, "", "")
	require.ErrorContains(t, err, "try: --namespace with the release's namespace")
	_, err = find(t, forbidden, "own", "")
	require.ErrorContains(t, err, "not you")
}

// The taints can be removed with settings that no pod starts with, and without any.
func TestInvalidSettings(t *testing.T) {
	objects := controllerMode("other", "theirs")
	found, err := find(t, newClient(objects[0], objects[2]), "", "")
	require.NoError(t, err)
	require.ErrorContains(t, found.Invalid, "settings of the release: configmaps \"theirs\" not found")
	assert.Equal(t, DefaultKeys, found.Known)
	assert.Contains(t, found.Remedy(), "open works for named nodes")
	assert.Equal(t, "node-ready/unverified", found.Settings.Keys.TaintKey)
	assert.True(t, found.Settings.Workers)

	settings := objects[1].(*corev1.ConfigMap)
	settings.Data = map[string]string{"TAINT_KEY": "example.com/gate", "FAILED_TAINT_KEY": "example.com/bad",
		"ALSO_REMOVE_TAINTS": "example.com/old", "VERIFIED_LABEL": "example.com/good", "MAX_RETRIES": "many"}
	found, err = find(t, newClient(objects...), "", "")
	require.NoError(t, err)
	require.ErrorContains(t, found.Invalid, "settings in the ConfigMap other/theirs: MAX_RETRIES")
	assert.Equal(t, NodeRules, found.Known)
	keys := found.Settings.Keys
	assert.Equal(t, "example.com/gate", keys.TaintKey)
	assert.Equal(t, "example.com/bad", keys.FailedTaintKey)
	assert.Equal(t, []string{"example.com/old"}, keys.AlsoRemove)
	assert.Equal(t, "example.com/good", keys.Label)
	assert.Equal(t, "theirs", found.Settings.FailedTaintValue, "the nodes that it has re-tainted are its own")

	delete(settings.Data, "MAX_RETRIES")
	settings.Data["NOT_STARTED_AFTER"] = "soon"
	found, err = find(t, newClient(objects...), "", "")
	require.NoError(t, err)
	require.ErrorContains(t, found.Invalid, "settings of the Deployment other/theirs-controller: NOT_STARTED_AFTER")
	assert.Equal(t, "example.com/gate", found.Settings.Keys.TaintKey)
}

// The taints can be removed when the template of the workers is gone: the controller's variables name the same settings.
func TestTemplateOfTheWorkersIsGone(t *testing.T) {
	const noSettings = "template of the workers: agent.yaml in the ConfigMap theirs-controller: its first container names no ConfigMap"
	objects := controllerMode("other", "theirs")
	test := func(text string, objects ...client.Object) {
		found, err := find(t, newClient(objects...), "", "")
		require.NoError(t, err)
		require.ErrorContains(t, found.Invalid, text)
		assert.Equal(t, Keys, found.Known)
		assert.Contains(t, found.Remedy(), "open works for named nodes")
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
	test(noSettings, objects...)

	found, err := find(t, newClient(controllerMode("other", "theirs")[0]), "", "")
	require.NoError(t, err)
	require.ErrorContains(t, found.Invalid, "template of the workers: ")
	require.ErrorContains(t, found.Invalid, "settings of the release: configmaps \"theirs\" not found")
	assert.Equal(t, DefaultKeys, found.Known)

	refused := interceptor.NewClient(fake.NewClientBuilder().WithObjects(controllerMode("other", "theirs")...).Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("not you"))
		}})
	_, err = find(t, refused, "", "")
	require.ErrorContains(t, err, "not you")
}

// agents are the objects of a release with a DaemonSet for one pool.
func agents(namespace, name, pool string, data map[string]string) []client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{partOf: product, instance: name}}
	set := &appsv1.DaemonSet{ObjectMeta: meta}
	set.Spec.Template.Spec = corev1.PodSpec{NodeSelector: map[string]string{"pool": pool},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{
			ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}}}}
	return []client.Object{set, &corev1.ConfigMap{ObjectMeta: meta, Data: data}}
}

func names(releases []Release) (found []string) {
	for _, r := range releases {
		found = append(found, r.Namespace+"/"+r.Name)
	}
	return found
}

// foreign gives objects only the name of the product.
func foreign(objects ...client.Object) []client.Object {
	for _, o := range objects {
		o.GetLabels()["app.kubernetes.io/name"] = product
		delete(o.GetLabels(), partOf)
	}
	return objects
}

func TestOtherReleases(t *testing.T) {
	for name, test := range map[string]struct {
		objects []client.Object
		others  []string
		unseen  string
	}{
		"none":                     {nil, nil, ""},
		"agents and controller":    {append(agents("b", "gpu", "gpu", nil), controllerMode("own", "mine")...), []string{"b/gpu", "own/second"}, ""},
		"its ConfigMap is gone":    {agents("b", "gpu", "gpu", nil)[:1], nil, `the release b/gpu: settings of the release: configmaps "gpu" not found`},
		"its keys are invalid":     {agents("b", "gpu", "gpu", map[string]string{"TAINT_KEY": "no key"}), nil, "the release b/gpu: settings in the ConfigMap b/gpu: TAINT_KEY"},
		"its other settings are":   {agents("b", "gpu", "gpu", map[string]string{"MAX_RETRIES": "many"}), []string{"b/gpu"}, ""},
		"its node rules are gone":  {controllerMode("own", "mine")[:2], nil, `the release own/second: template of the workers: configmaps "mine-controller" not found`},
		"another product's":        {foreign(agents("b", "docs", "gpu", nil)...), nil, ""},
		"of the same name":         {agents("b", "knr", "gpu", nil), []string{"b/knr"}, ""},
		"several of which one was": {append(agents("b", "gpu", "gpu", nil)[:1], agents("c", "cpu", "cpu", nil)...), []string{"c/cpu"}, "the release b/gpu: "},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(append(agents("a", "knr", "cpu", nil), test.objects...)...)
			found, err := find(t, c, "a", "")
			require.NoError(t, err)
			require.NoError(t, found.Invalid)
			assert.Equal(t, test.others, names(found.Others))
			if test.unseen == "" {
				require.NoError(t, found.Unseen)
			} else {
				require.ErrorContains(t, found.Unseen, test.unseen)
			}
			command := "kubectl node-ready doctor --namespace a --release knr"
			if test.others == nil && test.unseen == "" {
				command = "kubectl node-ready doctor"
			}
			assert.Equal(t, command, found.Command("doctor"), "it would not choose a release without the flags")
		})
	}
}

// With rights in the namespace of one release only, commands work for that release. Others are unseen.
func TestRightsInOneNamespace(t *testing.T) {
	c := interceptor.NewClient(fake.NewClientBuilder().WithObjects(agents("a", "knr", "cpu", nil)...).Build(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if new(client.ListOptions).ApplyOptions(options).Namespace == "" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "daemonsets"}, "", errors.New("not you"))
			}
			return c.List(ctx, list, options...)
		}})
	found, err := find(t, c, "a", "")
	require.NoError(t, err)
	require.ErrorContains(t, found.Unseen, "the releases in other namespaces: ")
	_, err = find(t, c, "", "")
	require.ErrorContains(t, err, "try: --namespace with the release's namespace")
}

// A release that cannot be read does not hide the others.
func TestUnreadableReleaseAmongSeveral(t *testing.T) {
	c := interceptor.NewClient(fake.NewClientBuilder().WithObjects(append(agents("a", "knr", "cpu", nil), agents("b", "gpu", "gpu", nil)...)...).Build(),
		interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if key.Namespace == "b" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, key.Name, errors.New("not you"))
			}
			return c.Get(ctx, key, o, options...)
		}})
	found, err := Find(t.Context(), c, "", "", false)
	require.NoError(t, err)
	require.Equal(t, []string{"a/knr", "b/gpu"}, names(found))
	assert.Equal(t, Everything, found[0].Known)
	require.ErrorContains(t, found[0].Unseen, "the release b/gpu: ")
	assert.Equal(t, Unreadable, found[1].Known)
	require.ErrorContains(t, found[1].Invalid, "not you")
	require.NoError(t, found[1].Unseen)
	assert.Equal(t, []string{"a/knr"}, names(found[1].Others))
}

// A command about one release does not guess which one is meant, even if only one can be read.
func TestUnreadableReleaseBesideOne(t *testing.T) {
	unreadable := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "docs", Labels: map[string]string{partOf: product}}}
	c := newClient(append(agents("a", "knr", "cpu", nil), unreadable)...)
	_, err := find(t, c, "", "")
	require.ErrorContains(t, err, "there are 2 releases")
	found, err := find(t, c, "a", "")
	require.NoError(t, err)
	assert.Equal(t, "knr", found.Name)
	require.ErrorContains(t, found.Unseen, "the release b/: ")
}

// A release has several objects, whichever of them has been read first.
func TestReleaseWithTwoWorkloads(t *testing.T) {
	controller := controllerMode("a", "knr")[0]
	controller.SetLabels(map[string]string{partOf: product, instance: "knr"})
	found, err := find(t, newClient(append(agents("a", "knr", "cpu", nil), controller)...), "", "")
	require.NoError(t, err)
	assert.NotNil(t, found.Controller)
	assert.False(t, found.Settings.Workers)
	assert.Equal(t, "knr", found.Settings.FailedTaintValue)
}

// A planned release replaces the installed one of the same name, and is judged together with the other releases.
func TestPlannedReleaseBesideOthers(t *testing.T) {
	const file = "../../../../hack/manifests/kube-node-ready.yaml"
	for name, test := range map[string]struct {
		installed    []client.Object
		others       []string
		notInstalled bool
	}{
		"nothing":            {nil, nil, true},
		"another release":    {agents("b", "gpu", "gpu", nil), []string{"b/gpu"}, true},
		"the release itself": {agents("kube-system", "kube-node-ready", "gpu", nil), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := FindInFiles(t.Context(), newClient(test.installed...), []string{file}, nil, "kube-system", "")
			require.NoError(t, err)
			require.Len(t, found, 1)
			assert.Equal(t, test.others, names(found[0].Others))
			require.NoError(t, found[0].Unseen)
			assert.Equal(t, test.notInstalled, found[0].NotInstalled)
		})
	}
}

// The manifests replace a release that is installed, and each release is there once.
func TestInstalledReleaseThatIsPlannedToo(t *testing.T) {
	planned := Release{Name: "gpu", Known: Everything, Fullname: "planned"}
	r := Release{Name: "knr"}
	r.addOthers([]Release{{Name: "knr"}, planned}, nil)
	r.addOthers([]Release{{Name: "gpu"}, {Name: "knr"}}, nil)
	assert.Equal(t, []Release{planned}, r.Others)
	require.NoError(t, r.Unseen)
}

// The release is for the pool cpu, the other one for the pool gpu. Both may be for the pool both.
func TestRemovedElsewhere(t *testing.T) {
	const startup, failed = "node-ready/unverified", "node-ready/failed"
	unseen := errors.New("forbidden to you")
	for name, test := range map[string]struct {
		node   func(*corev1.Node)
		change func(r, other *Release)
		key    string
		other  bool
		err    bool
	}{
		"a node of this release":  {key: startup, node: pool("cpu")},
		"a node of the other one": {key: startup, node: pool("gpu"), other: true},
		"a node of neither":       {key: startup, node: pool("windows")},
		"the other one has another key": {key: startup, node: pool("gpu"),
			change: func(_, other *Release) { other.Settings.Keys.TaintKey = "gpu/unverified" }},
		"the other one removes it as a former key": {key: startup, node: pool("gpu"), other: true, change: func(_, other *Release) {
			other.Settings.Keys.TaintKey, other.Settings.Keys.AlsoRemove = "gpu/unverified", []string{startup}
		}},
		"a shared failed key, and another startup key": {key: failed, node: pool("gpu"), other: true,
			change: func(_, other *Release) { other.Settings.Keys.TaintKey = "gpu/unverified" }},
		"re-tainted by this release":                 {key: failed, node: retainted("cpu", "knr")},
		"re-tainted by this release, for no more":    {key: failed, node: retainted("gpu", "knr")},
		"re-tainted by the other release":            {key: failed, node: retainted("cpu", "gpu"), other: true},
		"re-tainted by the other, for no more":       {key: failed, node: retainted("windows", "gpu"), other: true},
		"re-tainted by a release that is gone":       {key: failed, node: retainted("cpu", "gone")},
		"the failed taint of the other, of that key": {key: startup, node: retainted("cpu", "gpu")},

		"for both":               {key: startup, node: pool("both")},
		"for both, and verified": {key: startup, node: labelled("both")},
		"for both, and this one is not installed":        {key: startup, node: pool("both"), change: func(r, _ *Release) { r.NotInstalled = true }, other: true},
		"for both, re-tainted by the other one":          {key: failed, node: retainted("both", "gpu"), other: true},
		"for both, re-tainted by a release that is gone": {key: failed, node: retainted("both", "gone")},
		"verified by the other one, which is for it":     {key: startup, node: labelled("gpu"), other: true},

		"unseen: a node of this release":                  {key: startup, node: pool("cpu"), change: isUnseen(unseen)},
		"unseen: a node of the other one":                 {key: startup, node: pool("gpu"), change: isUnseen(unseen), other: true},
		"unseen: a node of neither":                       {key: startup, node: pool("windows"), change: isUnseen(unseen), err: true},
		"unseen: re-tainted by this release":              {key: failed, node: retainted("cpu", "knr"), change: isUnseen(unseen)},
		"unseen: re-tainted by another release":           {key: failed, node: retainted("cpu", "gone"), change: isUnseen(unseen), err: true},
		"unseen: whose node it is cannot be known either": {key: startup, node: pool("cpu"), err: true, change: func(r, _ *Release) { r.Known, r.Unseen = Keys, unseen }},
	} {
		t.Run(name, func(t *testing.T) {
			keys := nodepatch.Keys{TaintKey: startup, FailedTaintKey: failed, Label: "node-ready/verified", LabelValue: "true"}
			of := func(name string) Release {
				rule := corev1.NodeSelectorRequirement{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{map[string]string{"knr": "cpu", "gpu": "gpu"}[name], "both"}}
				tolerations := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
				template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Tolerations: tolerations, Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{rule}}}}}}}}
				return Release{Name: name, Known: Everything, Settings: fleet.Settings{Keys: keys, Rules: fleet.NewRules(template, keys), FailedTaintValue: name}}
			}
			r, other := of("knr"), of("gpu")
			if test.change != nil {
				test.change(&r, &other)
			}
			r.Others = []Release{other}
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}}}
			test.node(node)
			found, err := r.RemovedElsewhere(node, test.key)
			if test.err {
				require.ErrorIs(t, err, unseen)
			} else {
				require.NoError(t, err)
			}
			if test.other {
				require.NotNil(t, found)
				assert.Equal(t, "gpu", found.Name)
			} else {
				assert.Nil(t, found)
			}
		})
	}
}

func pool(name string) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Labels = map[string]string{"pool": name} }
}

func labelled(name string) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Labels = map[string]string{"pool": name, "node-ready/verified": "true"} }
}

// retainted is a node of a pool that a controller has re-tainted.
func retainted(name, controller string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		labelled(name)(node)
		node.Spec.Taints = []corev1.Taint{{Key: "node-ready/failed", Value: controller, Effect: corev1.TaintEffectNoSchedule}}
	}
}

func isUnseen(err error) func(r, other *Release) {
	return func(r, _ *Release) { r.Unseen = err }
}
