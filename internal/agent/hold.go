package agent

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// holdInterval is the time between two reads of a verified node.
	holdInterval = time.Minute
	// lastRead is the time limit of a read and a patch after SIGTERM: the first pair is within METRICS_LINGER, the second
	// within the 10 s that the chart's grace period is longer. So are the last Events.
	lastRead = 4 * time.Second
)

// awaitEvents waits for the last Events.
func (a *Agent) awaitEvents(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastRead)
	defer cancel()
	a.events.Flush(ctx)
}

// hold serves metrics and reads the node once a minute until ctx ends. It returns true when the node is found
// unverified: somebody has removed the label, or added the taint.
func (a *Agent) hold(ctx context.Context) bool {
	// From here on there are only scrapes, whose garbage need not grow to the 4 MB at which Go starts to collect: 2 MiB
	// less after ten thousand.
	debug.SetGCPercent(50)
	for sleep(ctx, holdInterval) {
		node, err := a.patcher.Get(ctx)
		switch {
		case err != nil:
			a.log.WithError(err).Debug("cannot read the node while holding")
		case !a.isVerified(node):
			a.log.Info("node is no longer verified: verifying it again")
			return true
		}
	}
	return false
}

// shutDown keeps /metrics up for the last scrape of a pod that is being deleted.
func (a *Agent) shutDown(proven *proof, secondSignal <-chan struct{}) {
	end := time.After(a.cfg.MetricsLinger)
	a.removeTaintAgain(proven)
	if a.cfg.MetricsLinger <= 0 {
		return
	}
	a.log.WithField("linger", a.cfg.MetricsLinger.String()).Info("shutting down: serving final metrics")
	select {
	case <-end:
		a.removeTaintAgain(proven)
	case <-secondSignal:
		a.log.Info("second signal: exiting")
	}
}

// removeTaintAgain removes a startup taint that was put back after the release. A client that had read the node before
// our patch and wrote the whole list after it does that (kubectl taint, for example), and no agent is left to notice:
// the label keeps the next one away. Only what this process has proven counts.
func (a *Agent) removeTaintAgain(proven *proof) {
	if proven == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastRead)
	defer cancel()
	removed, err := a.patcher.RemoveAgain(ctx, proven.uid, proven.request)
	log := a.log.WithField("taints", nodepatch.FormatTaints(removed))
	switch {
	case err != nil:
		log.WithError(err).Warn("cannot tell whether the startup taint was added again")
	case len(removed) > 0:
		log.Warn("startup taint was added again after the release: removed it")
	}
}
