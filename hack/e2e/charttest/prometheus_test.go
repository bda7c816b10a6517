package charttest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// instance is a Prometheus for the operator to configure. It has no pods: the configuration is what is wanted.
const instance = `
apiVersion: monitoring.coreos.com/v1
kind: Prometheus
metadata: {name: e2e, namespace: default}
spec:
  version: v3.5.0
  replicas: 0
  scrapeInterval: 30s
  podMonitorSelector: {}
  podMonitorNamespaceSelector: {}
  serviceMonitorSelector: {}
  serviceMonitorNamespaceSelector: {}
  ruleSelector: {}
  ruleNamespaceSelector: {}
`

// background runs a program until the test ends, and prints the end of its log if the test failed.
func (s *suite) background(name, command string, args ...string) {
	s.Helper()
	program, err := s.StartProgram(name, nil, command, args...)
	s.NoError(err)
	s.Undo(func(context.Context) error {
		program.Stop()
		text, err := os.ReadFile(program.Log)
		if s.Failed() {
			s.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
		}
		return err
	})
}

// configure lets the real operator write the configuration that follows from what is installed, and
// returns it as it would be in the pod, where the config reloader fills in two variables, but for
// the access to the API from outside.
func (s *suite) configure(complete func(config string) bool) []byte {
	s.Helper()
	s.background("operator", s.Tool("operator"), "--web.listen-address=127.0.0.1:0", "--log-level=warn")
	s.apply(instance)
	var config string
	s.Until(func() (bool, error) {
		secret, err := s.Kube.CoreV1().Secrets("default").Get(s.Ctx, "prometheus-e2e", metav1.GetOptions{})
		if err != nil {
			return false, nil
		}
		unzip, err := gzip.NewReader(bytes.NewReader(secret.Data["prometheus.yaml.gz"]))
		if err != nil {
			return false, nil
		}
		text, err := io.ReadAll(unzip)
		config = string(text)
		return complete(config), err
	}, "the operator made no configuration of it:\n%s", config)

	config = strings.NewReplacer("$(SHARD)", "0", "$(POD_NAME)", "prometheus-e2e-0").Replace(config)
	var parsed map[string]any
	s.NoError(yaml.Unmarshal([]byte(config), &parsed))
	delete(parsed, "rule_files") // they lie in a pod that is not there
	for _, job := range parsed["scrape_configs"].([]any) {
		for _, discovery := range job.(map[string]any)["kubernetes_sd_configs"].([]any) {
			discovery.(map[string]any)["kubeconfig_file"] = s.Kubeconfig()
		}
	}
	out, err := yaml.Marshal(parsed)
	s.NoError(err)
	return out
}

// prometheus is a Prometheus that runs on the node, where it reaches pods.
type prometheus struct{ address string }

func (s *suite) startPrometheus(config []byte) prometheus {
	s.Helper()
	dir := s.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	s.NoError(os.WriteFile(file, config, 0o600))
	s.background("prometheus", "nsenter", "--net=/proc/"+strings.TrimSpace(s.Script("pid", "kubelet", node))+"/ns/net",
		s.Tool("prometheus"), "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=:9090", "--log.level=warn")
	var p prometheus
	for _, address := range s.Node(node).Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			p.address = address.Address + ":9090"
		}
	}
	s.Until(func() (bool, error) {
		response, err := http.Get("http://" + p.address + "/-/ready")
		if err != nil {
			return false, nil
		}
		return response.StatusCode == http.StatusOK, response.Body.Close()
	}, "Prometheus does not get ready")
	return p
}

// query returns the values of an instant query, each by its labels.
func (p prometheus) query(ctx context.Context, expr string) (map[string]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	values := make(map[string]string)
	for _, sample := range answer.Data.Result {
		values[fmt.Sprint(sample.Metric)] = fmt.Sprint(sample.Value[1])
	}
	return values, nil
}

// promtool runs unit tests on rules.
func promtool(s *harness.Suite, rules, tests []byte) (string, error) {
	s.Helper()
	dir := s.TempDir()
	s.NoError(os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o600))
	s.NoError(os.WriteFile(filepath.Join(dir, "tests.yaml"), tests, 0o600))
	out, err := s.Cluster.Run(s.Ctx, "", s.Tool("promtool"), "check", "rules", "--lint-fatal", filepath.Join(dir, "rules.yaml"))
	if err != nil {
		return out, err
	}
	return s.Cluster.Run(s.Ctx, "", s.Tool("promtool"), "test", "rules", filepath.Join(dir, "tests.yaml"))
}
