package charttest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// agents is how many one-shot agents are scraped. Each is the chart's DaemonSet with a taint and a
// label of its own, so that one node has all of them verify it, and the DaemonSet controller take
// each of them away, at about the same time.
const agents = 20

func TestFinalValuesAreScraped(t *testing.T) {
	s := start(t)
	// The policy would refuse the other taints and labels.
	manifests, err := s.Cluster.Render(s.Ctx, append(s.everything(), "nodeAuthorization.enabled=false")...)
	s.NoError(err)
	daemonSet := only(manifests, "DaemonSet")
	s.apply(strings.Replace(manifests, daemonSet, "", 1))
	config := s.configure(func(config string) bool {
		return strings.Contains(config, "podMonitor/kube-system/kube-node-ready") && strings.Contains(config, "serviceMonitor/kube-system/kube-node-ready")
	})
	server := s.StartPrometheus(config)
	s.oneShots(daemonSet)

	for source, which := range map[string]string{"PodMonitor": `service=""`, "ServiceMonitor": `service="kube-node-ready"`} {
		for _, expr := range []string{
			"last_over_time(node_check_status{%s}[10m]) == 1",
			"last_over_time(node_check_completion_timestamp{%s}[10m]) > 0",
			"last_over_time(node_check_verification_duration_seconds{%s}[10m]) > 0",
			`last_over_time(node_check_attempts_total{check="service",%s}[10m]) >= 1`,
		} {
			expr = fmt.Sprintf(expr, which)
			found, err := server.Query(s.Ctx, expr)
			s.NoError(err)
			t.Logf("%s: %d of %d: %s", source, len(found), agents, expr)
			s.Len(found, agents)
		}
	}
	t.Run("dashboard", func(t *testing.T) { s.part(t).dashboard(server) })
	t.Run("rules", func(t *testing.T) {
		// The operator has taken them.
		s.part(t).Until(func() (bool, error) {
			files, err := s.Cluster.Kube.CoreV1().ConfigMaps("default").Get(s.Ctx, "prometheus-e2e-rulefiles-0", metav1.GetOptions{})
			return err == nil && strings.Contains(fmt.Sprint(files.Data), "NodeChecksFailing"), nil
		})
	})
}

// oneShots runs the agents, and returns when the DaemonSet controller has taken the last away.
func (s *suite) oneShots(manifest string) {
	s.T.Helper()
	var template appsv1.DaemonSet
	s.NoError(yaml.Unmarshal([]byte(manifest), &template))
	taints, labels := make([]corev1.Taint, agents), make(map[string]any)
	name := func(kind string, i int) string { return fmt.Sprintf("one-shot.example.com/%s-%d", kind, i) }
	for i := range agents {
		taints[i] = corev1.Taint{Key: name("new", i), Effect: corev1.TaintEffectPreferNoSchedule}
		labels[name("good", i)] = nil
	}
	patch := func(ctx context.Context, taints []corev1.Taint) error {
		text, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}, "spec": map[string]any{"taints": taints}})
		if err != nil {
			return err
		}
		return s.Cluster.Patch(ctx, node, string(text))
	}
	s.NoError(patch(s.Ctx, taints))
	s.Undo(func(ctx context.Context) error { return patch(ctx, nil) })

	sets := s.Cluster.Kube.AppsV1().DaemonSets(harness.Namespace)
	seen := make(map[string]bool)
	for i := range agents {
		set := template.DeepCopy()
		set.Name = fmt.Sprintf("one-shot-%d", i)
		set.Spec.Selector.MatchLabels["one-shot"], set.Spec.Template.Labels["one-shot"] = set.Name, set.Name
		pod := &set.Spec.Template.Spec
		pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Key = name("good", i)
		pod.Containers[0].Env = append(pod.Containers[0].Env,
			corev1.EnvVar{Name: "TAINT_KEY", Value: name("new", i)}, corev1.EnvVar{Name: "VERIFIED_LABEL", Value: name("good", i)})
		_, err := sets.Create(s.Ctx, set, metav1.CreateOptions{})
		s.NoError(err)
		s.Undo(func(ctx context.Context) error { return sets.Delete(ctx, set.Name, metav1.DeleteOptions{}) })
	}
	s.Until(func() (bool, error) {
		pods, err := s.Cluster.AgentPods(s.Ctx)
		for _, pod := range pods {
			seen[pod.Name] = true
		}
		return len(seen) == agents && len(pods) == 0, err
	}, "%d agents were seen", len(seen))
	s.Empty(s.Node(node).Spec.Taints)
}

// dashboard runs every query of the dashboard, as it is installed.
func (s *suite) dashboard(server harness.Prometheus) {
	s.T.Helper()
	installed, err := s.Cluster.Kube.CoreV1().ConfigMaps(harness.Namespace).Get(s.Ctx, harness.Name+"-dashboard", metav1.GetOptions{})
	s.NoError(err)
	for _, panel := range s.Panels(installed.Data["kube-node-ready.json"]) {
		for _, target := range panel.Targets {
			expr := target.Instant()
			if target.Range { // a line over time: of the agents, which are gone now
				expr = "max_over_time((" + expr + ")[10m:15s])"
			}
			found, err := server.Query(s.Ctx, expr)
			s.NoError(err)
			s.T.Log(panel.Title, found)
			s.NotEmpty(found, "panel %s: %s", panel.Title, expr)
		}
	}
}

// Labels and annotations that the user and the chart both have are there once: kustomize reads no other YAML.
func TestNoKeyTwice(t *testing.T) {
	s := &suite{harness.Start(t)}
	overriding := append(s.everything(), "scrapeAnnotations.enabled=true", `podAnnotations.prometheus\.io/path=/other`, "prometheusRule.alertLabels.severity=page")
	for _, labels := range []string{"podMonitor.additionalLabels", "serviceMonitor.additionalLabels", "prometheusRule.additionalLabels", "dashboard.labels"} {
		overriding = append(overriding, labels+`.app\.kubernetes\.io/part-of=mine`)
	}
	manifests, err := s.Cluster.Render(s.Ctx, overriding...)
	s.NoError(err)
	for object := range strings.SplitSeq(manifests, "\n---\n") {
		var parsed map[string]any
		s.NoError(yaml.UnmarshalStrict([]byte(object), &parsed), object)
	}
	s.Contains(only(manifests, "DaemonSet"), "prometheus.io/path: /other")
	s.Contains(only(manifests, "PodMonitor"), "app.kubernetes.io/part-of: mine")
}

// The alerts are tested by Prometheus's own tool, on the rules as the chart renders them. The runbook of each is its own section.
func TestAlerts(t *testing.T) {
	s := &suite{harness.Start(t)}
	text, err := os.ReadFile(filepath.Join(s.Cluster.Root, "docs", "operations.md"))
	s.NoError(err)
	operations := string(text)
	for file, values := range map[string][]string{
		"alerts.yaml":         {"controller.enabled=true", "config.onTimeout=open"},
		"alerts-open.yaml":    {"config.onTimeout=open"},
		"alerts-recheck.yaml": {"config.recheckInterval=60s", "config.onTimeout=open"},
		"alerts-workers.yaml": {"controller.enabled=true", "deploymentMode=controller"},
		"alerts-retaint.yaml": {"config.recheckInterval=60s", "controller.enabled=true", "controller.retaint.enabled=true"},
	} {
		manifests, err := s.Cluster.Render(s.Ctx, append(s.everything(), values...)...)
		s.NoError(err)
		rule := only(manifests, "PrometheusRule")
		for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rule, -1) {
			s.Contains(operations, "\n### "+alert[1]+"\n")
			runbook := regexp.MustCompile(`\n +runbook_url: https://\S+/docs/operations\.md#` + strings.ToLower(alert[1]) + `\n`)
			s.Regexp(runbook, rule)
			rule = runbook.ReplaceAllString(rule, "\n")
		}
		var parsed struct{ Spec any }
		s.NoError(yaml.Unmarshal([]byte(rule), &parsed))
		rules, err := yaml.Marshal(parsed.Spec)
		s.NoError(err)
		tests, err := os.ReadFile(filepath.Join("testdata", file))
		s.NoError(err)
		out, err := promtool(s.Suite, rules, tests)
		s.NoError(err, out)
		t.Log(out)
	}
}

// The queries of docs/operations.md and of the dashboard are tested likewise. testdata/queries.yaml has their names.
func TestQueries(t *testing.T) {
	s := &suite{harness.Start(t)}
	queries := make(map[string]string)
	name := ""
	for line := range strings.Lines(s.Block("docs/operations.md", "queries", "promql")) {
		if title, found := strings.CutPrefix(line, "# "); found {
			name = "docs: " + strings.TrimSpace(title)
		} else {
			queries[name] += line
		}
	}
	text, err := os.ReadFile(filepath.Join(s.Cluster.Root, "chart/dashboards/kube-node-ready.json"))
	s.NoError(err)
	for _, panel := range s.Panels(string(text)) {
		for _, target := range panel.Targets {
			queries[strings.TrimSuffix("dashboard: "+panel.Title+" "+target.LegendFormat, " ")] = target.Instant()
		}
	}

	tests, err := os.ReadFile("testdata/queries.yaml")
	s.NoError(err)
	var document map[string]any
	s.NoError(yaml.Unmarshal(tests, &document))
	for _, test := range document["tests"].([]any) {
		for _, query := range test.(map[string]any)["promql_expr_test"].([]any) {
			query := query.(map[string]any)
			s.Contains(queries, query["expr"])
			query["expr"] = queries[query["expr"].(string)]
		}
	}
	tests, err = yaml.Marshal(document)
	s.NoError(err)
	out, err := promtool(s.Suite, []byte("groups: []"), tests)
	s.NoError(err, out)
	t.Log(out)
}
