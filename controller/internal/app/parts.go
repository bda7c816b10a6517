package app

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/handover"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
	"github.com/imunhatep/kube-node-ready/controller/internal/metrics"
	"github.com/imunhatep/kube-node-ready/controller/internal/reboot"
	"github.com/imunhatep/kube-node-ready/controller/internal/remediation"
	"github.com/imunhatep/kube-node-ready/controller/internal/renewal"
	"github.com/imunhatep/kube-node-ready/controller/internal/report"
	"github.com/imunhatep/kube-node-ready/controller/internal/retaint"
	"github.com/imunhatep/kube-node-ready/controller/internal/worker"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/nodecheck"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// parts are what acts on nodes: the reboot step of the loop, the controller of the workers, and runnables of the manager, each in
// a goroutine of its own.
type parts struct {
	controller Controller
	manager    manager.Manager
	template   *corev1.PodTemplateSpec // of the agents or workers
	loop       *loop.Loop
	metrics    *metrics.Collector
}

// add adds the parts that are switched on. leave ends this process, for another leader.
func (p parts) add(ctx context.Context, leave func()) error {
	cfg, hasWorkers := p.controller.Config, p.loop.Settings.Workers
	if hasWorkers {
		workers := p.workers()
		p.loop.Unmet = workers.Unmet
		if err := workers.SetupWithManager(ctx, p.manager); err != nil {
			return err
		}
	}
	if cfg.VerifyAfterReboot && !p.loop.Settings.Rechecks.Enabled() { // agents that stay prove their nodes by themselves
		p.loop.Steps = append(p.loop.Steps, &reboot.Unlabeler{Settings: p.loop.Settings, Node: nodeAPI(p.controller.Environment),
			Limit: report.NewLimit(), Log: p.controller.Log})
	}
	live, err := client.New(p.controller.Environment.REST,
		client.Options{Scheme: p.manager.GetScheme(), Mapper: p.manager.GetRESTMapper()})
	if err != nil {
		return err
	}
	group := p.controlGroup()
	actor := act.Actor{Plan: p.loop.Last, ControlGroup: group.State, Now: p.loop.Now,
		Events: p.manager.GetEventRecorder(recorder), Log: p.controller.Log}
	runnables := []manager.Runnable{p.tainter(actor)} // it removes failed taints also where re-taint is off
	if !hasWorkers {
		runnables = append(runnables, p.leftovers(), p.renewer(actor, live))
	}
	remediates := cfg.RemediationMode != config.RemediationOff
	if remediates {
		runnables = append(runnables, p.remediator(actor, live))
	}
	if remediates || !hasWorkers {
		runnables = append(runnables, group, p.handOver(actor, live, leave))
	}
	for _, runnable := range runnables {
		if err := p.manager.Add(runnable); err != nil {
			return err
		}
	}
	return nil
}

// workers verifies the nodes in controller mode.
func (p parts) workers() *worker.Reconciler {
	c, cfg := p.controller, p.controller.Config
	resolver, _ := checks.SystemResolver()
	return &worker.Reconciler{
		Settings: worker.Settings{Fleet: p.loop.Settings, AgentName: cfg.AgentName, Namespace: cfg.PodNamespace,
			Template: p.template, ClusterDomain: resolver.ClusterDomain(), MaxWorkers: cfg.MaxConcurrentWorkers,
			Round: checklist.LongestRound(cfg.Config), Version: c.Program.Version, Required: cfg.Require},
		Client: p.manager.GetClient(), Endpoints: worker.NewEndpoints(c.Environment.Client, cfg.DNSService, cfg.CheckTimeout).List,
		Node: nodeAPI(c.Environment), Events: p.manager.GetEventRecorder(recorder), Now: p.loop.Now,
		Require: p.requirements().Unmet,
		Asker:   worker.Asker{Port: cfg.MetricsPort, Transport: c.WorkerTransport},
		Timeout: cfg.CheckTimeout, Log: c.Log,
	}
}

// requirements are what the Node itself must show.
func (p parts) requirements() nodecheck.Requirements {
	cfg := p.controller.Config
	return nodecheck.Requirements{List: cfg.Require, Client: p.controller.Environment.Client, Timeout: cfg.CheckTimeout}
}

// leftovers deletes the workers that controller mode has left, in daemonset mode.
func (p parts) leftovers() *worker.Leftovers {
	return &worker.Leftovers{Reader: p.manager.GetAPIReader(), Writer: p.manager.GetClient(), Log: p.controller.Log,
		Namespace: p.controller.Config.PodNamespace, Selector: componentLabels(p.template, "worker").AsSelector()}
}

// controlGroup runs the checks in this pod.
func (p parts) controlGroup() *baseline.Rounds {
	c := p.controller
	list, runner := checklist.ForAnotherProcess(c.Config.Config, c.Environment)
	if c.ControlGroup != nil {
		list = c.ControlGroup
	}
	return &baseline.Rounds{Checks: list, Runner: runner, Now: p.loop.Now, Log: c.Log}
}

// breakers returns the settings of the rules for every node.
func (p parts) breakers(controlGroupFor time.Duration) breaker.Settings {
	return breaker.Settings{Fleet: p.loop.Settings, NodeName: p.controller.Config.NodeName, ControlGroupFor: controlGroupFor}
}

// handOver lets another replica lead where this one's node is not verified, or fails.
func (p parts) handOver(actor act.Actor, live client.Client, leave func()) *handover.HandOver {
	actor.Timeout = p.controller.Config.CheckTimeout
	return &handover.HandOver{Actor: actor, Fleet: p.loop.Settings, NodeName: p.controller.Config.NodeName, Client: live,
		Namespace: p.controller.Config.PodNamespace, Replicas: componentLabels(p.template, "controller"), Leave: leave}
}

// renewer gives agents whose own sandbox may be broken a fresh one.
func (p parts) renewer(actor act.Actor, live client.Client) *renewal.Renewer {
	actor.Timeout, actor.Action = p.controller.Config.CheckTimeout, "Renew"
	return &renewal.Renewer{Actor: actor, Client: live, Settings: p.breakers(baseline.Interval)}
}

// remediator replaces nodes that are never verified.
func (p parts) remediator(actor act.Actor, live client.Client) *remediation.Remediator {
	cfg := p.controller.Config
	actor.Timeout, actor.Action, actor.SetBreakers = 10*cfg.CheckTimeout, "Remediate", p.metrics.Breakers("remediation")
	return &remediation.Remediator{
		Actor: actor, Client: live, Self: &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			ObjectMeta: metav1.ObjectMeta{Name: cfg.AgentName + "-controller", Namespace: cfg.PodNamespace},
		},
		Settings: remediation.Settings{
			Settings: p.breakers(cfg.ControlGroupFor), PodNamespace: cfg.PodNamespace,
			DeleteAfter: cfg.DeleteAfter, FailedFor: cfg.FailedFor, DeleteNodes: cfg.DeleteNodes,
			UnmetRequirements: cfg.UnmetRequirements,
		},
		Unmet: p.requirements().Unmet, LedgerName: cfg.AgentName + "-remediation",
		DryRun: cfg.RemediationMode == config.RemediationDryRun,
	}
}

// tainter re-taints verified nodes that fail, and removes outdated failed taints: all of them where re-taint is switched off.
func (p parts) tainter(actor act.Actor) *retaint.Tainter {
	cfg := p.controller.Config
	actor.Timeout, actor.Action, actor.SetBreakers = time.Minute, "Recheck", p.metrics.Breakers("retaint")
	return &retaint.Tainter{
		Actor: actor, Patcher: p.controller.patcher,
		CountAdded: p.metrics.CountTaintAdded, CountRemoved: p.metrics.CountTaintRemoved,
		Settings: retaint.Settings{Settings: p.breakers(cfg.RetaintControlGroupFor), Enabled: cfg.Retaint,
			CoolDown: cfg.RetaintCoolDown},
	}
}

// nodeAPI returns what reads and patches a node without a cache.
func nodeAPI(environment kube.Environment) func(name string) nodepatch.NodeAPI {
	return func(name string) nodepatch.NodeAPI {
		return nodepatch.Client{REST: environment.Client.Core, Name: name}
	}
}

// patcher returns what removes and adds failed taints.
func (c Controller) patcher(node string) *nodepatch.Patcher {
	timeout := c.Config.CheckTimeout
	return &nodepatch.Patcher{Node: nodeAPI(c.Environment)(node), Timeout: timeout, Deadline: 2 * timeout}
}

// RemoveFailedTaints removes the failed taints of this release from all nodes.
func (c Controller) RemoveFailedTaints(ctx context.Context) error {
	live, err := client.New(c.Environment.REST, client.Options{})
	if err != nil {
		return err
	}
	settings := fleet.NewSettings(c.Config, new(corev1.PodTemplateSpec)) // it judges no node: no template is needed
	return retaint.RemoveFailedTaints(ctx, live, c.patcher, settings, c.Log)
}

// componentLabels are of the pods of another component of the release that the template is from.
func componentLabels(template *corev1.PodTemplateSpec, component string) labels.Set {
	own := fleet.OwnLabels(template.Labels)
	own[fleet.Component] = component
	return own
}
