// Package agent is the life of one run: verify the node, release it, and hold until the pod is deleted, or recheck it.
package agent

import (
	"context"
	"os"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/metrics"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// patchAttempts is the time limit of all attempts of one patch together, in CHECK_TIMEOUTs.
const patchAttempts = 10

// deps is what lives as long as the process, and does not change.
type deps struct {
	cfg     config.Config
	version string
	request nodepatch.Request // the released node, without the annotation's value
	log     *logrus.Entry
	metrics *metrics.Recorder
	client  *kube.Client
	api     nodepatch.Client
	patcher *nodepatch.Patcher
	events  *kube.Events
	checks  checklist.List
}

// Agent verifies one node. Each verification, and each time of rechecks, is a value of its own: nothing else is kept.
type Agent struct{ *deps }

// New returns the agent of the node that cfg names, which makes these checks. The environment must have a client.
func New(cfg config.Config, e kube.Environment, list checklist.List, recorder *metrics.Recorder, log *logrus.Entry,
	version string) *Agent {
	if cfg.Once {
		cfg.RecheckInterval = 0 // it ends with the verdict
	}
	pod, _ := os.Hostname() // the name of the pod
	api := nodepatch.Client{REST: e.Client.Core, Name: cfg.NodeName}
	d := &deps{cfg: cfg, version: version, request: cfg.Request(), log: log, metrics: recorder, client: e.Client, api: api,
		patcher: &nodepatch.Patcher{
			Node:     api,
			Timeout:  cfg.CheckTimeout,
			Deadline: patchAttempts * cfg.CheckTimeout,
			Retried: func(err error) {
				recorder.PatchRetry()
				log.WithError(err).Warn("patch not applied, will retry with the current node")
			},
		},
		events: kube.NewEvents(e.Client.Core, cfg.NodeName, cfg.PodNamespace+"/"+pod, cfg.CheckTimeout, log),
		checks: list}
	return &Agent{d}
}

// Run verifies the node and holds or rechecks it, and verifies again when the node is found unverified, until ctx ends.
// Then it serves the final metrics for METRICS_LINGER, or until secondSignal is closed. With --once it returns with the
// verdict. It reports whether the node is verified.
func (a *Agent) Run(ctx context.Context, secondSignal <-chan struct{}) (verified bool) {
	sending, end := context.WithCancel(context.Background()) // also after a signal
	defer end()
	go a.events.Run(sending)
	defer a.awaitEvents(sending)
	for proven := (*proof)(nil); ; a.metrics.SetStatus(false) {
		v := newVerification(a.deps, proven)
		outcome := v.verify(ctx)
		if outcome == alreadyVerified {
			v.foundVerified(ctx)
		}
		if a.cfg.Once {
			return outcome != interrupted
		}
		proven = v.proof
		if outcome == interrupted {
			a.removeTaintAgain(proven)
			return false
		}
		var isUnverified bool
		if a.cfg.RecheckInterval > 0 {
			proven = nil // not to be proven again at the end of this pod: the next one of this node looks for the startup taint
			isUnverified = newRecheck(a.deps, v, outcome).run(ctx)
		} else {
			isUnverified = a.hold(ctx)
		}
		if !isUnverified {
			a.shutDown(proven, secondSignal)
			return true
		}
	}
}

// always reports whether the condition is to show each verdict, on every node.
func (d *deps) always() bool { return d.cfg.Condition == config.ConditionAlways }

// isVerified reports whether the node needs no verification. With rechecks the failed taint, which the controller may have added,
// begins none.
func (d *deps) isVerified(node *nodepatch.Node) bool {
	if d.cfg.RecheckInterval > 0 {
		return nodepatch.IsVerified(node, d.request.Released())
	}
	return nodepatch.IsVerified(node, d.request)
}
