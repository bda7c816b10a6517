// Command kube-node-ready-controller reports nodes whose agent cannot, verifies nodes in controller mode, and replaces nodes that
// are never verified.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
	"github.com/imunhatep/kube-node-ready/controller/internal/metrics"
	"github.com/imunhatep/kube-node-ready/controller/internal/remediation"
	"github.com/imunhatep/kube-node-ready/controller/internal/report"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Set at build time by -ldflags "-X main.version=…".
var (
	version   = "dev"
	commit    = "unknown"
	buildDate = "unknown"
)

// recorder is the name that Events are reported by.
const recorder = "kube-node-ready-controller"

func main() {
	// The plan that is published lives while the next one is made. Without this the heap may grow to twice of both: 163 MiB beside
	// 5,000 nodes, not 130.
	debug.SetGCPercent(50)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

// run is the whole process except its environment, so that tests can call it.
func run(ctx context.Context, args []string, lookupEnv func(string) (string, bool), stdout, stderr io.Writer) int {
	cfg, err := config.ParseController(args, lookupEnv, stdout)
	program := config.Program{Name: "kube-node-ready-controller", Version: version, Commit: commit, BuildDate: buildDate}
	if code, ends := program.Ends(cfg.Version, err, stdout, stderr); ends {
		return code
	}
	log := newLogger(cfg, stderr)
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetSlogLogger(log)

	environment := kube.DetectEnvironment(cfg.Kubeconfig, lookupEnv, "kube-node-ready-controller/"+version)
	if environment.Err != nil {
		log.Error("no access to the Kubernetes API: run in a pod with a service account token, or name a kubeconfig (--kubeconfig)",
			"error", environment.Err)
		return config.ExitError
	}
	work := start
	if cfg.RemoveFailedTaints {
		work = removeFailedTaints
	}
	if err := work(ctx, cfg, environment, log); err != nil {
		log.Error("the controller stops", "error", err)
		return config.ExitError
	}
	return config.ExitOK
}

// start runs the manager until ctx ends or something fatal happens.
func start(ctx context.Context, cfg config.Controller, environment kube.Environment, log *slog.Logger) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	template, err := readTemplate(cfg.AgentTemplate)
	if err != nil {
		return err
	}
	manager, err := newManager(cfg, environment, template)
	if err != nil {
		return err
	}
	settings := fleet.NewSettings(cfg.Config, template)
	settings.Workers = cfg.DeploymentMode == config.ModeController
	settings.FailedTaintValue = cfg.AgentName
	settings.FailedAfter, settings.SilentAfter = cfg.InitialTimeout, cfg.InitialTimeout+time.Minute
	settings.NotStartedAfter, settings.NoAgentFor = cfg.NotStartedAfter, cfg.RetaintNoAgentFor
	if settings.Workers { // a worker says nothing before its round ends
		settings.SilentAfter = max(settings.SilentAfter, checklist.LongestRound(cfg.Config)+time.Minute)
	}
	fleetLoop := &loop.Loop{Settings: settings, Cache: manager.GetCache(), Live: manager.GetAPIReader(),
		ServerTime: environment.Client.ServerTime, Log: log}
	collector := metrics.New(fleetLoop, metrics.Build{Version: version, Commit: commit, Date: buildDate})
	if err := ctrlmetrics.Registry.Register(collector); err != nil {
		return err
	}
	defer ctrlmetrics.Registry.Unregister(collector)
	fleetLoop.Steps = []loop.Step{collector, &report.Reporter{
		REST: environment.Client.Core, ConditionType: cfg.ConditionType, Events: manager.GetEventRecorder(recorder),
		ServerTime: environment.Client.ServerTime, Timeout: cfg.CheckTimeout, Limit: report.NewLimit(), Log: log,
	}}
	if err := fleetLoop.SetupWithManager(manager); err != nil {
		return err
	}
	p := parts{Manager: manager, cfg: cfg, environment: environment, template: template, loop: fleetLoop, metrics: collector,
		log: log}
	if err := p.add(ctx, leave); err != nil {
		return err
	}
	// The API server's clock is known from its first answer on: conditions have its time, not this node's.
	if err := environment.Client.Versions(ctx); err != nil {
		log.Warn("no answer from the API server yet", "error", err)
	}
	log.Info("starting", "version", version, "mode", cfg.DeploymentMode, "remediation", cfg.RemediationMode)
	return manager.Start(ctx)
}

func newManager(cfg config.Controller, environment kube.Environment, template *corev1.PodTemplateSpec) (manager.Manager, error) {
	noCopies := true                                                                  // nobody writes to what a list returns
	isRequired := len(cfg.Require) > 0 && cfg.DeploymentMode == config.ModeController // else the agents judge it
	m, err := ctrl.NewManager(environment.REST, ctrl.Options{
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
	})
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

func newLogger(cfg config.Controller, out io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // one of the four that the settings allow
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Key == slog.LevelKey {
			attr.Value = slog.StringValue(strings.ToLower(attr.Value.String())) // as the agent writes it
		}
		return attr
	}}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, options))
	}
	return slog.New(slog.NewTextHandler(out, options))
}
