package agent

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// refreshInterval is when a condition that stays False is written again, so that a stale one can be told.
	refreshInterval = 5 * time.Minute
	// lookInterval is the time between two reads of the node where rounds are further apart.
	lookInterval = 5 * time.Minute
	// thoroughInterval is the time between two rounds with large packets.
	thoroughInterval = time.Hour
	// repeatWarning is the time until a warning that stays is logged again.
	repeatWarning = time.Hour
	// recheckDials is how many endpoints of the DNS service a round connects to, on as many nodes if there are; of a dual-stack one
	// that many of each family.
	recheckDials = 2
)

// The status of the node's condition.
const (
	statusTrue  = "True"
	statusFalse = "False"
)

// recheck is the life after the release with RECHECK_INTERVAL: a round with one attempt of each check every interval.
// FAILURE_THRESHOLD failed rounds in a row make the condition False and /readyz 503. RECOVERY_THRESHOLD passed ones make it True
// again, and remove the failed taint: the controller may have added it, the agent never does. How the node shows that is in
// recheck_write.go. One goroutine owns a recheck.
type recheck struct {
	*Agent
	held   nodepatch.Request // the node as it stays released
	node   *nodepatch.Node   // as last read
	readAt time.Time         // by a recheck; zero before the first

	failed, passed int    // rounds in a row
	failure        error  // of the last failed round
	reasons        string // of the last failed round or, after a restart, of the condition; "" when a node that is True passes
	status         string // the verdict: True, False, or "" while it is to be proven

	written   bool      // the condition shows the verdict
	refreshAt time.Time // when a condition that is False is written again
	due       time.Time // when to write to the node; zero: nothing changes

	neighbours neighbours

	thorough   bool                 // the round sends large packets
	thoroughAt time.Time            // from when on the next one does
	said       map[string]time.Time // the warnings that are not repeated, and until when
}

// newRecheck continues a verification that has released the node, or has found it verified. What the condition of a verified node
// says holds until rounds prove otherwise: another container of this pod, or the controller, has written it.
func (v *verification) newRecheck() *recheck {
	r := &recheck{Agent: v.Agent, held: v.heldRequest(), node: v.node, said: make(map[string]time.Time)}
	r.neighbours.r = r
	switch shown := r.shown(); {
	case !v.released && (shown == statusTrue || shown == statusFalse):
		r.status, r.written = shown, shown == statusTrue // of a False the reasons are to be its own
	case v.released && v.marker.reason == verdict.Verified:
		r.status, r.written = statusTrue, true
	case v.released:
		r.status = statusTrue
		if r.wasGated() {
			r.due = time.Now()
		}
	}
	if r.status == statusTrue { // else the first round is thorough: small packets alone do not open a node
		r.thoroughAt = time.Now().Add(rand.N(thoroughInterval))
	} else if r.reasons = r.condition().Reason; r.wasFailedByController() {
		r.reasons = verdict.PeersFailed // nobody knows whether they answer: one must
	}
	r.proof = nil // not to be proven again at the end of this pod: the next one of this node looks for the startup taint
	r.metrics.SetRecheckStatus(r.status != statusFalse)
	return r
}

// run rechecks the node until ctx ends. It returns true when the node is found unverified: somebody has removed the label, or
// added the startup taint.
func (r *recheck) run(ctx context.Context) bool {
	debug.SetGCPercent(50) // as in hold
	for next := time.Now().Add(rand.N(r.cfg.RecheckInterval)); r.waitUntil(ctx, next); {
		next = time.Now().Add(spread(r.cfg.RecheckInterval))
		began := time.Now()
		var results []checks.Result
		if r.isVerified() {
			runner := newRunner(r.cfg, r)
			runner.MaxRetries = 0
			var err error
			if results, err = runner.Round(ctx, r.list()); err != nil {
				return false // shutting down: no verdict
			}
		}
		if !r.isVerified() {
			r.log.Info("node is no longer verified: verifying it again")
			return true
		}
		r.conclude(results, began)
	}
	return false
}

// waitUntil waits for the next round, or until the node is found unverified. Until then it writes what is due, and reads the node
// now and then. It returns false if ctx ends first.
func (r *recheck) waitUntil(ctx context.Context, next time.Time) bool {
	if least := time.Now().Add(r.cfg.RecheckInterval / 10); next.Before(least) { // a round may last longer than the interval
		next = least
	}
	for r.isVerified() {
		at, act := next, (func(context.Context))(nil)
		if look := time.Now().Add(spread(r.look)); r.cfg.RecheckInterval > r.look && look.Before(at) {
			at, act = look, r.lookAtNode
		}
		if !r.due.IsZero() && r.due.Before(at) {
			at, act = r.due, r.write
		}
		if !sleep(ctx, time.Until(at)) || ctx.Err() != nil {
			return false
		}
		if act == nil {
			return true
		}
		act(ctx)
	}
	return true
}

// lookAtNode reads the node between two rounds: somebody may have removed the label, or added a taint.
func (r *recheck) lookAtNode(ctx context.Context) {
	if err := r.read(ctx); err != nil {
		r.log.WithError(err).Debug("cannot read the node between two rounds")
	} else if r.due.IsZero() {
		r.due = r.nextWrite()
	}
}

// isVerified reports whether the node is as it was released, as far as rechecks have read it.
func (r *recheck) isVerified() bool { return r.readAt.IsZero() || nodepatch.IsVerified(r.node, r.held) }

// list returns the checks of one round.
func (r *recheck) list() []checks.Check {
	r.thorough = !time.Now().Before(r.thoroughAt)
	list := r.checks(checks.API{Get: r.readNode})
	for i, check := range list {
		if service, ok := check.(checks.Service); ok {
			service.MaxDials, service.SmallPackets = recheckDials, !r.thorough
			if r.status == statusTrue || !strings.Contains(r.reasons, verdict.ServiceFailed) {
				// One other node proves nothing: the healthy node of two with DNS pods would fail with the broken one.
				service.FewestNodes = recheckDials
			}
			list[i] = service
		}
	}
	if r.cfg.EnableConnectivityMatrix {
		list = append(list, r.neighbours.check())
	}
	return list
}

// readNode is the request of the api check: a read from the API server's cache. It keeps its connection, which saves the API
// server a TLS handshake with each node and round, because the network check makes a new connection in each round.
func (r *recheck) readNode(ctx context.Context) (report checks.Report, err error) {
	var node *nodepatch.Node
	if r.thorough || r.failed > 0 {
		r.client.CloseIdleConnections()
	}
	if r.thorough {
		node, report, err = readLarge(ctx, r.cfg.NodeName, r.api.GetCachedPadded)
	} else {
		report.Detail = "node " + r.cfg.NodeName + " read"
		node, err = r.api.GetCached(ctx)
	}
	if err == nil {
		err = r.keep(ctx, node)
	}
	return report, err
}

// conclude counts a round. A single failure is a warning and nothing else. Only a node that was read in this round is known to
// be drained or going away: one that has lost its path to the API server may have been open for long.
func (r *recheck) conclude(results []checks.Result, began time.Time) {
	hasFailed := func(result checks.Result) bool { return result.Err != nil }
	if r.thorough && !slices.ContainsFunc(results, hasFailed) { // after a failure the next round is thorough, too
		r.thoroughAt = time.Now().Add(spread(thoroughInterval))
	}
	if why := nodepatch.Untouchable(r.node); why != "" && r.readAt.After(began) {
		r.log.WithField("reason", why).Debug("no verdict")
		r.passed, r.failed, r.due = 0, 0, time.Time{}
		return
	}
	r.heedController()
	if err := r.judge(results); err != nil {
		round, _ := errors.AsType[roundFailure](err)
		r.passed, r.failed, r.failure, r.reasons = 0, r.failed+1, err, verdict.Reason(round.checks)
		r.log.WithFields(logrus.Fields{"reason": brief(err), "failed": r.failed, "threshold": r.cfg.FailureThreshold}).
			Warn("recheck failed")
	} else {
		r.passed, r.failed = r.passed+1, 0
		if r.status == statusTrue {
			r.reasons = ""
		}
	}
	switch {
	case r.failed >= r.cfg.FailureThreshold && r.status != statusFalse:
		r.log.WithField("reason", brief(r.failure)).Error("node failed its rechecks")
		r.events.Add(kube.EventWarning, reasonFailed, r.message())
		r.turn(statusFalse)
	case r.passed >= r.cfg.RecoveryThreshold && r.status != statusTrue:
		if r.status == statusFalse {
			r.log.Info("node recovered")
			r.events.Add(kube.EventNormal, reasonRecovered, verdict.AllChecksPass+" again")
		}
		r.turn(statusTrue)
	case r.due.IsZero():
		r.due = r.nextWrite()
	}
}

// turn changes the verdict.
func (r *recheck) turn(status string) {
	r.status, r.written, r.due = status, false, time.Now()
	r.metrics.SetRecheckStatus(status != statusFalse)
}

// Attempted implements checks.Observer.
func (r *recheck) Attempted(attempt checks.Attempt) {
	r.metrics.Attempt(attempt.Check, attempt.Took)
	log := r.log.WithFields(logrus.Fields{"check": attempt.Check, "took": formatDuration(attempt.Took)})
	wasSaid := func(text string) bool { return r.wasSaid(attempt.Check + ": " + text) }
	skipped := attempt.Report.Skipped
	warnings := slices.DeleteFunc(slices.Clone(attempt.Report.Warnings), wasSaid)
	switch {
	case attempt.Err != nil:
		log.WithError(attempt.Err).WithField("remedy", checks.Remedy(attempt.Err)).Warn("check failed")
	case len(warnings) > 0:
		log.WithField("warning", strings.Join(warnings, "; ")).Warn("check passed with a warning")
	case skipped != "" && !wasSaid(skipped):
		log.WithField("reason", skipped).Info("check skipped")
	case skipped == "":
		log.WithField("detail", attempt.Report.Detail).Debug("check passed")
	}
}

// wasSaid reports whether the log has had this text within the last hour, and remembers it: each round connects to others of the
// peers and endpoints, and meets the dead ones among them again and again.
func (r *recheck) wasSaid(text string) bool {
	now := time.Now()
	maps.DeleteFunc(r.said, func(_ string, until time.Time) bool { return now.After(until) })
	if _, said := r.said[text]; said {
		return true
	}
	r.said[text] = now.Add(repeatWarning)
	return false
}

// spread returns d ±20 %, so that thousands of nodes do not march in step.
func spread(d time.Duration) time.Duration {
	return time.Duration((0.8 + 0.4*rand.Float64()) * float64(d))
}
