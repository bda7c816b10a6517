package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/metrics"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// retryReport is the time until the next attempt to report a timeout, ±20 %.
const retryReport = 30 * time.Second

// note is what a step tells the reporter: an attempt, a wait that begins, or, if both are nil, that the wait is over.
type note struct {
	attempt *checks.Attempt
	wait    *failure
}

// reporter says how a verification goes: in the log, the metrics and Events, and on the node by its marker. It belongs to the
// goroutine that calls during; a step, which runs in another one, only sends notes.
type reporter struct {
	cfg           config.Config
	log           *logrus.Entry
	access        *nodeAccess
	marker        marker
	version       string
	metrics       *metrics.Recorder
	events        *kube.Events
	start         time.Time
	stop          context.CancelFunc // ends the verification: --once
	notes         chan note
	attempts      map[string]int  // of each check
	last          *failure        // until that check passes, or the wait is over
	checked       *nodepatch.Node // the one that the last round has read, nil before
	opening       opening
	repeats       repeats
	timeout       <-chan time.Time // INITIAL_TIMEOUT, and then the next attempt to report that it has passed
	isReleasing   bool             // a patch that releases the node is in flight: no marker is written
	releaseFailed bool             // a condition that is True may hide that: the next release writes it again
}

// begin starts INITIAL_TIMEOUT. With --once its end cancels the context that begin returns.
func (r *reporter) begin(parent context.Context) (ctx context.Context, end func()) {
	r.start = time.Now()
	r.beginTimeout()
	ctx, r.stop = context.WithCancel(parent)
	return ctx, func() {
		r.stop()
		r.metrics.TimedOut(false)
		r.metrics.Opened(false)
	}
}

// restart begins again for a Node of a new uid, which nobody has reported or marked. --once has one deadline.
func (r *reporter) restart(node *nodepatch.Node) {
	r.marker.tainted, r.marker.reason, r.last, r.checked = false, "", nil, node
	clear(r.repeats)
	if !r.cfg.Once {
		r.start = time.Now()
		r.beginTimeout()
	}
}

// during runs a step, and reports its attempts and waits, and the end of INITIAL_TIMEOUT. It returns the error of the step, after
// any write that began while the step ran.
func (r *reporter) during(ctx context.Context, step func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- step(ctx) }()
	for {
		select {
		case n := <-r.notes:
			r.take(n)
		case <-r.timeout:
			r.takeAll()
			r.reportTimeout(ctx)
		case err := <-done:
			r.takeAll()
			return err
		}
	}
}

func (r *reporter) takeAll() {
	for len(r.notes) > 0 { // nobody else receives
		r.take(<-r.notes)
	}
}

// take counts an attempt, and remembers the last failure.
func (r *reporter) take(n note) {
	attempt := n.attempt
	if attempt == nil {
		r.last, r.opening.at = n.wait, time.Time{}
		return
	}
	r.noteNetwork(*attempt)
	r.attempts[attempt.Check]++
	r.metrics.Attempt(attempt.Check, attempt.Took)
	// The other checks tell more than the check node.
	tellsLess := attempt.Check == checks.NodeName && r.last != nil && isNetworkCheck(r.last.subject)
	if attempt.Err != nil && !tellsLess {
		r.last = &failure{attempt.Check, attempt.Err}
	} else if r.last != nil && r.last.subject == attempt.Check {
		r.last = nil
	}
	logAttempt(r.log, *attempt)
}

// failed reports a failed round or patch, before the next round. The node is as last read, nil before.
func (r *reporter) failed(ctx context.Context, node *nodepatch.Node, err error, nextRound time.Duration) {
	r.log.WithFields(logrus.Fields{"reason": brief(err), "next_round_in": formatDuration(nextRound)}).Error("node not verified")
	round, checked := errors.AsType[roundFailure](err)
	if !checked {
		r.last = &failure{patching, err}
	}
	if r.repeats.isDue(err) {
		r.events.Add(kube.EventWarning, verdict.NodeNotVerified, verdict.SinceMessage(r.start, err.Error()))
	}
	r.marker.removeStrayFailedTaint(ctx, node)
	r.checked = node
	if !round.isOfNetwork() {
		r.opening.at = time.Time{}
	}
	r.follow(node)
	wasShown := r.marker.reason != "" // a True from before is taken back at once
	if r.marker.timedOut || wasShown || checked && r.cfg.ShowsEachVerdict() {
		r.mark(ctx, round.checks, err.Error())
	}
}

// reportTimeout reports that INITIAL_TIMEOUT has passed, also in the middle of an attempt. What cannot be written is
// tried again: there may be no further round (a foreign taint that stays). The rounds go on, except with --once.
func (r *reporter) reportTimeout(ctx context.Context) {
	r.timeout = nil
	failure := ""
	var failed []string
	if r.last != nil {
		failure = r.last.String()
		if r.last.subject != patching {
			failed = []string{r.last.subject}
		}
	}
	message := verdict.TimeoutMessage(r.cfg.InitialTimeout, failure)
	if r.cfg.Once {
		ctx = context.WithoutCancel(ctx)
		r.stop()
	}
	if !r.marker.timedOut {
		r.marker.timedOut = true
		r.metrics.TimedOut(true)
		r.log.WithField("reason", message).Error("initial timeout exceeded")
		r.events.Add(kube.EventWarning, verdict.NodeTimedOut, message)
	}
	awaitsTaint := r.last != nil && r.last.subject == startupTaint
	switch {
	case r.isReleasing || awaitsTaint || !r.mark(ctx, failed, message): // tried again: there may be no further round
		r.timeout = time.After(recheck.Spread(retryReport, rand.Float64()))
	case time.Now().Before(r.opening.at):
		r.timeout = time.After(time.Until(r.opening.at))
	}
}

// mark shows on the node that it is not verified. It reports whether nothing is left to write.
func (r *reporter) mark(ctx context.Context, failed []string, message string) bool {
	// Each policy reads the node and writes once.
	ctx, cancel := context.WithTimeout(ctx, time.Duration(2*len(r.cfg.OnTimeout))*r.cfg.CheckTimeout)
	defer cancel()
	if ctx.Err() != nil {
		return false
	}
	marked, err := r.marker.showFailure(ctx, failed, message)
	log := r.log.WithFields(logrus.Fields{"policy": strings.Join(r.cfg.OnTimeout, ","), "reason": verdict.Reason(failed)})
	if marked {
		log.Warn("node marked as failed")
	}
	if err != nil {
		log.WithError(err).Warn("cannot mark the node as failed, will retry (ON_TIMEOUT needs rights that the chart grants)")
	}
	isOpen := r.open(ctx, failed) // also where the condition is refused
	return err == nil && isOpen
}

// markVerified shows on the node that it is verified. It reports whether a retry is of no use.
func (r *reporter) markVerified(ctx context.Context, node *nodepatch.Node) bool {
	err := r.marker.showVerified(ctx, node)
	if err != nil {
		r.log.WithError(err).Warn("cannot write the condition of the verified node (CONDITION needs rights that the chart grants)")
	}
	return err == nil || (nodepatch.IsFinal(err) && !r.marker.showsFailure(node))
}

// annotation says when, how and in which boot the node was verified, and which taints its release removes.
func (r *reporter) annotation(node *nodepatch.Node, now time.Time) func(*nodepatch.Node, []nodepatch.Taint) string {
	var required []string
	for _, e := range r.cfg.Require {
		if e.IsFor(node) {
			required = append(required, e.String())
		}
	}
	return func(last *nodepatch.Node, removed []nodepatch.Taint) string {
		return verdict.Record{Time: now.UTC().Format(time.RFC3339), Duration: formatDuration(now.Sub(r.start)),
			Attempts: r.attempts, Removed: nodepatch.FormatTaints(removed), Required: required, Version: r.version,
			BootID: node.Status.NodeInfo.BootID}.Keeping(last.Annotations[nodepatch.Annotation], r.cfg.FailedTaintKey).String()
	}
}

// released reports the released node. The DaemonSet controller deletes this pod as soon as it sees the
// label, so the condition and the Event are finished first, whether ctx has ended or not: --once within CHECK_TIMEOUT and 2 s.
func (r *reporter) released(ctx context.Context, node *nodepatch.Node, removed []nodepatch.Taint) {
	limit := r.cfg.CheckTimeout + 2*time.Second
	if !r.cfg.Once {
		limit *= 2
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	took := time.Since(r.start)
	r.metrics.Verified(time.Now(), took)
	what := "no startup taint found"
	if len(removed) > 0 {
		what = "removed " + strings.Join(nodepatch.FormatTaints(removed), ", ")
	}
	log := r.log.WithFields(logrus.Fields{"took": formatDuration(took), "taints": what})
	if left := r.access.remaining(node); len(left) > 0 {
		log = log.WithField("remaining_taints", strings.Join(nodepatch.FormatTaints(left), ", "))
	}
	log.Info("node verified")
	isStartup := func(taint nodepatch.Taint) bool { return taint.Key != r.cfg.FailedTaintKey }
	hasCondition := node.Status.Conditions.Of(r.cfg.ConditionType).Type != "" // a node that was never gated gets none
	if (r.marker.reason != verdict.Verified || r.releaseFailed) && (slices.ContainsFunc(removed, isStartup) || hasCondition) {
		for range 3 {
			if r.markVerified(ctx, node) || !sleep(ctx, time.Second) {
				break
			}
		}
	}
	r.events.Add(kube.EventNormal, verdict.NodeVerified, verdict.AllChecksPass+"; verified in "+formatDuration(took)+"; "+what)
	r.events.Flush(ctx)
}
