package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Background runs a program until the test ends, and prints the end of its log if the test failed.
func (s *Suite) Background(name, command string, args ...string) {
	s.T.Helper()
	program, err := s.Cluster.StartProgram(name, nil, command, args...)
	s.NoError(err)
	s.Undo(func(context.Context) error {
		program.Stop()
		text, err := os.ReadFile(program.Log)
		if s.T.Failed() {
			s.T.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
		}
		return err
	})
}

// Prometheus is a Prometheus that runs on RealNode, where it reaches pods.
type Prometheus struct{ address string }

// StartPrometheus runs a Prometheus until the test ends.
func (s *Suite) StartPrometheus(config []byte) Prometheus {
	s.T.Helper()
	dir := s.T.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	s.NoError(os.WriteFile(file, config, 0o600))
	s.Background("prometheus", "nsenter", "--net=/proc/"+strings.TrimSpace(s.Script("pid", "kubelet", RealNode))+"/ns/net",
		s.Cluster.Tool("prometheus"), "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=:9090", "--log.level=warn")
	var p Prometheus
	for _, address := range s.Node(RealNode).Status.Addresses {
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

// Query returns the values of an instant query, each by its labels.
func (p Prometheus) Query(ctx context.Context, expr string) (map[string]string, error) {
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

// Panel is a part of the dashboard.
type Panel struct {
	Title, Type string
	Targets     []PanelTarget
}

// PanelTarget is a query of a panel.
type PanelTarget struct {
	Expr         string
	LegendFormat string
	Range        bool
}

// Instant returns the query for all nodes and the last 30 minutes.
func (t PanelTarget) Instant() string {
	return strings.NewReplacer("$__range", "30m", "$node", ".*").Replace(t.Expr)
}

// Panels parses a dashboard. Rows, which have no query, are left out.
func (s *Suite) Panels(dashboard string) (panels []Panel) {
	s.T.Helper()
	var board struct{ Panels []Panel }
	s.NoError(json.Unmarshal([]byte(dashboard), &board))
	for _, panel := range board.Panels {
		if panel.Type != "row" {
			s.NotEmpty(panel.Targets, panel.Title)
			panels = append(panels, panel)
		}
	}
	s.NotEmpty(panels)
	return panels
}
