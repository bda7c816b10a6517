// Package agent is the life of one run: verify the node, release it, and hold until the pod is deleted, or recheck it.
//
// The goroutine of Run owns everything that changes, with two exceptions. While loop.during runs a step in a goroutine of its
// own, that step owns the ownnode.Node and the rounds, and tells the loop by events what happens. And ownnode.Access, which both
// use, notes atomically whether a foreign taint was seen.
package agent

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/ownnode"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/internal/verification"
	"github.com/imunhatep/kube-node-ready/metrics"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// holdInterval is the time between two reads of a verified node.
	holdInterval = time.Minute
	// lastRead is the time limit of a read and a patch after SIGTERM: the first pair is within METRICS_LINGER, the second
	// within the 10 s that the chart's grace period is longer. So are the last Events.
	lastRead = 4 * time.Second
)

// Agent verifies one node. Each verification, and each time of rechecks, is a value of its own: only what was seen and
// proven of the node is kept.
type Agent struct {
	*common
	own    *ownnode.Node
	proven types.UID // see verification.State
	// Checks returns the checks of a round.
	Checks checklist.List
}

// New returns the agent of the node that cfg names. The environment must have a client.
func New(cfg config.Config, e kube.Environment, recorder *metrics.Recorder, log *logrus.Entry, version string) *Agent {
	if cfg.Once {
		cfg.RecheckInterval = 0 // it ends with the verdict
	}
	pod, _ := os.Hostname() // the name of the pod
	access := ownnode.NewAccess(cfg, e.Client, func(err error) {
		recorder.PatchRetry()
		log.WithError(err).Warn("patch not applied, will retry with the current node")
	})
	events := kube.NewEvents(e.Client.Core, cfg.NodeName, cfg.PodNamespace+"/"+pod, cfg.CheckTimeout, log)
	all := &common{cfg: cfg, version: version, log: log, metrics: recorder, events: events, access: access}
	return &Agent{common: all, own: ownnode.New(access), Checks: checklist.New(cfg, e)}
}

// Run verifies the node and holds or rechecks it, and verifies again when the node is found unverified, until ctx ends.
// Then it serves the final metrics for METRICS_LINGER, or until process ends, at the second signal. With --once it returns with
// the verdict. It reports whether the node is verified.
func (a *Agent) Run(ctx, process context.Context) (verified bool) {
	sending, end := context.WithCancel(context.Background()) // also after a signal
	defer end()
	go a.events.Run(sending)
	defer a.awaitEvents(process)
	for ; ; a.metrics.SetStatus(false) {
		v := a.newVerifier()
		outcome := v.verify(ctx)
		a.proven = v.state.Proven
		if outcome == alreadyVerified {
			v.foundVerified(ctx)
		}
		if a.cfg.Once {
			return outcome != interrupted
		}
		if outcome == interrupted {
			a.leaveVerified(v.marker)
			return false
		}
		if a.watchReleased(ctx, outcome) {
			a.shutDown(process, v.marker)
			return true
		}
		a.log.Info("node is no longer verified: verifying it again")
	}
}

// newVerifier returns the verifier of a node of which nothing was seen yet.
func (a *Agent) newVerifier() *verifier {
	a.own.Reset()
	happened := make(chan verification.Event, 16)
	rounds := &rounds{common: a.common, own: a.own, newChecks: a.Checks, happened: happened}
	rounds.runner = checklist.Runner(a.cfg, rounds.attempted)
	report := &reporter{common: a.common, attempts: make(map[string]int), repeats: make(repeats)}
	return &verifier{own: a.own, rounds: rounds, loop: &loop{common: a.common, happened: happened, report: report,
		state: verification.State{Proven: a.proven}, marker: &marker{common: a.common}, opener: &opener{a.common}}}
}

// newRechecks returns the rechecks of the node as a verification has left it.
func (a *Agent) newRechecks(how outcome) *rechecks {
	r := &rechecks{common: a.common, own: a.own, newChecks: a.Checks, peers: peerSample{common: a.common},
		logged: make(map[string]time.Time), met: make(map[string]bool)}
	r.begin(how)
	return r
}

// watchReleased rechecks the node, or holds. It returns true when ctx ends, and false when the node is found unverified: somebody
// has removed the label, or added the startup taint.
func (a *Agent) watchReleased(ctx context.Context, how outcome) bool {
	// From here on there are only scrapes and rounds, whose garbage need not grow to the 4 MB at which Go starts to collect: 2 MiB
	// less after ten thousand.
	debug.SetGCPercent(50)
	if a.cfg.RecheckInterval > 0 {
		a.proven = "" // not to be proven again at the end of this pod: the next one of this node looks for the startup taint
		return a.newRechecks(how).run(ctx)
	}
	for round.Sleep(ctx, holdInterval) {
		node, err := a.access.Patcher.Get(ctx)
		switch {
		case err != nil:
			a.log.WithError(err).Debug("cannot read the node while holding")
		case !a.access.IsVerified(node):
			return false
		}
	}
	return true
}

// shutDown keeps /metrics up for the last scrape of a pod that is being deleted.
func (a *Agent) shutDown(process context.Context, marker *marker) {
	end := time.After(a.cfg.MetricsLinger)
	a.leaveVerified(marker)
	if a.cfg.MetricsLinger <= 0 {
		return
	}
	a.log.WithField("linger", a.cfg.MetricsLinger.String()).Info("shutting down: serving final metrics")
	select {
	case <-end:
		a.leaveVerified(marker)
	case <-process.Done():
		a.log.Info("second signal: exiting")
	}
}

// leaveVerified makes a node look verified that this process has released, because no agent is left to do it: the label keeps
// the next one away. It removes a startup taint that was put back: a client that had read the node before our patch and wrote
// the whole list after it does that (kubectl taint, for example). And it corrects a condition that is False, where the answer
// to our patch was lost. Only what this process has proven counts.
func (a *Agent) leaveVerified(marker *marker) {
	if a.proven == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastRead)
	defer cancel()
	node, removed, err := a.access.Patcher.RemoveAgain(ctx, a.proven, a.access.Keys)
	log := a.log.WithField("taints", nodepatch.FormatTaints(removed))
	switch {
	case err != nil:
		log.WithError(err).Warn("cannot tell whether the startup taint was added again")
	case len(removed) > 0:
		log.Warn("startup taint was added again after the release: removed it")
	}
	if node != nil && marker.showsFailure(node) {
		marker.tryVerified(ctx, node)
	}
}

// awaitEvents waits for the last Events.
func (a *Agent) awaitEvents(process context.Context) {
	ctx, cancel := context.WithTimeout(process, min(lastRead, a.cfg.CheckTimeout))
	defer cancel()
	a.events.Flush(ctx)
}
