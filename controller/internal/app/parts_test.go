package app

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/handover"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
	"github.com/imunhatep/kube-node-ready/controller/internal/metrics"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
)

// added is a manager that starts nothing.
type added struct {
	manager.Manager
	parts []manager.Runnable
}

func (a *added) Add(part manager.Runnable) error {
	a.parts = append(a.parts, part)
	return nil
}
func (a *added) GetAPIReader() client.Reader                      { return nil }
func (a *added) GetClient() client.Client                         { return nil }
func (a *added) GetScheme() *runtime.Scheme                       { return scheme.Scheme }
func (a *added) GetRESTMapper() meta.RESTMapper                   { return meta.NewDefaultRESTMapper(nil) }
func (a *added) GetEventRecorder(string) crrecorder.EventRecorder { return events.NewFakeRecorder(1) }

// Whatever is switched on, one part, and one alone, hands the Lease over from a node that fails.
func TestOnePartHandsTheLeaseOver(t *testing.T) {
	for name, edit := range map[string]func(*config.Controller){
		"nothing is switched on": func(*config.Controller) {},
		"re-taint":               func(c *config.Controller) { c.Retaint = true },
		"remediation":            func(c *config.Controller) { c.RemediationMode = config.RemediationDryRun },
		"both":                   func(c *config.Controller) { c.Retaint, c.RemediationMode = true, config.RemediationDryRun },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Controller{AgentName: "agent", RemediationMode: config.RemediationOff}
			cfg.NodeName, cfg.PodNamespace, cfg.CheckTimeout = "own", "system", time.Second
			edit(&cfg)
			started := new(added)
			l := &loop.Loop{Settings: fleet.Settings{}}
			e := kube.Environment{REST: &rest.Config{Host: "http://127.0.0.1:1"}}
			e.Client, e.Err = kube.NewClient(e.REST)
			require.NoError(t, e.Err)
			p := parts{manager: started, controller: Controller{Config: cfg, Environment: e, Log: slog.New(slog.DiscardHandler)},
				template: new(corev1.PodTemplateSpec), loop: l, metrics: metrics.New(l.Last, l.Errors, config.Program{}, nil)}
			_, leave := context.WithCancel(t.Context())
			defer leave()
			require.NoError(t, p.add(t.Context(), leave))
			count := 0
			for _, part := range started.parts {
				if part, is := part.(*handover.HandOver); is && part.NodeName == "own" {
					count++
				}
			}
			assert.Equal(t, 1, count)
		})
	}
}

func TestTemplate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.yaml")
	_, err := readTemplate(path)
	require.ErrorContains(t, err, "--agent-template")
	for text, message := range map[string]string{
		"spec: [":  "agent.yaml",
		"spec: {}": "no labels",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := readTemplate(path)
		require.ErrorContains(t, err, message)
	}
}

// The leader of daemonset mode finds the workers of its own release, and not its agents.
func TestSelectors(t *testing.T) {
	template := &corev1.PodTemplateSpec{}
	template.Labels = map[string]string{"app.kubernetes.io/name": "n", "app.kubernetes.io/instance": "i", "app.kubernetes.io/component": "agent", "team": "a"}
	assert.Equal(t, "app.kubernetes.io/component=agent,app.kubernetes.io/instance=i,app.kubernetes.io/name=n", selector(template).String())
	assert.Equal(t, "app.kubernetes.io/component=worker,app.kubernetes.io/instance=i,app.kubernetes.io/name=n", componentLabels(template, "worker").String())
}
