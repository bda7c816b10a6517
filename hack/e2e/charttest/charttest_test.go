// Package charttest tests what the chart installs around the agent on a real API server: the
// policy, the monitoring, and the life of a release. `make e2e` runs it.
package charttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const node = "node1"

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// run applies the Prometheus operator's custom resource definitions, as they lie in its module, for
// the time of the tests.
func run(m *testing.M) (code int, err error) {
	cluster, err := harness.Open()
	if err != nil {
		return 1, err
	}
	ctx := context.Background()
	dir, err := cluster.Run(ctx, "", "go", "list", "-C", "hack/tools/operator", "-m", "-f", "{{.Dir}}", operatorModule)
	if err != nil {
		return 1, err
	}
	var files []string
	for _, kind := range []string{"podmonitors", "servicemonitors", "probes", "prometheusrules", "prometheuses", "scrapeconfigs"} {
		files = append(files, "-f", filepath.Join(strings.TrimSpace(dir), "example", "prometheus-operator-crd", "monitoring.coreos.com_"+kind+".yaml"))
	}
	if _, err := cluster.Kubectl(ctx, "", append([]string{"apply", "--server-side"}, files...)...); err != nil {
		return 1, err
	}
	if _, err := cluster.Kubectl(ctx, "", append([]string{"wait", "--for=condition=Established", "--timeout=60s"}, files...)...); err != nil {
		return 1, err
	}
	defer func() {
		_, gone := cluster.Kubectl(ctx, "", append([]string{"delete", "--ignore-not-found", "--wait=false"}, files...)...)
		err = errors.Join(err, gone)
	}()
	return m.Run(), nil
}

// open connects to the cluster and makes it as every test wants it: the node verified, and
// nothing of ours installed, before and after.
func open(t *testing.T) (*harness.Cluster, context.Context) {
	t.Helper()
	cluster, err := harness.Open()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	clean := func(ctx context.Context) {
		require.NoError(t, cluster.Undeploy(ctx, everything...))
		require.NoError(t, cluster.Reset(ctx, node))
	}
	clean(ctx)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		clean(ctx)
	})
	return cluster, ctx
}

// apply creates objects and deletes them at the end of the test.
func apply(ctx context.Context, t *testing.T, cluster *harness.Cluster, manifests string) {
	t.Helper()
	_, err := cluster.Kubectl(ctx, manifests, "apply", "--server-side", "-f", "-")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := cluster.Kubectl(context.Background(), manifests, "delete", "--ignore-not-found", "-f", "-")
		require.NoError(t, err)
	})
}

// pod waits for the running pod of a release on the node.
func pod(ctx context.Context, t *testing.T, cluster *harness.Cluster, release harness.Release) corev1.Pod {
	t.Helper()
	var found corev1.Pod
	require.NoError(t, harness.Until(ctx, func() (bool, error) {
		pods, err := cluster.Kube.CoreV1().Pods(release.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/instance=" + release.Name, FieldSelector: "spec.nodeName=" + node + ",status.phase=Running"})
		if err == nil && len(pods.Items) == 1 {
			found = pods.Items[0]
		}
		return found.Name != "", err
	}), "no pod of %v", release)
	return found
}

// only returns those of the rendered objects that are of a kind.
func only(manifests, kind string) string {
	var found []string
	for object := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains("\n"+object+"\n", "\nkind: "+kind+"\n") {
			found = append(found, object)
		}
	}
	return strings.Join(found, "\n---\n")
}
