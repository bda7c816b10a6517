package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/metrics"
)

// retryReport is the time until the next attempt to report a timeout, ±20 %.
const retryReport = 30 * time.Second

// reporter says how a verification goes: in the log, the metrics and Events, and on the node by its marker and its opener. It
// belongs to the goroutine that calls during; a step, which runs in another one, only sends notes.
type reporter struct {
	cfg         config.Config
	log         *logrus.Entry
	metrics     *metrics.Recorder
	events      *kube.Events
	marker      *marker
	opener      *opener
	start       time.Time
	notes       chan note
	attempts    map[string]int // of each check
	last        failure        // until that check passes, or the wait is over
	unwritten   finding        // of the last round, which could not be written to the node
	repeats     repeats
	hasTimedOut bool               // INITIAL_TIMEOUT has passed
	timesOut    time.Time          // INITIAL_TIMEOUT
	due         time.Time          // of INITIAL_TIMEOUT, a retry or the opening, also in the middle of a step; zero: never
	stop        context.CancelFunc // ends the verification: --once
}

// begin starts INITIAL_TIMEOUT. The Node may not have been read yet. With --once, the timeout cancels the returned context.
func (r *reporter) begin(parent context.Context, s seen) (ctx context.Context, end func()) {
	r.start = time.Now()
	r.beginTimeout()
	r.marker.notice(s)
	r.opener.takeRound(s.node)
	ctx, r.stop = context.WithCancel(parent)
	return ctx, func() {
		r.stop()
		r.metrics.TimedOut(false)
		r.metrics.Opened(false)
	}
}

// restart begins again for a Node of a new uid, which nobody has reported or marked. --once has one deadline.
func (r *reporter) restart(s seen) {
	r.marker.forget()
	r.marker.notice(s)
	r.opener.begin(s.node)
	r.last, r.unwritten = failure{}, finding{}
	clear(r.repeats)
	if !r.cfg.Once {
		r.start = time.Now()
		r.beginTimeout()
	}
}

func (r *reporter) beginTimeout() {
	r.timesOut = time.Now().Add(r.cfg.InitialTimeout)
	r.hasTimedOut, r.due, r.unwritten = false, r.timesOut, finding{}
	r.metrics.TimedOut(false)
}

// during runs a step, reports its attempts and waits, and acts when something is due. mayMark is false for the patch that
// releases the node: no marker is written beside it. It returns the error of the step, after any write that began while the step
// ran.
func (r *reporter) during(ctx context.Context, mayMark bool, step func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- step(ctx) }()
	for {
		select {
		case n := <-r.notes:
			r.take(n)
			if isWaiting := n.wait.subject == condition.ForeignTaints; isWaiting && r.marker.reasons == condition.Verified {
				r.show(ctx, finding{n.wait.failed(), n.wait.String()}) // a True from before is taken back
			}
		case <-r.duePasses():
			r.takeAll()
			r.actWhenDue(ctx, mayMark)
		case err := <-done:
			r.takeAll()
			return err
		}
	}
}

// duePasses returns a channel for the moment that is due.
func (r *reporter) duePasses() <-chan time.Time {
	if r.due.IsZero() {
		return nil
	}
	return time.After(time.Until(r.due))
}

func (r *reporter) takeAll() {
	for len(r.notes) > 0 { // nobody else receives
		r.take(<-r.notes)
	}
}

// take counts an attempt, and remembers the last failure.
func (r *reporter) take(n note) {
	if n.attempt == nil {
		r.last = n.wait
		r.forgetNetwork()
		return
	}
	attempt := *n.attempt
	isFirst := r.opener.noteNetwork(attempt)
	if isFirst && r.due.IsZero() { // else setNext looks at it
		r.due = r.opener.at
	}
	r.attempts[attempt.Check]++
	r.metrics.Attempt(attempt.Check, attempt.Took)
	// The other checks tell more than the check node.
	tellsLess := attempt.Check == checks.NodeName && isNetworkCheck(r.last.subject)
	if attempt.Err != nil && !tellsLess {
		r.last = failure{attempt.Check, attempt.Err}
	} else if r.last.subject == attempt.Check {
		r.last = failure{}
	}
	logAttempt(r.log, attempt)
}

// forgetNetwork notes that the network checks have passed, or that their failure does not count.
func (r *reporter) forgetNetwork() {
	if r.hasTimedOut && r.due.Equal(r.opener.at) {
		r.due = time.Time{}
	}
	r.opener.forgetFailure()
	r.unwritten = finding{}
}

// failed reports a failed round or patch, before the next round. The node is as last seen.
func (r *reporter) failed(ctx context.Context, s seen, err error, nextRound time.Duration) {
	r.log.WithFields(logrus.Fields{"reason": brief(err), "next_round_in": formatDuration(nextRound)}).Error("node not verified")
	round, isOfRound := errors.AsType[roundFailure](err)
	switch {
	case !isOfRound:
		r.last = failure{patching, err}
	case r.last.subject == "": // lost between the checks and the release
		r.last = failure{round.checks[0], err}
	}
	if r.repeats.isDue(err) {
		r.events.Add(kube.EventWarning, verdict.NodeNotVerified, verdict.SinceMessage(r.start, err.Error()))
	}
	r.marker.notice(s)
	r.marker.removeStrayFailedTaint(ctx, s.node)
	if !round.isOfNetwork() {
		r.forgetNetwork()
	}
	if r.opener.takeRound(s.node) {
		r.log.Warn("the startup taint is back on the opened node: INITIAL_TIMEOUT begins again")
		r.beginTimeout()
	}
	showsVerdict := isOfRound && r.cfg.ShowsEachVerdict()
	hasCondition := r.marker.reasons != 0 // a True from before is taken back at once
	if r.hasTimedOut || showsVerdict || hasCondition {
		r.show(ctx, finding{round.checks, err.Error()})
	}
}

// show writes what was found to the node, and sets what is due next.
func (r *reporter) show(ctx context.Context, found finding) {
	isWritten := r.mark(ctx, found)
	if !isWritten {
		r.unwritten = found
	}
	r.setNext(isWritten)
}

// actWhenDue acts on what is due, also in the middle of an attempt: it reports the end of INITIAL_TIMEOUT, and
// writes to the node what is due. The rounds go on, except with --once.
func (r *reporter) actWhenDue(ctx context.Context, mayMark bool) {
	found := finding{r.last.failed(), verdict.TimeoutMessage(r.cfg.InitialTimeout, r.last.String())}
	isTimeout := !r.hasTimedOut && !time.Now().Before(r.timesOut)
	switch {
	case isTimeout:
		r.hasTimedOut = true
		r.metrics.TimedOut(true)
		r.log.WithField("reason", found.message).Error("initial timeout exceeded")
		r.events.Add(kube.EventWarning, verdict.NodeTimedOut, found.message)
		if r.cfg.Once {
			ctx = context.WithoutCancel(ctx)
			r.stop()
		}
	case r.unwritten.message != "":
		found = r.unwritten
	case !r.hasTimedOut: // what was to be tried again is not so any more
		r.setNext(true)
		return
	}
	allPass := r.last.subject == startupTaint // the node only waits for it
	r.setNext(mayMark && !allPass && r.mark(ctx, found))
}

// setNext sets what is due after a write to the node.
func (r *reporter) setNext(isWritten bool) {
	now := time.Now()
	r.due = time.Time{}
	if !isWritten { // there may be no further round: a foreign taint that stays
		r.due = now.Add(recheck.Spread(retryReport, rand.Float64()))
	}
	if now.Before(r.opener.at) {
		r.due = sooner(r.due, r.opener.at)
	}
	if !r.hasTimedOut { // it may have passed during a write
		r.due = sooner(r.due, r.timesOut)
	}
}

// mark shows on the node that it is not verified, and opens it when that is due. It reports whether nothing is left to write.
func (r *reporter) mark(ctx context.Context, found finding) bool {
	// Without a conflict, each policy, and the condition that rechecks need, takes at most three requests. After one, the retry
	// writes whatever is left.
	ctx, cancel := context.WithTimeout(ctx, time.Duration(3*(len(r.cfg.OnTimeout)+1))*r.cfg.CheckTimeout)
	defer cancel()
	if ctx.Err() != nil {
		return false
	}
	marked, err := r.marker.showFailure(ctx, found.failed, found.message, r.hasTimedOut)
	log := r.log.WithFields(logrus.Fields{"policy": strings.Join(r.cfg.OnTimeout, ","), "reason": condition.OfChecks(found.failed)})
	if marked {
		log.Warn("node marked as failed")
	}
	if err != nil {
		log.WithError(err).Warn("cannot mark the node as failed, will retry (ON_TIMEOUT needs rights that the chart grants)")
	}
	if r.hasTimedOut && r.opener.isDue() { // also where the condition is refused
		err = errors.Join(err, r.opener.open(ctx, found.failed))
	}
	if err == nil {
		r.unwritten = finding{}
	}
	return err == nil
}
