package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/controlgroup"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/handover"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
	"github.com/imunhatep/kube-node-ready/controller/internal/metrics"
	"github.com/imunhatep/kube-node-ready/controller/internal/remediation"
	"github.com/imunhatep/kube-node-ready/controller/internal/renewal"
	"github.com/imunhatep/kube-node-ready/controller/internal/report"
	"github.com/imunhatep/kube-node-ready/controller/internal/retaint"
	"github.com/imunhatep/kube-node-ready/controller/internal/worker"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// workers verifies the nodes in controller mode.
func (p parts) workers() *worker.Reconciler {
	resolver, _ := checks.SystemResolver()
	return &worker.Reconciler{
		Settings: worker.Settings{Fleet: p.loop.Settings, AgentName: p.Config.AgentName, Namespace: p.Config.PodNamespace,
			Template: p.template, ClusterDomain: resolver.ClusterDomain(), MaxWorkers: p.Config.MaxConcurrentWorkers,
			VerdictPort: p.Config.MetricsPort, Round: checklist.LongestRound(p.Config.Config), Version: p.Build.Version},
		Client: p.GetClient(), Endpoints: worker.NewEndpoints(p.Environment.Client, p.Config.DNSService, p.Config.CheckTimeout).List,
		Node: nodeAPI(p.Environment), Events: p.GetEventRecorder(recorder), Now: p.loop.Now,
		Require: checklist.Requirements{List: p.Config.Require, Client: p.Environment.Client, Timeout: p.Config.CheckTimeout}.Unmet,
		Timeout: p.Config.CheckTimeout, Transport: p.Workers, Log: p.Log,
	}
}

// parts are what acts on the plans of the loop, each in a goroutine of its own.
type parts struct {
	manager.Manager
	Controller
	template *corev1.PodTemplateSpec // of the agents or workers
	loop     *loop.Loop
	metrics  *metrics.Collector
}

// add adds the parts that are switched on. leave ends this process, for another leader.
func (p parts) add(ctx context.Context, leave func()) error {
	var err error
	if p.loop.Settings.Workers {
		workers := p.workers()
		p.loop.Settings.Unmet = workers.Unmet
		err = workers.SetupWithManager(ctx, p.Manager)
	} else {
		err = p.Add(&worker.Leftovers{Reader: p.GetAPIReader(), Writer: p.GetClient(), Namespace: p.Config.PodNamespace,
			Selector: componentLabels(p.template, "worker").AsSelector(), Log: p.Log})
	}
	if err != nil {
		return err
	}
	if p.Config.VerifyAfterReboot && !p.loop.Settings.Rechecks.Enabled() { // agents that stay prove their nodes by themselves
		p.loop.Steps = append(p.loop.Steps,
			&rebooted{settings: p.loop.Settings, node: nodeAPI(p.Environment), limit: report.NewLimit(), log: p.Log})
	}
	live, err := client.New(p.Environment.REST, client.Options{Scheme: p.GetScheme(), Mapper: p.GetRESTMapper()})
	if err != nil {
		return err
	}
	remediates := p.Config.RemediationMode != config.RemediationOff
	group := &controlgroup.Group{Now: p.loop.Now, Log: p.Log}
	actor := act.Actor{Plan: p.loop.Last, ControlGroup: group.State, Now: p.loop.Now,
		Events: p.GetEventRecorder(recorder), Log: p.Log}
	if !p.loop.Settings.Workers {
		err = p.Add(p.renewer(actor, live))
	}
	if remediates {
		err = errors.Join(err, p.Add(p.remediator(actor, live)))
	}
	if remediates || !p.loop.Settings.Workers {
		err = errors.Join(err, p.Add(p.handOver(actor, live, leave)))
		group.Checks, group.Runner = checklist.ForAnotherProcess(p.Config.Config, p.Environment)
		if p.ControlGroup != nil {
			group.Checks = p.ControlGroup
		}
		err = errors.Join(err, p.Add(group))
	}
	return errors.Join(err, p.Add(p.tainter(actor))) // re-taint may have been switched on before
}

// breakers returns the settings of the rules for every node.
func (p parts) breakers(controlGroupFor time.Duration) breaker.Settings {
	return breaker.Settings{Fleet: p.loop.Settings, NodeName: p.Config.NodeName, ControlGroupFor: controlGroupFor}
}

// handOver lets another replica lead where this one's node is not verified, or fails.
func (p parts) handOver(actor act.Actor, live client.Client, leave func()) *handover.HandOver {
	actor.Timeout = p.Config.CheckTimeout
	return &handover.HandOver{Actor: actor, Settings: p.breakers(0), Client: live, Namespace: p.Config.PodNamespace,
		Replicas: componentLabels(p.template, "controller"), Leave: leave}
}

// renewer gives agents whose own sandbox may be broken a fresh one.
func (p parts) renewer(actor act.Actor, live client.Client) *renewal.Renewer {
	actor.Timeout = p.Config.CheckTimeout
	return &renewal.Renewer{Actor: actor, Client: live, Settings: p.breakers(controlgroup.Interval)}
}

// remediator replaces nodes that are never verified.
func (p parts) remediator(actor act.Actor, live client.Client) *remediation.Remediator {
	actor.Timeout, actor.SetBreaker = 10*p.Config.CheckTimeout, p.metrics.Breaker("remediation")
	return &remediation.Remediator{
		Actor: actor, Client: live, Self: &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			ObjectMeta: metav1.ObjectMeta{Name: p.Config.AgentName + "-controller", Namespace: p.Config.PodNamespace},
		},
		Settings: remediation.Settings{
			Settings: p.breakers(p.Config.ControlGroupFor), PodNamespace: p.Config.PodNamespace,
			DeleteAfter: p.Config.DeleteAfter, FailedFor: p.Config.FailedFor, DeleteNodes: p.Config.DeleteNodes,
			UnmetRequirements: p.Config.UnmetRequirements,
		},
		LedgerName: p.Config.AgentName + "-remediation", DryRun: p.Config.RemediationMode == config.RemediationDryRun,
	}
}

// tainter re-taints verified nodes that fail, and removes outdated failed taints: all of them where re-taint is switched off.
func (p parts) tainter(actor act.Actor) *retaint.Tainter {
	actor.Timeout, actor.SetBreaker = retaint.Timeout, p.metrics.Breaker("retaint")
	return &retaint.Tainter{
		Actor: actor, Node: nodeAPI(p.Environment), RequestTimeout: p.Config.CheckTimeout, Count: p.metrics.CountFailedTaint,
		Settings: retaint.Settings{Enabled: p.Config.Retaint, CoolDown: p.Config.RetaintCoolDown,
			Settings: p.breakers(p.Config.RetaintControlGroupFor)},
	}
}

// nodeAPI returns what reads and patches a node without a cache.
func nodeAPI(environment kube.Environment) func(name string) nodepatch.NodeAPI {
	return func(name string) nodepatch.NodeAPI {
		return nodepatch.Client{REST: environment.Client.Core, Name: name}
	}
}

// RemoveFailedTaints removes the failed taints that this release's controller has added to verified nodes, from all nodes: the
// release is being uninstalled.
func (c Controller) RemoveFailedTaints(ctx context.Context) error {
	cfg, environment, log := c.Config, c.Environment, c.Log
	live, err := client.New(environment.REST, client.Options{})
	if err != nil {
		return err
	}
	settings := fleet.Settings{Request: cfg.Request(), FailedTaintValue: cfg.AgentName}
	var failures error
	for token, more := client.Continue(""), true; more; more = token != "" {
		var nodes corev1.NodeList
		if err := live.List(ctx, &nodes, client.Limit(500), token); err != nil {
			return errors.Join(failures, fmt.Errorf("nodes: %w", err))
		}
		for i := range nodes.Items {
			name := nodes.Items[i].Name
			if !settings.IsRetainted(fleet.Taints(&nodes.Items[i])) {
				continue
			}
			patcher := retaint.Patcher(nodeAPI(environment)(name), cfg.CheckTimeout)
			if _, err := retaint.RemoveFailedTaint(ctx, patcher, settings); err != nil {
				failures = errors.Join(failures, fmt.Errorf("node %s: %w", name, err))
				continue
			}
			log.Info("failed taint removed", "node", name)
		}
		token = client.Continue(nodes.Continue)
	}
	return failures
}

// componentLabels are of the pods of another component of the release that the template is from.
func componentLabels(template *corev1.PodTemplateSpec, component string) labels.Set {
	own := fleet.OwnLabels(template.Labels)
	own[fleet.Component] = component
	return own
}
