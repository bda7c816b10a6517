// Package app is the controller as a whole: the manager with its caches and its election, the loop, and the parts that act.
//
// # What runs
//
// The manager starts all of it. Each replica fills the caches (Nodes, and the pods of agents or workers) and serves /metrics and
// the probes. The rest runs only on the leader:
//
//   - The loop, one goroutine: shortly after a change, and every 10 s while time matters, it decides about all nodes. Then its
//     steps run in turn: Events are read, metrics counts, report writes conditions and Events, reboot removes labels.
//   - In controller mode 50 goroutines, each for one node at a time: worker creates and deletes workers, and releases nodes.
//   - One goroutine each, every 10 s, reads the loop's last plan: retaint writes failed taints, renewal deletes agents' pods,
//     remediation deletes NodeClaims or Nodes and writes the ledger, handover ends the process so that another replica leads.
//   - baseline runs the checks every 30 s and writes nothing.
//   - In daemonset mode, leftover workers are deleted every 10 minutes.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
	"github.com/imunhatep/kube-node-ready/controller/internal/metrics"
	"github.com/imunhatep/kube-node-ready/controller/internal/remediation"
	"github.com/imunhatep/kube-node-ready/controller/internal/report"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// recorder is the name that Events are reported by.
const recorder = "kube-node-ready-controller"

// Controller is one process of the controller.
type Controller struct {
	Config      config.Controller
	Environment kube.Environment
	Program     config.Program
	Log         *slog.Logger

	// The zero values of these fields are right for a pod. The simulation has no sockets, and several controllers in one process.
	Options      func(*ctrl.Options)
	Registry     prometheus.Registerer
	ControlGroup []checks.Check
	// WorkerTransport sends requests to the workers' ports.
	WorkerTransport http.RoundTripper
}

// Run runs the manager until ctx ends or something fatal happens.
func (c Controller) Run(ctx context.Context) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	cfg, environment, log := c.Config, c.Environment, c.Log
	template, err := readTemplate(cfg.AgentTemplate)
	if err != nil {
		return err
	}
	manager, err := c.newManager(template)
	if err != nil {
		return err
	}
	now := (&clock.Clock{Server: environment.Client.ServerTime, Steady: cfg.ControlGroupFor}).Now
	fleetLoop := &loop.Loop{Settings: fleet.NewSettings(cfg, template), Cache: manager.GetCache(), Live: manager.GetAPIReader(),
		Now: now, Log: log}
	collector := metrics.New(fleetLoop.Last, fleetLoop.Errors, c.Program, now)
	registry := cmp.Or[prometheus.Registerer](c.Registry, ctrlmetrics.Registry)
	if err := registry.Register(collector); err != nil {
		return err
	}
	defer registry.Unregister(collector)
	fleetLoop.Steps = []loop.Step{collector, &report.Reporter{
		REST: environment.Client.Core, ConditionType: cfg.ConditionType, Events: manager.GetEventRecorder(recorder),
		ServerTime: environment.Client.ServerTime, Timeout: cfg.CheckTimeout, Limit: report.NewLimit(), Log: log,
	}}
	if err := fleetLoop.SetupWithManager(manager); err != nil {
		return err
	}
	p := parts{controller: c, manager: manager, template: template, loop: fleetLoop, metrics: collector}
	if err := p.add(ctx, leave); err != nil {
		return err
	}
	// The API server's clock is known from its first answer on: conditions have its time, not this node's.
	if err := environment.Client.Versions(ctx); err != nil {
		log.Warn("no answer from the API server yet", "error", err)
	}
	log.Info("starting", "version", c.Program.Version, "mode", cfg.DeploymentMode, "remediation", cfg.RemediationMode)
	return startManager(ctx, manager)
}

// startManager runs the manager until ctx ends. It stops the manager only once the caches are filled: before that, a manager that
// is stopped does not return, and keeps one core busy (controller-runtime 0.25, runnable_group.go).
func startManager(ctx context.Context, m manager.Manager) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	filled := make(chan struct{})
	isFilled := onceFilled(func() {
		close(filled)
		context.AfterFunc(ctx, stop)
	})
	if err := m.Add(isFilled); err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- m.Start(running) }()
	context.AfterFunc(ctx, func() {
		select {
		case <-filled: // the manager ends what is under way, and releases its Lease
		case <-time.After(time.Second):
			ended <- nil // the API server does not answer: the end of the process ends the manager
		}
	})
	return <-ended
}

// onceFilled is called when the manager has filled its caches, whether this process is the leader or not.
type onceFilled func()

// Start implements manager.Runnable.
func (f onceFilled) Start(context.Context) error {
	f()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (onceFilled) NeedLeaderElection() bool { return false }

func (c Controller) newManager(template *corev1.PodTemplateSpec) (manager.Manager, error) {
	cfg := c.Config
	noCopies := true                                                                  // nobody writes to what a list returns
	isRequired := len(cfg.Require) > 0 && cfg.DeploymentMode == config.ModeController // else the agents judge it
	options := ctrl.Options{
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}: {UnsafeDisableDeepCopy: &noCopies, Transform: fleet.SlimNode(cfg.ConditionType, isRequired,
				nodepatch.Annotation, remediation.DoNotDisrupt, remediation.DoNotDelete)},
			&corev1.Pod{}: {UnsafeDisableDeepCopy: &noCopies, Transform: fleet.SlimPod,
				Namespaces: map[string]cache.Config{cfg.PodNamespace: {LabelSelector: selector(template)}}},
		}},
		LeaderElection: true, LeaderElectionID: cfg.AgentName + "-controller", LeaderElectionNamespace: cfg.PodNamespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       metricsserver.Options{BindAddress: ":" + strconv.Itoa(cfg.MetricsPort)},
		HealthProbeBindAddress:        ":" + strconv.Itoa(cfg.HealthPort),
	}
	if c.Options != nil {
		c.Options(&options)
	}
	m, err := ctrl.NewManager(c.Environment.REST, options)
	if err != nil {
		return nil, err
	}
	synced := func(r *http.Request) error {
		if !m.GetCache().WaitForCacheSync(r.Context()) {
			return errors.New("the caches are not filled yet")
		}
		return nil
	}
	return m, errors.Join(m.AddHealthzCheck("ping", healthz.Ping), m.AddReadyzCheck("caches", synced))
}

// selector selects the pods of a template, also those that run under earlier labels of the user.
func selector(template *corev1.PodTemplateSpec) labels.Selector {
	return fleet.OwnLabels(template.Labels).AsSelector()
}

// readTemplate reads the pod template that the chart has rendered.
func readTemplate(path string) (*corev1.PodTemplateSpec, error) {
	const remedy = "--agent-template must name a file with a PodTemplateSpec, as the chart renders it"
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, remedy)
	}
	template := new(corev1.PodTemplateSpec)
	if err := yaml.Unmarshal(text, template); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", path, err, remedy)
	}
	if selector(template).Empty() {
		return nil, fmt.Errorf("%s: it has no labels app.kubernetes.io/… to select the agents' pods by: %s", path, remedy)
	}
	return template, nil
}
