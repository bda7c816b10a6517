// Package plugin tests `kubectl node-ready`: the built program against a cluster with a real kubelet. `make e2e` runs it.
package plugin

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const node = harness.RealNode

// Rounds that fail within seconds, and a name that nobody answers.
var (
	quick = []string{"config.checkTimeout=1s", "config.maxRetries=0", "config.initialTimeout=3s"}
	stuck = append([]string{"config.dnsTestDomains={nowhere.example.org}"}, quick...)
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, nil)) }

type suite struct{ *harness.Suite }

// start makes the cluster as every test wants it: the node verified, and nothing of ours installed, before and after.
func start(t *testing.T) *suite {
	t.Helper()
	s := &suite{harness.Start(t)}
	clean := func(ctx context.Context) error {
		if err := s.Cluster.Undeploy(ctx); err != nil {
			return err
		}
		return s.Cluster.Reset(ctx, node)
	}
	s.NoError(clean(s.Ctx))
	s.Undo(clean)
	return s
}

// plugin runs a command as `kubectl node-ready` would, and returns its output and its exit code.
func (s *suite) plugin(args ...string) (out string, code int) {
	s.T.Helper()
	cmd := exec.CommandContext(s.Ctx, s.Cluster.Tool("kubectl"), append([]string{"node-ready", "--kubeconfig", s.Cluster.Kubeconfig()}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(s.Cluster.Root, "bin")+":"+os.Getenv("PATH"))
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.NoError(err)
	}
	s.T.Logf("kubectl node-ready %s: exit code %d\n%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), text)
	return string(text), cmd.ProcessState.ExitCode()
}

// done runs a command that succeeds.
func (s *suite) done(args ...string) string {
	s.T.Helper()
	out, code := s.plugin(args...)
	s.Zero(code, out)
	return out
}

func TestStatusVerifyAndOpen(t *testing.T) {
	s := start(t)
	s.Deploy(stuck...)
	s.Gate(node)
	s.Event("NodeNotVerified", "nowhere.example.org")

	failed := regexp.MustCompile(`(?s)1 node: 0 verified, 1 failed.*\n` + node + ` +\S+ +Failed +DNSFailed\S*: .*nowhere\.example\.org`)
	s.Until(func() (bool, error) { return failed.MatchString(s.done()), nil }, "the node is not shown as failed")

	// Break glass: a foreign taint stays.
	s.Patch(node, `{"spec":{"taints":[{"key":"`+harness.Taint+`","value":"true","effect":"NoSchedule"},
		{"key":"example.com/foreign","value":"x","effect":"PreferNoSchedule"}]}}`)
	_, code := s.plugin("open", "--all")
	s.Equal(2, code)
	s.Contains(s.done("open", "--all", "--yes"), "node "+node+": removed "+harness.Taint+"=true:NoSchedule")
	now := s.Node(node)
	s.Equal([]corev1.Taint{{Key: "example.com/foreign", Value: "x", Effect: corev1.TaintEffectPreferNoSchedule}}, now.Spec.Taints)
	s.NotContains(now.Labels, harness.Label, "it sets nothing")
	s.Contains(s.done("open", node), "nothing to do")

	s.Gate(node)
	s.Deploy(quick...)
	before, _ := s.AwaitVerified(node)
	s.NoError(s.Cluster.NoAgents(s.Ctx))
	s.Equal("1 node: 1 verified\n", s.done())

	s.done("verify", node)
	s.AwaitNode(node, func(n *corev1.Node) bool {
		return harness.Verified(n) && n.Annotations[harness.Annotation] != before.Annotations[harness.Annotation]
	})
	_, code = s.plugin("verify", "no-such-node")
	s.Equal(1, code)
	_, code = s.plugin("shut")
	s.Equal(2, code)
	out, code := s.plugin("-n", "default")
	s.Equal(1, code)
	s.Contains(out, "no release of kube-node-ready in the namespace default")
}

func TestDoctor(t *testing.T) {
	s := start(t)
	s.Deploy(quick...)
	s.Gate(node)
	s.AwaitVerified(node)

	// This cluster's Corefile has hosts and file instead of a forward: only a DNS pod can show what it answers.
	out := s.done("doctor")
	s.NotContains(out, "TRAP")
	s.Equal(1, strings.Count(out, "SKIP"), out)
	s.Regexp(`(?m)^SKIP +external-names +not checked: whether google\.com resolves: .*--ask-dns`, out)
	out = s.done("doctor", "--ask-dns")
	s.NotContains(out, "TRAP")
	s.NotContains(out, "SKIP")
	s.Regexp(`(?m)^PASS +external-names +a DNS pod resolves google\.com`, out)
	s.Regexp(`(?m)^PASS +cluster-domain +cluster\.local `, out)

	s.Deploy(append(quick, "config.onTimeout=taint", "config.dnsTestDomains={kubernetes.default.svc.example.local}")...)
	s.Kubectl("", "delete", "validatingadmissionpolicybinding", harness.Name)
	s.Apply(traps)
	s.nodePool()
	out, code := s.plugin("doctor", "--ask-dns")
	s.Equal(1, code)
	s.Regexp(`(?m)^WARN +cluster-domain +kubernetes\.default\.svc\.example\.local: .*NXDOMAIN`, out)
	for _, line := range []string{
		`dns-behind-gate +no pod of kube-system/kube-dns tolerates node-ready/failed,`,
		`karpenter +the NodePool e2e-plugin has node-ready/unverified under taints`,
		`foreign-taints +the node ghost-foreign .* example\.com/dedicated`,
		`labelled-and-tainted +the node ghost-labelled `,
		`failed-taint +the node ghost-failed `,
		`webhooks +the webhook e2e-plugin .* no pod of its Service default/e2e-webhook tolerates`,
		`policy +.* kube-node-ready has no binding`,
		`cluster-autoscaler +.*\(Deployment default/cluster-autoscaler\)`,
	} {
		s.Regexp(regexp.MustCompile(`(?m)^TRAP +`+line), out)
	}
	s.NotContains(out, "SKIP")
	out, _ = s.plugin("doctor", "--skip", "policy")
	s.Regexp(`(?m)^SKIP +policy `, out)

	// Somebody with few rights sees what those allow.
	out, code = s.plugin("doctor", "--as", "system:serviceaccount:default:e2e-reader")
	s.Equal(1, code)
	s.Regexp(`(?m)^TRAP +labelled-and-tainted `, out)
	s.Regexp(`(?m)^SKIP +webhooks +not checked: .*forbidden`, out)
}

// One release for each pool, with the same keys: what another release does to its nodes is no trap of this one.
func TestTwoReleases(t *testing.T) {
	const rule = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]"
	s := start(t)
	s.Deploy(append(quick, rule+".key=example.com/pool", rule+".operator=NotIn", rule+".values={gpu,manual}")...)
	gpu, err := s.Cluster.RenderAs(s.Ctx, harness.Release{Name: "gpu", Namespace: harness.Namespace}, append(quick, `nodeSelector.example\.com/pool=gpu`)...)
	s.NoError(err)
	s.Apply(gpu)
	s.Apply(pools)

	const flags = " --namespace " + harness.Namespace + " --release " + harness.Name
	out := s.done()
	s.Regexp(`(?m)^release gpu in the namespace `+harness.Namespace+`: `, out)
	s.Regexp(`(?m)^release `+harness.Name+` in the namespace `+harness.Namespace+`: `, out)
	s.Regexp(`(?m)^ghost-manual .* kubectl node-ready open ghost-manual`+flags+`$`, out)
	s.NotContains(out, "open ghost-gpu")

	out, _ = s.plugin("doctor", "--release", harness.Name)
	s.Regexp(`(?m)^TRAP +excluded-and-tainted +the node ghost-manual `, out)
	s.NotContains(out, "ghost-gpu")
	out, code := s.plugin("doctor", "--release", "gpu")
	s.Equal(1, code)
	s.Regexp(`(?m)^TRAP +labelled-and-tainted +the node ghost-gpu `, out)

	for _, args := range [][]string{{"doctor"}, {"open", "--all", "--yes"}} {
		out, code = s.plugin(args...)
		s.Equal(1, code)
		s.Contains(out, "there are 2 releases of kube-node-ready: choose one with ")
	}
	out = s.done("open", "--all", "--yes", "--release", harness.Name)
	s.Contains(out, "node ghost-gpu: left to the release gpu\n")
	s.Contains(out, "node ghost-manual: removed ")
	s.True(harness.HasTaint(s.Node("ghost-gpu"), harness.Taint))
	s.Contains(s.done("open", "--all", "--yes", "--release", "gpu"), "node ghost-gpu: removed ")
}

// No agent starts on these nodes, which have no kubelet: they are labelled.
const pools = `
apiVersion: v1
kind: Node
metadata: {name: ghost-gpu, labels: {example.com/pool: gpu, node-ready/verified: "true", kubernetes.io/os: linux}}
spec: {taints: [{key: node-ready/unverified, effect: NoSchedule}]}
---
apiVersion: v1
kind: Node
metadata: {name: ghost-manual, labels: {example.com/pool: manual, node-ready/verified: "true", kubernetes.io/os: linux}}
spec: {taints: [{key: node-ready/unverified, effect: NoSchedule}]}
`

// nodePool creates one of Karpenter, with its own definition, and the startup taint in the wrong place.
func (s *suite) nodePool() {
	s.T.Helper()
	dir, err := s.Cluster.Module(s.Ctx, "karpenter", "sigs.k8s.io/karpenter")
	s.NoError(err)
	crd := filepath.Join(dir, "pkg", "apis", "crds", "karpenter.sh_nodepools.yaml")
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "delete", "--ignore-not-found", "-f", crd)
		return err
	})
	s.Kubectl("", "apply", "--server-side", "-f", crd)
	s.Kubectl("", "wait", "--for=condition=Established", harness.Wait, "-f", crd)
	s.Kubectl(`
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: e2e-plugin}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements: []
      taints: [{key: node-ready/unverified, effect: NoSchedule}]
`, "apply", "-f", "-")
}

// The webhook is called for the agent's pods only, and none is created while it is there.
const traps = `
apiVersion: v1
kind: Node
metadata: {name: ghost-labelled, labels: {node-ready/verified: "false", kubernetes.io/os: linux}}
spec: {taints: [{key: node-ready/unverified, effect: NoSchedule}]}
---
apiVersion: v1
kind: Node
metadata: {name: ghost-foreign, labels: {kubernetes.io/os: linux}}
spec: {taints: [{key: node-ready/unverified, effect: NoSchedule}, {key: example.com/dedicated, effect: NoExecute}]}
---
apiVersion: v1
kind: Node
metadata: {name: ghost-failed, labels: {node-ready/verified: "true", kubernetes.io/os: linux}}
spec: {taints: [{key: node-ready/failed, effect: NoSchedule}]}
---
apiVersion: v1
kind: Pod
metadata: {name: e2e-webhook, namespace: default, labels: {app: e2e-webhook}}
spec:
  nodeSelector: {no-node: has-this}
  containers: [{name: webhook, image: localhost/none}]
---
apiVersion: v1
kind: Service
metadata: {name: e2e-webhook, namespace: default}
spec: {selector: {app: e2e-webhook}, ports: [{port: 443}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: e2e-plugin}
webhooks:
  - name: pods.e2e.example.com
    clientConfig: {service: {namespace: default, name: e2e-webhook}}
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
    objectSelector: {matchLabels: {app.kubernetes.io/name: kube-node-ready}}
    sideEffects: None
    admissionReviewVersions: [v1]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cluster-autoscaler, namespace: default}
spec:
  replicas: 1
  selector: {matchLabels: {app: e2e-autoscaler}}
  template:
    metadata: {labels: {app: e2e-autoscaler}}
    spec: {containers: [{name: autoscaler, image: "registry.k8s.io/autoscaling/cluster-autoscaler:v1.34.0", command: [./cluster-autoscaler, --v=4]}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-reader}
rules:
  - {apiGroups: [""], resources: [nodes, pods, configmaps], verbs: [get, list]}
  - {apiGroups: [apps], resources: [daemonsets, deployments], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-reader}
subjects: [{kind: ServiceAccount, name: e2e-reader, namespace: default}]
`
