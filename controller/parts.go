package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/controlgroup"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
	"github.com/imunhatep/kube-node-ready/controller/internal/metrics"
	"github.com/imunhatep/kube-node-ready/controller/internal/remediation"
	"github.com/imunhatep/kube-node-ready/controller/internal/retaint"
	"github.com/imunhatep/kube-node-ready/controller/internal/worker"
	"github.com/imunhatep/kube-node-ready/internal/agent"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// newWorkers verifies the nodes in controller mode.
func newWorkers(cfg config.Controller, environment kube.Environment, template *corev1.PodTemplateSpec, settings fleet.Settings,
	manager manager.Manager, log *slog.Logger) *worker.Reconciler {
	domain := ""
	if resolver, err := checks.SystemResolver(); err == nil {
		domain = resolver.ClusterDomain()
	}
	endpoints := worker.NewEndpoints(environment.Client, cfg.DNSService, cfg.CheckTimeout)
	return &worker.Reconciler{
		Settings: worker.Settings{Fleet: settings, AgentName: cfg.AgentName, Namespace: cfg.PodNamespace, Template: template,
			ClusterDomain: domain, MaxWorkers: cfg.MaxConcurrentWorkers,
			VerdictPort: cfg.MetricsPort, Round: agent.LongestRound(cfg.Config), Version: version},
		Client: manager.GetClient(), Endpoints: endpoints.List,
		Node: func(name string) nodepatch.NodeAPI {
			return nodepatch.Client{REST: environment.Client.Core, Name: name}
		},
		Events: manager.GetEventRecorder("kube-node-ready-controller"), ServerTime: environment.Client.ServerTime,
		Timeout: cfg.CheckTimeout, Log: log,
	}
}

// newLeftovers deletes what controller mode has left behind.
func newLeftovers(cfg config.Controller, template *corev1.PodTemplateSpec, m manager.Manager,
	log *slog.Logger) *worker.Leftovers {
	return &worker.Leftovers{
		Reader: m.GetAPIReader(), Writer: m.GetClient(), Namespace: cfg.PodNamespace,
		Selector: workers(template), Timeout: cfg.CheckTimeout, Log: log,
	}
}

// parts are what acts on the plans of the loop, each in a goroutine of its own.
type parts struct {
	manager.Manager
	cfg         config.Controller
	environment kube.Environment
	loop        *loop.Loop
	metrics     *metrics.Collector
	log         *slog.Logger
}

// add adds the parts that are switched on. leave ends this process, for another leader.
func (p parts) add(leave func()) error {
	live, err := client.New(p.environment.REST, client.Options{Scheme: p.GetScheme(), Mapper: p.GetRESTMapper()})
	if err != nil {
		return err
	}
	remediates := p.cfg.RemediationMode != config.RemediationOff
	group := &controlgroup.Group{Log: p.log}
	tainter := p.tainter(group.State)
	if remediates || p.cfg.Retaint {
		group.Checks, group.Runner = agent.Checks(p.cfg.Config, p.environment)
		handOver := &breaker.HandOver{PodName: p.cfg.PodName, PodNamespace: p.cfg.PodNamespace, Leave: leave, Log: p.log}
		if remediates {
			err = p.Add(p.remediator(live, group.State, handOver))
		} else {
			tainter.HandOver, tainter.Client = handOver, live
		}
		err = errors.Join(err, p.Add(group))
	}
	if p.cfg.Retaint {
		return errors.Join(err, p.Add(tainter))
	}
	p.loop.Steps = append(p.loop.Steps, &whenRetainted{start: func() error { return p.Add(tainter) }})
	return err
}

// whenRetainted is a step of the loop: it starts something, once a node is re-tainted.
type whenRetainted struct{ start func() error }

// Act implements loop.Step.
func (w *whenRetainted) Act(_ context.Context, plan fleet.Plan) (requeueAfter time.Duration, err error) {
	isRetainted := func(status fleet.Status) bool { return status.Retainted }
	if w.start == nil || !slices.ContainsFunc(plan.Statuses, isRetainted) {
		return 0, nil
	}
	if err = w.start(); err == nil {
		w.start = nil
	}
	return 0, err
}

// remediator replaces nodes that are never verified.
func (p parts) remediator(live client.Client, group func() controlgroup.State,
	handOver *breaker.HandOver) *remediation.Remediator {
	return &remediation.Remediator{
		Settings: remediation.Settings{
			Fleet: p.loop.Settings, NodeName: p.cfg.NodeName, PodNamespace: p.cfg.PodNamespace,
			DeleteAfter: p.cfg.DeleteAfter, FailedFor: p.cfg.FailedFor, ControlGroupFor: p.cfg.ControlGroupFor,
		},
		Plan: p.loop.Last, Client: live,
		LedgerName: p.cfg.AgentName + "-remediation", DryRun: p.cfg.RemediationMode == config.RemediationDryRun,
		ControlGroup: group, ServerTime: p.environment.Client.ServerTime, Now: time.Now, Timeout: 10 * p.cfg.CheckTimeout,
		Events: p.GetEventRecorder("kube-node-ready-controller"), Self: deployment(p.cfg),
		SetBreaker: p.metrics.Breaker("remediation"), HandOver: handOver, Log: p.log,
	}
}

// tainter re-taints verified nodes that fail, and removes outdated failed taints: all of them where re-taint is switched off.
func (p parts) tainter(group func() controlgroup.State) *retaint.Tainter {
	return &retaint.Tainter{
		Settings: retaint.Settings{Fleet: p.loop.Settings, Enabled: p.cfg.Retaint, NodeName: p.cfg.NodeName,
			ControlGroupFor: p.cfg.RetaintControlGroupFor, CoolDown: p.cfg.RetaintCoolDown},
		Plan: p.loop.Last, ControlGroup: group, Now: time.Now, Timeout: p.cfg.CheckTimeout,
		Node: func(name string) nodepatch.NodeAPI {
			return nodepatch.Client{REST: p.environment.Client.Core, Name: name}
		},
		Events: p.GetEventRecorder("kube-node-ready-controller"), SetBreaker: p.metrics.Breaker("retaint"),
		Count: p.metrics.CountFailedTaint, Log: p.log,
	}
}

// removeFailedTaints removes the failed taints that this release's controller has added to verified nodes, from all nodes: the
// release is being uninstalled.
func removeFailedTaints(ctx context.Context, cfg config.Controller, environment kube.Environment, log *slog.Logger) error {
	live, err := client.New(environment.REST, client.Options{})
	if err != nil {
		return err
	}
	settings := fleet.Settings{Request: agent.NewRequest(cfg.Config), FailedTaintValue: cfg.AgentName}
	var failures error
	for token, more := client.Continue(""), true; more; more = token != "" {
		var nodes corev1.NodeList
		if err := live.List(ctx, &nodes, client.Limit(500), token); err != nil {
			return errors.Join(failures, fmt.Errorf("nodes: %w", err))
		}
		for i := range nodes.Items {
			name := nodes.Items[i].Name
			if !settings.IsRetainted(&nodes.Items[i]) {
				continue
			}
			node := nodepatch.Client{REST: environment.Client.Core, Name: name}
			if _, err := retaint.RemoveFailedTaint(ctx, retaint.Patcher(node, cfg.CheckTimeout), settings); err != nil {
				failures = errors.Join(failures, fmt.Errorf("node %s: %w", name, err))
				continue
			}
			log.Info("failed taint removed", "node", name)
		}
		token = client.Continue(nodes.Continue)
	}
	return failures
}

// deployment is what Events about the whole fleet are about.
func deployment(cfg config.Controller) runtime.Object {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: cfg.AgentName + "-controller", Namespace: cfg.PodNamespace},
	}
}

// workers selects the workers of the release that the template is from.
func workers(template *corev1.PodTemplateSpec) labels.Selector {
	own := fleet.OwnLabels(template.Labels)
	own[fleet.Component] = "worker"
	return own.AsSelector()
}
