package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
)

// cluster is a release and some nodes behind a fake client.
type cluster struct {
	client.Client
	t      *testing.T
	config *rest.Config
}

func newCluster(t *testing.T, nodes ...client.Object) cluster {
	labels := map[string]string{"app.kubernetes.io/part-of": "kube-node-ready", "app.kubernetes.io/instance": "knr",
		"app.kubernetes.io/name": "kube-node-ready", "app.kubernetes.io/component": "agent"}
	meta := metav1.ObjectMeta{Namespace: "kube-system", Name: "knr", Labels: labels}
	set := &appsv1.DaemonSet{ObjectMeta: meta}
	set.Spec.Template.Labels = labels
	set.Spec.Template.Spec.Containers = []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "knr"}}}}}}
	kind := func(o client.Object) []string {
		if event, ok := o.(*corev1.Event); ok {
			return []string{event.InvolvedObject.Kind}
		}
		return nil
	}
	objects := append(nodes, set, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"TAINT_KEY": "example.com/gate"}})
	return cluster{fake.NewClientBuilder().WithObjects(objects...).WithIndex(new(corev1.Event), "involvedObject.kind", kind).Build(), t, nil}
}

func (c cluster) connect(options) (client.Client, *rest.Config, error) { return c, c.config, nil }

func (c cluster) run(args ...string) (code int, stdout, stderr string) {
	return c.pipe("", args...)
}

// pipe runs the plugin with this on its standard input.
func (c cluster) pipe(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(c.t.Context(), args, c.connect, streams{strings.NewReader(stdin), &out, &err})
	return code, out.String(), err.String()
}

// uninstall deletes the DaemonSet, and returns what it was.
func (c cluster) uninstall() *appsv1.DaemonSet {
	set := new(appsv1.DaemonSet)
	require.NoError(c.t, c.Get(c.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "knr"}, set))
	require.NoError(c.t, c.Delete(c.t.Context(), set))
	return set
}

// inControllerMode replaces the DaemonSet by a controller whose ConfigMap knr-controller is gone.
func (c cluster) inControllerMode() {
	set := c.uninstall()
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: set.Namespace, Name: "knr-controller", Labels: set.Labels}}
	deployment.Spec.Template = set.Spec.Template
	deployment.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "agent", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "knr-controller"}}}}}
	require.NoError(c.t, c.Create(c.t.Context(), deployment))
}

func gated(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.NodeSpec{
		Taints: []corev1.Taint{{Key: "example.com/gate", Effect: corev1.TaintEffectNoSchedule}, {Key: "example.com/mine", Effect: corev1.TaintEffectNoSchedule}}}}
}

func TestUsage(t *testing.T) {
	c := newCluster(t)
	for _, test := range []struct {
		args []string
		text string
	}{
		{[]string{"shut"}, `unknown command "shut"`},
		{[]string{"--nonsense"}, "unknown flag: --nonsense"},
		{[]string{"verify"}, "verify needs the names of nodes"},
		{[]string{"verify", "--all"}, "verify needs the names of nodes"},
		{[]string{"open"}, "open needs the names of nodes, or --all"},
		{[]string{"open", "--all", "n"}, "open needs the names of nodes, or --all"},
		{[]string{"open", "--all"}, "open --all lets workloads onto every node of the release, verified or not: add --yes"},
		{[]string{"doctor", "n"}, `doctor takes no further argument: "n"`},
		{[]string{"doctor", "--skip", "x"}, "--skip x: must be one of"},
		{[]string{"open", "n", "-f", "-"}, "--filename is only for doctor"},
	} {
		code, stdout, stderr := c.run(test.args...)
		assert.Equal(t, config.ExitUsage, code, test.args)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, "kubectl node-ready: "+test.text)
	}
	code, stdout, _ := c.run("--help")
	assert.Equal(t, config.ExitOK, code)
	for _, flag := range []string{"--context", "--kubeconfig", "-n, --namespace", "--release", "--as "} {
		assert.Contains(t, stdout, flag)
	}
	code, stdout, _ = c.run("--version")
	assert.Equal(t, config.ExitOK, code)
	assert.Contains(t, stdout, "kubectl node-ready dev (commit unknown")
}

func TestStatusAndOpen(t *testing.T) {
	left := gated("left")
	left.Spec.Taints[0].Key, left.Labels = "efs.csi.aws.com/agent-not-ready", map[string]string{"node-ready/verified": "true", "kubernetes.io/os": "linux"}
	left.CreationTimestamp = metav1.NewTime(time.Now().Add(-90 * time.Minute))
	c := newCluster(t, gated("a"), gated("b"), left)
	code, stdout, stderr := c.run()
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Contains(t, stdout, "the node left is 90m old and still has the foreign startup taint efs.csi.aws.com/agent-not-ready:NoSchedule\n")
	assert.Contains(t, stdout, "3 nodes: 0 verified, 2 unverified")
	assert.Regexp(t, `(?m)^a .* Unverified +NoPod: the agent does not tolerate the taint example.com/gate`, stdout)

	code, stdout, stderr = c.run("open", "a")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Equal(t, "node a: removed example.com/gate:NoSchedule\n", stdout)
	code, stdout, stderr = c.run("open", "--all", "-y")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Equal(t, "node b: removed example.com/gate:NoSchedule\n", stdout)
	var node corev1.Node
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "a"}, &node))
	assert.Equal(t, []corev1.Taint{{Key: "example.com/mine", Effect: corev1.TaintEffectNoSchedule}}, node.Spec.Taints)
	_, stdout, _ = c.run("open", "--all", "-y")
	assert.Equal(t, "no node has one of the taints\n", stdout)
}

func TestOpenSaysHowToStopRetaint(t *testing.T) {
	c := newCluster(t, gated("a"))
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "knr-controller",
		Labels: map[string]string{"app.kubernetes.io/part-of": "kube-node-ready", "app.kubernetes.io/instance": "knr"}}}
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{
		EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "knr"}}}},
		Env:     []corev1.EnvVar{{Name: "AGENT_NAME", Value: "knr"}, {Name: "RETAINT", Value: "true"}, {Name: "RECHECK_INTERVAL", Value: "1m"}}}}
	require.NoError(t, c.Create(t.Context(), deployment))
	_, stdout, stderr := c.run("open", "a")
	assert.Empty(t, stderr)
	assert.Equal(t, "If they fail, the controller may re-taint these nodes after 10m0s, and others now. To stop it: "+
		"kubectl --namespace kube-system scale deployment knr-controller --replicas=0\nnode a: removed example.com/gate:NoSchedule\n", stdout)
}

func TestVerifyAndErrors(t *testing.T) {
	labelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", Labels: map[string]string{"node-ready/verified": "true"}}}
	c := newCluster(t, labelled)
	code, stdout, stderr := c.run("verify", "a", "no-such-node")
	assert.Equal(t, config.ExitError, code)
	assert.Contains(t, stdout, "node a: label node-ready/verified removed")
	assert.Contains(t, stderr, `node no-such-node: nodes "no-such-node" not found`)

	code, _, stderr = c.run("-n", "default")
	assert.Equal(t, config.ExitError, code)
	assert.Contains(t, stderr, "no release of kube-node-ready in the namespace default")
	code, _, _ = c.run("-n", "kube-system", "--release", "knr")
	assert.Equal(t, config.ExitOK, code)
}

// Before nodes are gated, doctor warns; --gate-all makes a trap of it.
func TestDoctorGateAll(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns", Labels: map[string]string{"dns": "yes"}}
	c := newCluster(t, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: meta.Labels}}, &corev1.Pod{ObjectMeta: meta},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain"}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	code, stdout, _ := c.run("doctor", "--skip", "policy")
	assert.Equal(t, config.ExitOK, code, stdout)
	assert.Regexp(t, "(?m)^WARN  dns-behind-gate ", stdout)
	code, stdout, _ = c.run("doctor", "--skip", "policy", "--gate-all")
	assert.Equal(t, config.ExitError, code)
	assert.Regexp(t, "(?m)^TRAP  dns-behind-gate ", stdout)
}

// The kubeconfig is kubectl's, and each request names the program.
func TestConnect(t *testing.T) {
	seen := make(chan *http.Request, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		http.Error(w, "teapot", http.StatusTeapot)
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(`{"clusters":[{"name":"c","cluster":{"server":"`+server.URL+`"}}],
		"contexts":[{"name":"x","context":{"cluster":"c"}}]}`), 0o600))
	o := options{clock: new(kube.Clock)}
	require.NoError(t, newFlags(&o).Parse([]string{"--kubeconfig", path, "--context", "x"}))
	found, _, err := connect(o)
	require.NoError(t, err)
	require.Error(t, found.Get(t.Context(), client.ObjectKey{Name: "n"}, new(corev1.Node)))
	assert.WithinDuration(t, time.Now(), o.clock.ServerTime(), time.Minute)
	require.NotEmpty(t, seen, "no request was sent")
	r := <-seen
	assert.Regexp(t, "^/api", r.URL.Path)
	assert.Equal(t, "kubectl-node_ready/dev", r.UserAgent())

	o.overrides.CurrentContext = "other"
	_, _, err = connect(o)
	require.ErrorContains(t, err, "no access to a cluster")
}

// Break glass works with settings that no pod starts with, and without any.
func TestOpenWithInvalidSettings(t *testing.T) {
	c := newCluster(t, gated("a"), gated("b"))
	settings := new(corev1.ConfigMap)
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "knr"}, settings))
	settings.Data["CHECK_TIMEOUT"], settings.Data["ON_TIMEOUT"] = "3", "nothing"
	require.NoError(t, c.Update(t.Context(), settings))
	code, _, stderr := c.run()
	assert.Equal(t, config.ExitError, code)
	assert.Contains(t, stderr, "CHECK_TIMEOUT")
	code, stdout, _ := c.run("doctor")
	assert.Equal(t, config.ExitError, code)
	assert.Regexp(t, "TRAP  settings .*CHECK_TIMEOUT.*; ON_TIMEOUT", stdout)
	assert.NotContains(t, stdout, "PASS")
	for _, args := range [][]string{{"verify", "a"}, {"open", "a"}, {"open", "--all", "--yes"}} {
		code, stdout, stderr = c.run(args...)
		assert.Equal(t, config.ExitOK, code, stderr)
		assert.Contains(t, stderr, "warning: settings in the ConfigMap kube-system/knr: CHECK_TIMEOUT")
		assert.Contains(t, stderr, "Assumed taints: example.com/gate, node-ready/failed; assumed label: node-ready/verified")
	}
	assert.Equal(t, "node b: removed example.com/gate:NoSchedule\n", stdout)

	node := gated("c")
	node.Spec.Taints[0].Key = "node-ready/unverified"
	require.NoError(t, c.Create(t.Context(), node))
	require.NoError(t, c.Delete(t.Context(), settings))
	code, stdout, stderr = c.run("open", "--all", "--yes")
	assert.Equal(t, config.ExitError, code, "it would remove what is not the release's")
	assert.Empty(t, stdout)
	assert.Contains(t, stderr, "kubectl node-ready: open --all does not know the release's taint keys: their ConfigMap is gone\n"+
		"try: name the nodes, or kubectl taint nodes NODE KEY-\n")
	code, _, stderr = c.run("verify", "c")
	assert.Equal(t, config.ExitError, code, "no pod starts without the ConfigMap")
	assert.Contains(t, stderr, "until then, open works for named nodes\n")
	code, stdout, stderr = c.run("open", "c")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Contains(t, stderr, "configmaps \"knr\" not found")
	assert.Contains(t, stderr, "Assumed taints: node-ready/unverified, node-ready/failed")
	assert.Equal(t, "node c: removed node-ready/unverified:NoSchedule\n", stdout)
}

// Without the template of the workers nobody can say which nodes would be verified again: open removes the taints all the same.
func TestOpenWithoutTheTemplateOfTheWorkers(t *testing.T) {
	c := newCluster(t, gated("a"))
	c.inControllerMode()
	_, _, refusal := c.run("verify", "a")
	assert.Contains(t, refusal, "template of the workers: configmaps \"knr-controller\" not found"+
		"\ntry: correct it and run helm upgrade, or apply the manifests again; until then, open works for named nodes\n")
	code, stdout, stderr := c.run("open", "a")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Contains(t, stderr, "warning: template of the workers")
	assert.Equal(t, "node a: removed example.com/gate:NoSchedule\n", stdout)
}

// The first step of a new user: the message says how to look before the installation.
func TestNoRelease(t *testing.T) {
	c := newCluster(t)
	c.uninstall()
	for _, args := range [][]string{{"doctor", "--gate-all"}, {"open", "--all", "--yes"}} {
		code, stdout, stderr := c.run(args...)
		assert.Equal(t, config.ExitError, code)
		assert.Empty(t, stdout)
		assert.Equal(t, "kubectl node-ready: no release of kube-node-ready in any namespace (no DaemonSet or Deployment with the label "+
			"app.kubernetes.io/part-of=kube-node-ready): check --context, --namespace and --release, or render the whole chart; "+
			"before the installation, run helm template ... | kubectl node-ready doctor -f -\n", stderr)
	}
}

// After helm uninstall nobody removes the taints.
func TestDoctorFindsTaintsWithoutARelease(t *testing.T) {
	node := gated("a")
	node.Spec.Taints[0].Key, node.Labels = "node-ready/unverified", map[string]string{"kubernetes.io/os": "linux"}
	c := newCluster(t, node)
	c.uninstall()
	code, stdout, _ := c.pipe(rendered(t, "kube-node-ready"), "doctor", "-f", "-", "--skip", "dns-behind-gate")
	assert.Equal(t, config.ExitError, code, stdout)
	assert.Regexp(t, "(?m)^TRAP  no-release +the node a has the taint node-ready/unverified: ", stdout)
	assert.Regexp(t, "(?m)^SKIP  dns-behind-gate +not checked: --skip$", stdout)
	assert.NotContains(t, stdout, "kubectl node-ready ", "that would refuse")
}

// rendered joins files that the chart renders.
func rendered(t *testing.T, names ...string) (text string) {
	for _, name := range names {
		file, err := os.ReadFile("../../../hack/manifests/" + name + ".yaml")
		require.NoError(t, err)
		text += string(file)
	}
	return text
}

// What helm template prints counts, whatever is installed. In a cluster that is ready for it there is no trap.
func TestDoctorReadsManifests(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns", Labels: map[string]string{"dns": "yes"}}
	everything := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	autoscaler := &appsv1.Deployment{ObjectMeta: meta}
	autoscaler.Spec.Template.Spec.Containers = []corev1.Container{{Image: "cluster-autoscaler:v1"}}
	c := newCluster(t, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: meta.Labels}}, autoscaler,
		&corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Tolerations: everything}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain", Labels: map[string]string{"kubernetes.io/os": "linux"}}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"},
			Data: map[string]string{"Corefile": ".:53 {\n  kubernetes cluster.local\n  forward . 192.0.2.1\n}\n"}})
	const key = "startup-taint.cluster-autoscaler.kubernetes.io/unverified"
	defaults := rendered(t, "kube-node-ready", "kube-node-ready-policy", "kube-node-ready-startup-taint") +
		"---\napiVersion: monitoring.coreos.com/v1\nkind: PodMonitor\nmetadata: {name: unknown}\n"
	renamed := strings.ReplaceAll(defaults, "node-ready/unverified", key)
	for _, installed := range []bool{true, false} {
		if !installed {
			c.uninstall()
		}
		code, stdout, stderr := c.pipe(defaults, "doctor", "--gate-all", "-f", "-")
		assert.Equal(t, config.ExitError, code, stderr)
		assert.Regexp(t, "(?m)^TRAP  cluster-autoscaler .*does not know the startup taint node-ready/unverified ", stdout)
		code, stdout, stderr = c.pipe(renamed, "doctor", "--gate-all", "-f", "-")
		assert.Equal(t, config.ExitOK, code, stdout)
		assert.Empty(t, stderr)
		assert.Contains(t, stdout, "doctor assumes the release kube-node-ready of the manifests in the namespace kube-system\n")
		assert.Regexp(t, "(?m)^PASS  settings +the settings in the ConfigMap kube-system/kube-node-ready are valid$", stdout)
		assert.Regexp(t, "(?m)^PASS  policy +the policies of the release are bound, and deny$", stdout)
		assert.NotRegexp(t, "(?m)^(TRAP|WARN|SKIP) ", stdout)
	}

	// The same as one List, and with the mark that PowerShell writes before UTF-8.
	items := "\ufeffapiVersion: v1\nkind: List\nitems:\n"
	for document := range strings.SplitSeq("\n"+renamed, "\n---\n") {
		if strings.Contains(document, "\nkind: ") {
			items += "-\n  " + strings.ReplaceAll(document, "\n", "\n  ") + "\n"
		}
	}
	code, stdout, stderr := c.pipe(items, "doctor", "--gate-all", "-f", "-")
	assert.Equal(t, config.ExitOK, code, stdout+stderr)
	assert.Contains(t, stdout, "doctor assumes the release kube-node-ready of the manifests")
	assert.Regexp(t, "(?m)^PASS  policy ", stdout)

	path := filepath.Join(t.TempDir(), "rendered.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(renamed, `MAX_RETRIES: "5"`, `MAX_RETRIES: "many"`, 1)), 0o600))
	code, stdout, _ = c.run("doctor", "-f", path)
	assert.Equal(t, config.ExitError, code)
	assert.Regexp(t, "(?m)^TRAP  settings .*MAX_RETRIES.*\n +try: correct it, and render the manifests again$", stdout)

	// Helm decides about the policies when it installs, and they can be applied apart from the rest.
	code, stdout, _ = c.pipe(rendered(t, "kube-node-ready"), "doctor", "-f", "-", "--skip", "cluster-autoscaler")
	assert.Equal(t, config.ExitOK, code, stdout)
	assert.Regexp(t, "(?m)^WARN  policy +there is no ValidatingAdmissionPolicy kube-node-ready: the agent's token may patch any node", stdout)
}

// Every mistake in the manifests is reported, each once.
func TestDoctorRefusesManifests(t *testing.T) {
	release := rendered(t, "kube-node-ready")
	second := strings.ReplaceAll(release, "app.kubernetes.io/instance: kube-node-ready", "app.kubernetes.io/instance: second")
	const two = "there are 2 releases of kube-node-ready: choose one with --namespace kube-system --release kube-node-ready, or "
	for name, test := range map[string]struct {
		manifests string
		flags     []string
		mistakes  []string
	}{
		"empty":         {"", nil, []string{"no manifests in --filename: if it is empty, run helm template alone"}},
		"only comments": {"# nothing\n---\n", nil, []string{"no manifests in --filename"}},
		"UTF-16":        {"\xff\xfe" + strings.Join(strings.Split(release, ""), "\x00"), nil, []string{"- is not UTF-8; PowerShell's > writes UTF-16: use helm template ... | Set-Content -Encoding utf8 -, or pipe the manifests to -f -"}},
		"a List with mistakes": {`{"kind": "List", "apiVersion": "v1", "items": [{"metadata": {}}, {"kind": "ConfigMap", "apiVersion": "v1", "data": {"A": 5}}]}`, nil, []string{
			"-: the document at line 1 is no manifest: it has no kind", "json: cannot unmarshal number"}},
		"values": {"config:\n  taintKey: x\n", nil, []string{"-: the document at line 1 is no manifest: it has no kind: correct it, or pass what helm template prints, not values"}},
		"no release": {rendered(t, "kube-node-ready-policy"), nil, []string{
			"no release of kube-node-ready in any namespace (no DaemonSet or Deployment with the label app.kubernetes.io/part-of=kube-node-ready): "}},
		"another release":          {release, []string{"-n", "own"}, []string{"no release of kube-node-ready in the namespace own "}},
		"two releases":             {release + second, nil, []string{two}},
		"a file that is not there": {release, []string{"-f", "gone.yaml"}, []string{"open gone.yaml: "}},
		"several": {"---\nkind: ConfigMap\napiVersion: v1\ndata: {A: 5}\n---\nkind: [\n" + release + second, nil, []string{
			"-: the document at line 1 is no manifest: json: cannot unmarshal number into Go struct field ConfigMap.data",
			"-: the document at line 5 is no manifest: yaml: line 7: ", two}},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := newCluster(t).pipe(test.manifests, append([]string{"doctor", "-f", "-"}, test.flags...)...)
			assert.Equal(t, config.ExitError, code)
			assert.Empty(t, stdout)
			lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(stderr, "kubectl node-ready: "), "\n"), "\n")
			require.Len(t, lines, len(test.mistakes), stderr)
			for i, text := range test.mistakes {
				assert.Contains(t, lines[i], text)
			}
		})
	}
}

// forwarding is an API server that forwards ports with SPDY, to a name server that refuses every name but google.com. It denies that.
func forwarding(t *testing.T) *httptest.Server {
	serve := func(stream io.ReadWriteCloser) {
		defer func() { _ = stream.Close() }()
		var length [2]byte
		if _, err := io.ReadFull(stream, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		_, _ = io.ReadFull(stream, query)
		var message dnsmessage.Message
		_ = message.Unpack(query)
		message.Response, message.RCode, message.Additionals = true, dnsmessage.RCodeRefused, nil
		if strings.HasPrefix(message.Questions[0].Name.String(), "google.com.") {
			message.RCode = dnsmessage.RCodeNameError
		}
		reply, _ := message.Pack()
		_, _ = stream.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/prefix/api/v1/namespaces/kube-system/pods/dns/portforward" {
			http.Error(w, "pods \"dns\" is forbidden", http.StatusForbidden)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return
		}
		connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, accepted <-chan struct{}) error {
			assert.Equal(t, "53", stream.Headers().Get(corev1.PortHeader))
			go func() {
				<-accepted
				if stream.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
					serve(stream)
				} else {
					_ = stream.Close()
				}
			}()
			return nil
		})
		if connection != nil {
			<-connection.CloseChan()
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// --ask-dns reaches a DNS pod through the API server. Its findings are warnings or unchecked, never traps.
func TestDoctorAsksDNS(t *testing.T) {
	labels := map[string]string{"dns": "yes"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "dns", Labels: labels},
		Spec:   corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"}, Spec: corev1.ServiceSpec{
		Selector: labels, Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolTCP}}}}
	c := newCluster(t, pod, service)
	c.config = &rest.Config{Host: forwarding(t).URL + "/prefix"}
	code, stdout, stderr := c.run("doctor", "--skip", "policy", "--ask-dns")
	assert.Equal(t, config.ExitOK, code, stdout)
	assert.Empty(t, stderr)
	assert.Regexp(t, "(?m)^WARN  external-names +google.com: google.com: NXDOMAIN", stdout)
	assert.Regexp(t, "(?m)^SKIP  cluster-domain +not checked: whether kubernetes.default.svc.cluster.local resolves: .*REFUSED", stdout)

	c.config.Host = strings.TrimSuffix(c.config.Host, "/prefix")
	code, stdout, _ = c.run("doctor", "--skip", "policy", "--ask-dns")
	assert.Equal(t, config.ExitOK, code, stdout)
	assert.Regexp(t, `(?m)^SKIP  external-names +not checked: whether google.com resolves: .*pods "dns" is forbidden`, stdout)
	c.config.Host = "http://127.0.0.1:1"
	_, stdout, _ = c.run("doctor", "--skip", "policy", "--ask-dns")
	assert.Regexp(t, `(?m)^SKIP  external-names +not checked: whether google.com resolves: .*connection refused`, stdout)
}

// A pod or proxy that does not answer does not stop doctor.
func TestForwardToWithoutAnAnswer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "dns"}}
	_, err = forwardTo(&rest.Config{Host: "http://" + listener.Addr().String()}, time.Millisecond)(t.Context(), pod, 53)
	require.EqualError(t, err, "port-forward to the pod kube-system/dns: no answer for 1ms")
}

// addPools makes the release knr the one for every pool but gpu, and adds the release gpu for that pool. Both have the same keys.
func (c cluster) addPools() {
	set := new(appsv1.DaemonSet)
	require.NoError(c.t, c.Get(c.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "knr"}, set))
	set.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	set.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"gpu", "manual"}}}}}}}}
	require.NoError(c.t, c.Update(c.t.Context(), set))
	meta := metav1.ObjectMeta{Namespace: "gpus", Name: "gpu", Labels: map[string]string{
		"app.kubernetes.io/part-of": "kube-node-ready", "app.kubernetes.io/instance": "gpu", "app.kubernetes.io/name": "kube-node-ready"}}
	gpu := set.DeepCopy()
	gpu.ObjectMeta = meta
	gpu.Spec.Template.Labels = gpu.Labels
	gpu.Spec.Template.Spec.Affinity, gpu.Spec.Template.Spec.NodeSelector = nil, map[string]string{"pool": "gpu"}
	gpu.Spec.Template.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name = "gpu"
	require.NoError(c.t, c.Create(c.t.Context(), gpu))
	require.NoError(c.t, c.Create(c.t.Context(), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"TAINT_KEY": "example.com/gate"}}))
}

// inPool is a node of a pool that has just joined.
func inPool(name, pool string) *corev1.Node {
	node := gated(name)
	node.Labels = map[string]string{"pool": pool}
	return node
}

// A node that another release verifies is left to that release.
func TestTwoReleases(t *testing.T) {
	c := newCluster(t, inPool("cpu-1", "cpu"), inPool("gpu-1", "gpu"))
	c.addPools()
	const choose = "there are 2 releases of kube-node-ready: choose one with --namespace gpus --release gpu, or --namespace kube-system --release knr\n"
	for _, args := range [][]string{{"doctor"}, {"verify", "cpu-1"}, {"open", "gpu-1"}, {"open", "--all", "--yes"}} {
		code, stdout, stderr := c.run(args...)
		assert.Equal(t, config.ExitError, code, args)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, choose)
	}
	code, stdout, stderr := c.run()
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Regexp(t, `(?s)^release gpu in the namespace gpus: 2 nodes: 0 verified, 1 unverified, 1 not selected\nNODE .*\ngpu-1 .*`+
		`\nrelease knr in the namespace kube-system: 2 nodes: 0 verified, 1 unverified, 1 not selected\nNODE .*\ncpu-1 `, stdout)
	assert.NotContains(t, stdout, "open")

	code, stdout, _ = c.run("doctor", "--release", "knr")
	assert.Equal(t, config.ExitError, code, "there is no DNS Service")
	assert.Regexp(t, "(?m)^PASS  excluded-and-tainted ", stdout)
	assert.Contains(t, stdout, "note: for the nodes of the release gpu: kubectl node-ready doctor --namespace gpus --release gpu\n")
	assert.NotContains(t, stdout, "gpu-1")

	// A node that no release selects is stranded, and the advice works.
	require.NoError(t, c.Create(t.Context(), inPool("manual-1", "manual")))
	const advice = "kubectl node-ready open manual-1 --namespace kube-system --release knr"
	_, stdout, _ = c.run()
	assert.Regexp(t, "(?m)^manual-1 .* Unverified +the node rules exclude this node.* "+advice+"$", stdout)
	_, stdout, _ = c.run("doctor", "--release", "knr")
	assert.Regexp(t, "(?m)^TRAP  excluded-and-tainted +the node manual-1 .*\n +try: "+advice, stdout)

	code, _, stderr = c.run("open", "--all", "--yes", "--namespace", "kube-system")
	assert.Equal(t, config.ExitError, code)
	assert.Contains(t, stderr, "open --all opens the nodes of one release, and there may be several: add --release knr\n")
	code, stdout, stderr = c.run("open", "--all", "--yes", "--release", "knr")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Equal(t, "node gpu-1: left to the release gpu\nnode cpu-1: removed example.com/gate:NoSchedule\nnode manual-1: removed example.com/gate:NoSchedule\n", stdout)
	code, stdout, _ = c.run("open", "--all", "--yes", "--release", "gpu")
	assert.Equal(t, config.ExitOK, code)
	assert.Equal(t, "node gpu-1: removed example.com/gate:NoSchedule\n", stdout)
}

// The nodes of an unreadable release are unknown, so no node is called stranded. The other releases are still shown.
func TestReleaseThatCannotBeRead(t *testing.T) {
	c := newCluster(t, inPool("cpu-1", "cpu"), inPool("gpu-1", "gpu"))
	c.addPools()
	require.NoError(t, c.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpus", Name: "gpu"}}))
	code, stdout, stderr := c.run()
	assert.Equal(t, config.ExitError, code)
	assert.Contains(t, stderr, "settings of the release: configmaps \"gpu\" not found\ntry: ")
	assert.Regexp(t, `(?m)^release knr in the namespace kube-system: 2 nodes: 0 verified, 2 unverified\n`, stdout)
	assert.Regexp(t, `(?m)^gpu-1 .* another release may remove the taint: the release gpus/gpu: settings of the release: configmaps "gpu" not found$`, stdout)
	assert.NotContains(t, stdout, " open ")

	_, stdout, _ = c.run("doctor", "--release", "knr")
	assert.Regexp(t, "(?m)^SKIP  excluded-and-tainted +not checked: the node gpu-1, for example, may be of another release: the release gpus/gpu: ", stdout)
	assert.NotContains(t, stdout, " open ")

	code, stdout, stderr = c.run("open", "--all", "--yes", "--release", "knr")
	assert.Equal(t, config.ExitError, code)
	assert.Contains(t, stderr, "not opened, because they may be another release's: gpu-1: the release gpus/gpu: settings of the release: configmaps \"gpu\" not found\n"+
		"try: kubectl node-ready open NODE --namespace kube-system --release knr\n")
	assert.Equal(t, "node cpu-1: removed example.com/gate:NoSchedule\n", stdout)
	code, stdout, _ = c.run("open", "gpu-1", "--release", "knr")
	assert.Equal(t, config.ExitOK, code, "its name says that it is meant")
	assert.Equal(t, "node gpu-1: removed example.com/gate:NoSchedule\n", stdout)
}

// Two releases that are for the same nodes do not leave them to each other.
func TestOpenAllOfTwoReleasesForTheSameNodes(t *testing.T) {
	for _, name := range []string{"knr", "gpu"} {
		c := newCluster(t, inPool("gpu-1", "gpu"))
		c.addPools()
		set := new(appsv1.DaemonSet)
		require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "knr"}, set))
		set.Spec.Template.Spec.Affinity = nil
		require.NoError(t, c.Update(t.Context(), set))
		code, stdout, stderr := c.run("open", "--all", "--yes", "--release", name)
		assert.Equal(t, config.ExitOK, code, stderr)
		assert.Equal(t, "node gpu-1: removed example.com/gate:NoSchedule\n", stdout)
	}
}

// The only release that can be read may not be the one that is meant: a command about one release asks for its name.
func TestOnlyOneReleaseCanBeRead(t *testing.T) {
	c := newCluster(t, inPool("cpu-1", "cpu"))
	c.addPools()
	settings := new(corev1.ConfigMap)
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "gpus", Name: "gpu"}, settings))
	settings.Data["TAINT_KEY"] = "no key"
	require.NoError(t, c.Update(t.Context(), settings))
	for _, command := range [][]string{{"open", "--all", "--yes"}, {"open", "cpu-1"}, {"verify", "cpu-1"}, {"doctor"}} {
		code, stdout, stderr := c.run(command...)
		assert.Equal(t, config.ExitError, code, command)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, "there are 2 releases of kube-node-ready: choose one with "+
			"--namespace gpus --release gpu, or --namespace kube-system --release knr\n")
	}
	code, stdout, stderr := c.run("open", "cpu-1", "--release", "knr")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Equal(t, "node cpu-1: removed example.com/gate:NoSchedule\n", stdout)
}

// open removes every taint of the release, so one that another release removes from the node keeps it closed.
func TestOpenAllLeavesANodeWithATaintOfItsOwnBesideAnotherReleases(t *testing.T) {
	node := inPool("gpu-1", "gpu")
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "example.com/legacy", Effect: corev1.TaintEffectNoSchedule})
	c := newCluster(t, node)
	c.addPools()
	settings := new(corev1.ConfigMap)
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "knr"}, settings))
	settings.Data["ALSO_REMOVE_TAINTS"] = "example.com/legacy"
	require.NoError(t, c.Update(t.Context(), settings))
	code, stdout, stderr := c.run("open", "--all", "--yes", "--release", "knr")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Equal(t, "node gpu-1: left to the release gpu\n", stdout)
}

// Break glass works although neither this release's node rules nor another release can be read.
func TestOpenAllIfNoNodeRulesAreKnown(t *testing.T) {
	c := newCluster(t, inPool("cpu-1", "cpu"), inPool("gpu-1", "gpu"))
	c.addPools()
	c.inControllerMode()
	code, stdout, stderr := c.run("open", "--all", "--yes", "--release", "knr")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Equal(t, "node gpu-1: left to the release gpu\nnode cpu-1: removed example.com/gate:NoSchedule\n", stdout)

	require.NoError(t, c.Create(t.Context(), inPool("cpu-2", "cpu")))
	require.NoError(t, c.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpus", Name: "gpu"}}))
	code, stdout, _ = c.run("open", "--all", "--yes", "--namespace", "kube-system")
	assert.Equal(t, config.ExitError, code, "no release was named")
	assert.Empty(t, stdout)
	code, stdout, stderr = c.run("open", "--all", "--yes", "--release", "knr")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Equal(t, "node cpu-2: removed example.com/gate:NoSchedule\nnode gpu-1: removed example.com/gate:NoSchedule\n", stdout)
}

// open opens the nodes that the release itself has re-tainted, also with settings that no pod starts with.
func TestOpenAllOfRetaintedNodesWithInvalidSettings(t *testing.T) {
	c := newCluster(t)
	c.addPools()
	c.inControllerMode()
	require.NoError(t, c.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpus", Name: "gpu"}}))
	settings := new(corev1.ConfigMap)
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "knr"}, settings))
	settings.Data["CHECK_TIMEOUT"] = "3"
	require.NoError(t, c.Update(t.Context(), settings))
	workers := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "knr-controller"}, Data: map[string]string{
		"agent.yaml": "spec: {containers: [{name: worker, envFrom: [{configMapRef: {name: knr}}]}], tolerations: [{operator: Exists}]}"}}
	require.NoError(t, c.Create(t.Context(), workers))
	node := inPool("cpu-1", "cpu")
	node.Spec.Taints = []corev1.Taint{{Key: "node-ready/failed", Value: "knr", Effect: corev1.TaintEffectNoSchedule}}
	require.NoError(t, c.Create(t.Context(), node))
	code, stdout, stderr := c.run("open", "--all", "--yes", "--release", "knr")
	assert.Equal(t, config.ExitOK, code, stderr)
	assert.Equal(t, "node cpu-1: removed node-ready/failed=knr:NoSchedule\n", stdout)
}

// A planned release is judged beside what the cluster has.
func TestDoctorReadsManifestsBesideAnotherRelease(t *testing.T) {
	c := newCluster(t, inPool("gpu-1", "gpu"))
	c.addPools()
	c.uninstall()
	planned := strings.ReplaceAll(rendered(t, "kube-node-ready"), "node-ready/unverified", "example.com/gate")
	const skip = "dns-behind-gate,policy,external-names,cluster-domain"
	code, stdout, stderr := c.pipe(planned, "doctor", "-f", "-", "--namespace", "kube-system", "--skip", skip)
	assert.Equal(t, config.ExitOK, code, stdout+stderr)
	assert.Regexp(t, "(?m)^PASS  no-release ", stdout)
	assert.Regexp(t, "(?m)^PASS  excluded-and-tainted ", stdout)

	// No release removes the taint of this node yet, and the nodes of the other one are not opened.
	require.NoError(t, c.Create(t.Context(), inPool("cpu-1", "cpu")))
	code, stdout, _ = c.pipe(planned, "doctor", "-f", "-", "--namespace", "kube-system", "--skip", skip)
	assert.Equal(t, config.ExitError, code, stdout)
	assert.Regexp(t, "(?m)^TRAP  no-release +the node cpu-1 has the taint example.com/gate: .*\\n +try: .*: kubectl taint nodes NODE example.com/gate-$", stdout)
	assert.NotContains(t, stdout, "gpu-1")
}
