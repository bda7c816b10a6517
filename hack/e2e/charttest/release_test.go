package charttest

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// firstRelease is the chart as it was packaged first: before the policy, the monitoring and the test hook.
const firstRelease = "testdata/kube-node-ready-0.1.0.tgz"

// A release is installed as it was first, upgraded with other values and everything optional,
// tried, rolled back and uninstalled. Each step is Helm's own, and nothing is left at the end.
func TestLifeOfARelease(t *testing.T) {
	cluster, ctx := open(t)
	before := inventory(ctx, t, cluster)
	helm := func(args ...string) string {
		t.Helper()
		out, err := cluster.Run(ctx, "", cluster.Tool("helm"), append(args, "--namespace", harness.Namespace)...)
		require.NoError(t, err)
		return out
	}
	t.Cleanup(func() {
		_, _ = cluster.Run(context.Background(), "", cluster.Tool("helm"), "uninstall", harness.Name, "--namespace", harness.Namespace, "--ignore-not-found")
	})

	old, err := filepath.Abs(firstRelease)
	require.NoError(t, err)
	helm(append([]string{"install", harness.Name, old, "--wait", "--timeout=2m"}, harness.Set()...)...)
	verifies(ctx, t, cluster)
	first := inventory(ctx, t, cluster)

	helm(append([]string{"upgrade", harness.Name, "chart", "--wait", "--timeout=2m"},
		harness.Set(append(everything, "config.logLevel=debug", "config.maxRetries=2", "config.metricsLinger=1s")...)...)...)
	second := inventory(ctx, t, cluster)
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PodMonitor", "ServiceMonitor", "PrometheusRule", "NetworkPolicy", "Service"} {
		require.True(t, slices.ContainsFunc(second, func(object string) bool { return strings.HasPrefix(object, kind+" ") }), "no %s among %v", kind, second)
	}
	verifies(ctx, t, cluster)

	// The recipe of the notes.
	_, columns, _ := strings.Cut(helm("get", "notes", harness.Name), "custom-columns='")
	columns, _, _ = strings.Cut(columns, "'")
	table, err := cluster.Kubectl(ctx, "", "get", "nodes", "-o", "custom-columns="+columns)
	require.NoError(t, err)
	require.Regexp(t, `node1 +true +{"time":".*"attempts":{"api":1,`, table)

	out := helm("test", harness.Name, "--timeout=1m")
	require.Contains(t, out, "Phase:          Succeeded")

	helm("rollback", harness.Name, "1", "--wait", "--timeout=2m")
	require.Equal(t, first, inventory(ctx, t, cluster))
	verifies(ctx, t, cluster)

	helm("uninstall", harness.Name, "--wait", "--timeout=2m")
	require.NoError(t, cluster.NoAgents(ctx))
	require.Equal(t, before, inventory(ctx, t, cluster))
}

// verifies gates the node and waits until the agent has opened it.
func verifies(ctx context.Context, t *testing.T, cluster *harness.Cluster) {
	t.Helper()
	require.NoError(t, cluster.Gate(ctx, node))
	_, _, err := cluster.AwaitNode(ctx, node, harness.Verified)
	require.NoError(t, err)
	require.NoError(t, cluster.NoAgents(ctx))
}

// inventory lists every object in the cluster of the kinds that a release could leave behind, but
// for Helm's own records and what changes by itself.
func inventory(ctx context.Context, t *testing.T, cluster *harness.Cluster) []string {
	t.Helper()
	names, err := cluster.Kubectl(ctx, "", "api-resources", "--verbs=list", "-o", "name")
	require.NoError(t, err)
	var kinds []string
	for _, name := range strings.Fields(names) {
		if !slices.Contains([]string{"events", "events.events.k8s.io", "leases.coordination.k8s.io", "controllerrevisions.apps"}, name) {
			kinds = append(kinds, name)
		}
	}
	out, err := cluster.Kubectl(ctx, "", "get", strings.Join(kinds, ","), "-A", "--ignore-not-found",
		"-o", `go-template={{range .items}}{{.kind}} {{.metadata.namespace}}/{{.metadata.name}}{{"\n"}}{{end}}`)
	require.NoError(t, err)
	var objects []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if !strings.Contains(line, "sh.helm.release") && !strings.HasPrefix(line, "Pod ") && !strings.HasPrefix(line, "PodMetrics ") {
			objects = append(objects, line)
		}
	}
	slices.Sort(objects)
	return objects
}
