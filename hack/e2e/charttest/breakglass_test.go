package charttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The README's break-glass commands release every node, whichever of the two taints it has, and
// leave foreign taints alone. An agent whose checks fail does not close its node again.
func TestBreakGlassReleasesEveryNode(t *testing.T) {
	cluster, ctx := open(t)
	// The label keeps the DaemonSet away from nodes without a kubelet.
	apply(ctx, t, cluster, `
apiVersion: v1
kind: Node
metadata: {name: glass-both, labels: {node-ready/verified: "true"}}
spec: {taints: [{key: example.com/first, effect: NoSchedule}, {key: node-ready/failed, value: dns, effect: NoSchedule},
  {key: node-ready/unverified, value: "true", effect: NoSchedule}, {key: node-ready/unverified, effect: NoExecute}]}
---
apiVersion: v1
kind: Node
metadata: {name: glass-failed, labels: {node-ready/verified: "true"}}
spec: {taints: [{key: node-ready/failed, effect: NoSchedule}]}
---
apiVersion: v1
kind: Node
metadata: {name: glass-foreign, labels: {node-ready/verified: "true"}}
spec: {taints: [{key: example.com/only, value: x, effect: NoExecute}]}
`)
	values := []string{stuck, "config.checkTimeout=1s", "config.maxRetries=0"} // a round fails within seconds
	require.NoError(t, cluster.Deploy(ctx, values...))
	require.NoError(t, cluster.Gate(ctx, node))
	agent := pod(ctx, t, cluster, harness.Ours())
	bindings := cluster.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	_, err := bindings.Get(ctx, harness.Name, metav1.GetOptions{})
	require.NoError(t, err)

	bash(t, cluster, readmeBlock(t, cluster, "break-glass"))

	_, err = bindings.Get(ctx, harness.Name, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the policy binding is still there: %v", err)
	nodes, err := cluster.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	foreign := map[string][]corev1.Taint{}
	for _, n := range nodes.Items {
		for _, taint := range n.Spec.Taints {
			require.NotContains(t, taint.Key, "node-ready/", "node %s", n.Name)
			if strings.HasPrefix(taint.Key, "example.com/") {
				foreign[n.Name] = append(foreign[n.Name], taint)
			}
		}
	}
	require.Equal(t, map[string][]corev1.Taint{
		"glass-both":    {{Key: "example.com/first", Effect: corev1.TaintEffectNoSchedule}},
		"glass-foreign": {{Key: "example.com/only", Value: "x", Effect: corev1.TaintEffectNoExecute}},
	}, foreign)

	// The agent goes on with its rounds, and the node stays released.
	before := failedRounds(t, cluster, agent)
	require.NoError(t, harness.Until(ctx, func() (bool, error) { return failedRounds(t, cluster, agent) > before, nil }))
	now, err := cluster.Node(ctx, node)
	require.NoError(t, err)
	require.False(t, harness.HasTaint(now, harness.Taint))

	require.NoError(t, cluster.Deploy(ctx, values...))
	_, err = bindings.Get(ctx, harness.Name, metav1.GetOptions{})
	require.NoError(t, err, "applying the chart again restores the binding")
	// A second run, with nothing left to remove, changes nothing.
	bash(t, cluster, readmeBlock(t, cluster, "break-glass"))
}

// The README's CoreDNS patch works with and without existing tolerations, and keeps those.
func TestCoreDNSPatchAddsTolerations(t *testing.T) {
	cluster, ctx := open(t)
	block := readmeBlock(t, cluster, "coredns-tolerations")
	require.Contains(t, block, "-n kube-system ")
	block = strings.ReplaceAll(block, "-n kube-system ", "-n default ")
	ours := []corev1.Toleration{{Key: "node-ready/unverified", Operator: corev1.TolerationOpExists}, {Key: "node-ready/failed", Operator: corev1.TolerationOpExists}}
	existing := corev1.Toleration{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists}
	for name, try := range map[string]struct {
		tolerations string
		wanted      []corev1.Toleration
	}{
		"none":     {"", ours},
		"empty":    {"tolerations: []", ours},
		"existing": {"tolerations: [{key: CriticalAddonsOnly, operator: Exists}]", append([]corev1.Toleration{existing}, ours...)},
	} {
		t.Run(name, func(t *testing.T) {
			apply(ctx, t, cluster, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: default}
spec:
  replicas: 0
  selector: {matchLabels: {app: e2e-coredns}}
  template:
    metadata: {labels: {app: e2e-coredns}}
    spec:
      containers: [{name: coredns, image: localhost/none}]
      `+try.tolerations)
			bash(t, cluster, block)
			patched, err := cluster.Kube.AppsV1().Deployments("default").Get(ctx, "coredns", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, try.wanted, patched.Spec.Template.Spec.Tolerations)
		})
	}
}

// readmeBlock returns the commands of README.md that follow the comment <!-- marker -->.
func readmeBlock(t *testing.T, cluster *harness.Cluster, marker string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root, "README.md"))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "<!-- "+marker+" -->\n")
	require.True(t, found, "README.md has no marker %q", marker)
	opening, rest, _ := strings.Cut(rest, "\n")
	require.Equal(t, "```sh", strings.TrimSpace(opening))
	block, _, found := strings.Cut(rest, "```")
	require.True(t, found, "the block after %q does not end", marker)
	return block
}

// bash runs commands as a script that stops at the first error.
func bash(t *testing.T, cluster *harness.Cluster, commands string) {
	t.Helper()
	path := filepath.Dir(cluster.Tool("kubectl")) + ":" + os.Getenv("PATH")
	out, err := cluster.Run(t.Context(), commands, "env", "PATH="+path, "bash", "-euo", "pipefail")
	require.NoError(t, err)
	t.Log(out)
}

// failedRounds counts the rounds that an agent has logged as failed.
func failedRounds(t *testing.T, cluster *harness.Cluster, agent corev1.Pod) (rounds int) {
	t.Helper()
	lines, err := cluster.Logs(t.Context(), agent)
	require.NoError(t, err)
	for _, line := range lines {
		if line.Msg == "node not verified" {
			rounds++
		}
	}
	return rounds
}
