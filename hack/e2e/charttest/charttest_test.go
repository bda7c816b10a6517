// Package charttest tests what the chart installs around the agent on a real API server: the
// policy, the monitoring, and the life of a release. `make e2e` runs it.
package charttest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const node = harness.RealNode

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(ctx context.Context, cluster *harness.Cluster) (func(context.Context) error, error) {
		remove, err := installCRDs(ctx, cluster)
		return func(ctx context.Context) error { return errors.Join(clean(ctx, cluster), remove(ctx)) }, err
	}))
}

// installCRDs applies the Prometheus operator's custom resource definitions, as they lie in its module, for
// the time of the tests.
func installCRDs(ctx context.Context, cluster *harness.Cluster) (remove func(context.Context) error, err error) {
	dir, err := cluster.Module(ctx, "operator", "github.com/prometheus-operator/prometheus-operator")
	if err != nil {
		return nil, err
	}
	var files []string
	for _, kind := range []string{"podmonitors", "servicemonitors", "probes", "prometheusrules", "prometheuses", "scrapeconfigs"} {
		files = append(files, "-f", filepath.Join(dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_"+kind+".yaml"))
	}
	if _, err := cluster.Kubectl(ctx, "", append([]string{"apply", "--server-side"}, files...)...); err != nil {
		return nil, err
	}
	_, err = cluster.Kubectl(ctx, "", append([]string{"wait", "--for=condition=Established", harness.Wait}, files...)...)
	return func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "", append([]string{"delete", "--ignore-not-found", "--wait=false"}, files...)...)
		return err
	}, err
}

// suite is one test's access to the cluster.
type suite struct{ *harness.Suite }

// start makes the cluster as every test wants it: the node verified, and nothing of ours installed.
func start(t *testing.T) *suite {
	t.Helper()
	s := &suite{harness.Start(t)}
	s.NoError(clean(s.Ctx, s.Cluster))
	return s
}

// clean uninstalls what a test may have left.
func clean(ctx context.Context, cluster *harness.Cluster) error {
	all, err := everything(cluster)
	if err != nil {
		return err
	}
	if err := cluster.Undeploy(ctx, all...); err != nil {
		return err
	}
	return cluster.Reset(ctx, node)
}

// addsStartupTaint reports whether the API server serves the policy of startupTaint.add.
func (s *suite) addsStartupTaint() bool {
	s.T.Helper()
	served, err := s.Cluster.AddsStartupTaint()
	s.NoError(err)
	return served
}

// everything asks for all that is optional and that this Kubernetes serves, with the values as they are shipped.
func everything(cluster *harness.Cluster) ([]string, error) {
	all := []string{"podMonitor.enabled=true", "serviceMonitor.enabled=true", "prometheusRule.enabled=true", "dashboard.enabled=true",
		"networkPolicy.enabled=true"}
	served, err := cluster.AddsStartupTaint()
	if served {
		all = append(all, "startupTaint.add=true")
	}
	return all, err
}

func (s *suite) everything() []string {
	s.T.Helper()
	all, err := everything(s.Cluster)
	s.NoError(err)
	return all
}

// part is for a part of the test.
func (s *suite) part(t *testing.T) *suite { return &suite{s.Part(t)} }

// apply creates objects, however large, and deletes them at the end of the test.
func (s *suite) apply(manifests string) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, manifests, "delete", "--ignore-not-found", "-f", "-")
		return err
	})
	s.Kubectl(manifests, "apply", "--server-side", "-f", "-")
}

// pod waits for the running pod of a release on the node.
func (s *suite) pod(release harness.Release) (found corev1.Pod) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		pods, err := s.Cluster.Kube.CoreV1().Pods(release.Namespace).List(s.Ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/instance=" + release.Name, FieldSelector: "spec.nodeName=" + node + ",status.phase=Running"})
		if err == nil && len(pods.Items) == 1 {
			found = pods.Items[0]
		}
		return found.Name != "", err
	}, "no pod of %v", release)
	return found
}

// awaitTypeChecked waits until the API server has checked the expressions of a policy, and asserts that it warns about none.
func (s *suite) awaitTypeChecked(policy string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		now, err := s.Cluster.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(s.Ctx, policy, metav1.GetOptions{})
		if err != nil || now.Status.TypeChecking == nil {
			return false, err
		}
		s.Empty(now.Status.TypeChecking.ExpressionWarnings)
		return true, nil
	})
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
