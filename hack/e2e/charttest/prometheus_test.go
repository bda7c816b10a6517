package charttest

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"

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

// configure lets the real operator write the configuration that follows from what is installed, and
// returns it as it would be in the pod, where the config reloader fills in two variables, but for
// the access to the API from outside.
func (s *suite) configure(complete func(config string) bool) []byte {
	s.T.Helper()
	s.Background("operator", s.Cluster.Tool("operator"), "--web.listen-address=127.0.0.1:0", "--log-level=warn")
	s.apply(instance)
	var config string
	s.Until(func() (bool, error) {
		secret, err := s.Cluster.Kube.CoreV1().Secrets("default").Get(s.Ctx, "prometheus-e2e", metav1.GetOptions{})
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
			discovery.(map[string]any)["kubeconfig_file"] = s.Cluster.Kubeconfig()
		}
	}
	out, err := yaml.Marshal(parsed)
	s.NoError(err)
	return out
}

// promtool runs unit tests on rules.
func promtool(s *harness.Suite, rules, tests []byte) (string, error) {
	s.T.Helper()
	dir := s.T.TempDir()
	s.NoError(os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o600))
	s.NoError(os.WriteFile(filepath.Join(dir, "tests.yaml"), tests, 0o600))
	out, err := s.Cluster.Run(s.Ctx, "", s.Cluster.Tool("promtool"), "check", "rules", "--lint-fatal", filepath.Join(dir, "rules.yaml"))
	if err != nil {
		return out, err
	}
	return s.Cluster.Run(s.Ctx, "", s.Cluster.Tool("promtool"), "test", "rules", filepath.Join(dir, "tests.yaml"))
}
