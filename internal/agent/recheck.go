package agent

import (
	"context"
	"errors"
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
	// thoroughInterval is the time between two rounds with large packets.
	thoroughInterval = time.Hour
	// recheckDials is how many endpoints of the DNS service a round connects to.
	recheckDials = 2
)

// The status of the node's condition.
const (
	statusTrue  = "True"
	statusFalse = "False"
)

// recheck is the life after the release with RECHECK_INTERVAL: a round with one attempt of each check every interval.
// FAILURE_THRESHOLD failed rounds in a row make the condition False and /readyz 503. RECOVERY_THRESHOLD passed ones make it True
// again, and remove the failed taint: the controller may have added it, the agent never does. One goroutine owns a recheck.
type recheck struct {
	*Agent
	held   nodepatch.Request // the node as it stays released
	node   *nodepatch.Node   // as last read
	readAt time.Time

	failed, passed int       // rounds in a row
	failure        error     // of the last failed round
	status         string    // of the condition, as it is to be; "": there is none yet
	written        bool      // and as it is on the node
	due            time.Time // when to write to the node; zero: nothing changes

	neighbours neighbours

	thorough   bool              // the round sends large packets
	thoroughAt time.Time         // when the next one does
	said       map[string]string // the last warning about each check, which is not repeated
}

// newRecheck continues a verification that has released the node, or has found it verified. What the condition of a verified node
// says holds until rounds prove otherwise: another container of this pod, or the controller, has written it.
func (v *verification) newRecheck() *recheck {
	r := &recheck{Agent: v.Agent, held: v.heldRequest(), node: v.node, said: make(map[string]string)}
	r.neighbours.r = r
	r.thoroughAt = time.Now().Add(rand.N(thoroughInterval))
	switch shown := r.shown(); {
	case !v.released && shown != "":
		r.status, r.written = shown, true
	case v.released && v.marker.reason == verdict.Verified:
		r.status, r.written = statusTrue, true
	case v.released:
		r.status, r.due = statusTrue, time.Now()
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
		runner := newRunner(r.cfg, r)
		runner.MaxRetries = 0
		began := time.Now()
		results, err := runner.Round(ctx, r.list())
		switch {
		case err != nil:
			return false // shutting down: no verdict
		case !nodepatch.IsVerified(r.node, r.held):
			r.log.Info("node is no longer verified: verifying it again")
			return true
		}
		r.conclude(results, began)
	}
	return false
}

// waitUntil waits for the next round. Until then it writes what is due.
func (r *recheck) waitUntil(ctx context.Context, next time.Time) bool {
	if least := time.Now().Add(r.cfg.RecheckInterval / 10); next.Before(least) { // a round may last longer than the interval
		next = least
	}
	for !r.due.IsZero() && r.due.Before(next) {
		if !sleep(ctx, time.Until(r.due)) || ctx.Err() != nil {
			return false
		}
		r.write(ctx)
	}
	return sleep(ctx, time.Until(next))
}

// list returns the checks of one round.
func (r *recheck) list() []checks.Check {
	r.thorough = !time.Now().Before(r.thoroughAt)
	list := r.checks(checks.API{Get: r.readNode})
	for i, check := range list {
		if service, ok := check.(checks.Service); ok {
			service.MaxDials, service.SmallPackets = recheckDials, !r.thorough
			list[i] = service
		}
	}
	if r.cfg.EnableConnectivityMatrix {
		list = append(list, checks.Peers{Sample: r.neighbours.sample, Found: r.neighbours.found})
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
		r.node, r.readAt = node, time.Now()
	}
	return report, err
}

// conclude counts a round. A single failure is a warning and nothing else. Only a node that was read in this round is known to
// be drained or going away: one that has lost its path to the API server may have been open for long.
func (r *recheck) conclude(results []checks.Result, began time.Time) {
	if why := nodepatch.Untouchable(r.node); why != "" && r.readAt.After(began) {
		r.log.WithField("reason", why).Debug("no verdict")
		r.passed, r.failed, r.due = 0, 0, time.Time{}
		return
	}
	if err := r.judge(results); err != nil {
		r.passed, r.failed, r.failure = 0, r.failed+1, err
		r.log.WithFields(logrus.Fields{"reason": brief(err), "failed": r.failed, "threshold": r.cfg.FailureThreshold}).
			Warn("recheck failed")
	} else {
		if r.status == statusTrue && r.written && r.shown() == statusFalse { // by the controller: prove it once more
			r.passed, r.written = 0, false
		}
		r.passed, r.failed = r.passed+1, 0
		if r.thorough { // after a failure the next round is thorough, too
			r.thoroughAt = time.Now().Add(spread(thoroughInterval))
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
	case r.due.IsZero() && r.needsWrite():
		r.due = time.Now()
	}
}

// turn changes the verdict.
func (r *recheck) turn(status string) {
	r.status, r.written, r.due = status, false, time.Now()
	r.metrics.SetRecheckStatus(status != statusFalse)
}

// needsWrite reports whether the node does not show the verdict: after a restart, a time in which nothing was to be written, or a
// failed taint that was added since.
func (r *recheck) needsWrite() bool {
	if r.status == statusFalse {
		return r.failed > 0
	}
	return r.passed >= r.cfg.RecoveryThreshold && (!r.written || r.closed())
}

// shown returns the status of the condition as last read: True, False or "".
func (r *recheck) shown() string {
	for _, condition := range r.node.Status.Conditions {
		if condition.Type == r.cfg.ConditionType && (condition.Status == statusTrue || condition.Status == statusFalse) {
			return condition.Status
		}
	}
	return ""
}

func (r *recheck) closed() bool { return nodepatch.HasFailedTaint(r.node, NewRequest(r.cfg)) }

// write shows the verdict on the node: with the condition, with the failed taint that it removes, and with an Event.
func (r *recheck) write(ctx context.Context) {
	err := r.readAgain(ctx)
	if err == nil && nodepatch.Untouchable(r.node) != "" {
		r.due = time.Time{}
		return
	}
	if err == nil && (r.status == statusFalse || !r.written) {
		err = r.setCondition(ctx)
		r.written = err == nil
	}
	if r.status == statusTrue && r.closed() { // whatever became of the condition: nothing delays it
		err = errors.Join(err, r.open(ctx))
	}
	sent := r.events.Flush(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil || !sent:
		r.due = time.Now().Add(spread(r.reportInterval))
		if nodepatch.IsFinal(err) {
			r.due = time.Now().Add(r.refresh)
		}
		if err != nil {
			r.log.WithError(err).Warn("cannot show the verdict on the node, will retry")
		}
	case r.status == statusFalse:
		r.due = time.Now().Add(r.refresh)
	default:
		r.due = time.Time{}
	}
}

// readAgain reads the node if the last read is old: rounds may be an hour apart.
func (r *recheck) readAgain(ctx context.Context) error {
	if time.Since(r.readAt) < time.Minute {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CheckTimeout)
	defer cancel()
	node, err := r.api.GetCached(ctx)
	if err == nil {
		r.node, r.readAt = node, time.Now()
	}
	return err
}

func (r *recheck) setCondition(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CheckTimeout)
	defer cancel()
	condition := nodepatch.Condition{Type: r.cfg.ConditionType, Status: r.status}
	condition.Reason, condition.Message = verdict.Verified, verdict.AllChecksPass
	if r.status == statusFalse {
		round, _ := errors.AsType[roundFailure](r.failure)
		condition.Reason, condition.Message = verdict.Reason(round.checks), kube.Shorten(r.message())
	}
	return r.api.SetCondition(ctx, r.node, condition, r.client.ServerTime())
}

// open removes the failed taint.
func (r *recheck) open(ctx context.Context) error {
	request := NewRequest(r.cfg)
	if err := r.patcher.RemoveFailedTaint(ctx, r.node, request); err != nil {
		return err
	}
	r.log.Info("failed taint removed: the node passes its rechecks")
	isFailed := func(taint nodepatch.Taint) bool { return taint.Key == request.FailedTaintKey }
	r.node.Spec.Taints = slices.DeleteFunc(r.node.Spec.Taints, isFailed)
	return nil
}

func (r *recheck) message() string { return "rechecks fail: " + r.failure.Error() }

// Attempted implements checks.Observer.
func (r *recheck) Attempted(attempt checks.Attempt) {
	r.metrics.Attempt(attempt.Check, attempt.Took)
	log := r.log.WithFields(logrus.Fields{"check": attempt.Check, "took": formatDuration(attempt.Took)})
	warnings := strings.Join(attempt.Report.Warnings, "; ")
	skipped := attempt.Report.Skipped
	isNew := r.said[attempt.Check] != warnings+skipped
	r.said[attempt.Check] = warnings + skipped
	switch {
	case attempt.Err != nil:
		log.WithError(attempt.Err).WithField("remedy", checks.Remedy(attempt.Err)).Warn("check failed")
	case warnings != "" && isNew:
		log.WithField("warning", warnings).Warn("check passed with a warning")
	case skipped != "" && isNew:
		log.WithField("reason", skipped).Info("check skipped")
	case skipped == "":
		log.WithField("detail", attempt.Report.Detail).Debug("check passed")
	}
}

// spread returns d ±20 %, so that thousands of nodes do not march in step.
func spread(d time.Duration) time.Duration {
	return time.Duration((0.8 + 0.4*rand.Float64()) * float64(d))
}
