package recheck

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// newNode joins in the test of the dashboard only.
const newNode = "node6"

// scrapeConfig is what the Prometheus operator makes of the chart's PodMonitors (charttest runs that), with a shorter interval. The pods
// that kwok plays have no address, and are no targets.
const scrapeConfig = `
global: {scrape_interval: 2s}
scrape_configs:
- job_name: pods
  honor_labels: true
  kubernetes_sd_configs: [{role: pod, kubeconfig_file: %q, namespaces: {names: [%s]}}]
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_instance, __meta_kubernetes_pod_container_port_name],
     regex: %s;metrics, action: keep}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
  - {source_labels: [__meta_kubernetes_pod_container_name], target_label: container}
`

// Every panel of the dashboard has data while one verified node is re-tainted and another node is not verified. All panels are there:
// with the controller, rechecks, peers and re-taint. None needs kube-state-metrics.
func TestDashboard(t *testing.T) {
	s := start(t)
	panels := s.dashboard()
	server := s.StartPrometheus(fmt.Appendf(nil, scrapeConfig, s.Cluster.Kubeconfig(), harness.Namespace, harness.Name))
	// What counts a change has no change to count without a sample from before.
	for _, series := range []string{"kube_node_ready_gate_seconds_bucket", "kube_node_ready_failed_taints_total"} {
		s.Until(func() (bool, error) {
			found, err := server.Query(s.Ctx, series)
			return len(found) > 0, err
		}, "no series %s", series)
	}

	s.Undo(func(ctx context.Context) error { return s.Cluster.DeleteNodes(ctx, newNode) })
	s.NoError(s.Cluster.AddNodes(s.Ctx, newNode))
	s.AwaitVerified(newNode)
	s.drop(nodes[2], dropDNS)
	s.awaitRetainted(nodes[2], dnsFailed)
	s.drop(newNode, dropDNS)
	s.Gate(newNode)

	var without []string
	err := harness.Until(s.Ctx, func() (bool, error) {
		without = nil
		for _, panel := range panels {
			for _, target := range panel.Targets {
				values, err := server.Query(s.Ctx, target.Instant())
				if err != nil {
					return false, err
				}
				if !hasData(values) {
					without = append(without, panel.Title+": "+target.Instant())
				}
			}
		}
		return len(without) == 0, nil
	})
	s.NoError(err, "panels without data:\n%s", strings.Join(without, "\n"))
	s.False(harness.Verified(s.Node(newNode)))
}

// hasData reports whether any of the values is a number: a quantile of nothing is none.
func hasData(values map[string]string) bool {
	for _, value := range values {
		if value != "NaN" {
			return true
		}
	}
	return false
}

// dashboard returns the panels of the dashboard as the release of these tests would install it.
func (s *suite) dashboard() []harness.Panel {
	s.T.Helper()
	manifests, err := s.Cluster.Render(s.Ctx, append(slices.Clone(values), "dashboard.enabled=true")...)
	s.NoError(err)
	for object := range strings.SplitSeq(manifests, "\n---\n") {
		var installed corev1.ConfigMap
		s.NoError(yaml.Unmarshal([]byte(object), &installed))
		if board := installed.Data["kube-node-ready.json"]; board != "" {
			return s.Panels(board)
		}
	}
	s.FailNow("the chart renders no dashboard")
	return nil
}
