package agent

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/ownnode"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/internal/verification"
)

// loop runs the steps of a verification, one at a time in a goroutine of its own, and beside the step writes to the Node what is
// due. One goroutine owns it and its State; a step only sends events.
type loop struct {
	*common
	state    verification.State
	happened chan verification.Event // from the step
	report   *reporter
	marker   *marker
	opener   *opener
	stop     context.CancelFunc // ends the verification: --once
}

// begin begins the timeout. The Node may not have been read yet.
func (l *loop) begin(seen ownnode.Seen) {
	settings := verification.Settings{InitialTimeout: l.cfg.InitialTimeout, Once: l.cfg.Once, Keys: l.access.Keys,
		Opens: slices.Contains(l.cfg.OnTimeout, config.OnTimeoutOpen), Random: rand.Float64}
	l.state = verification.Begin(settings, verification.Read(seen.Node, l.access.Keys), l.state.Proven, time.Now())
	l.marker.notice(seen)
	l.report.gauges(l.state)
}

// restart begins again for a Node of a new uid, which was neither reported nor marked.
func (l *loop) restart(seen ownnode.Seen) {
	l.marker.forget()
	l.marker.notice(seen)
	l.apply(verification.Replaced{Facts: verification.Read(seen.Node, l.access.Keys)})
}

// failed takes a failed round, or a failed patch if no check has failed, and shows it on the Node as last seen.
func (l *loop) failed(ctx context.Context, seen ownnode.Seen, of round.Failure, err error) {
	l.marker.notice(seen)
	showsEach := len(of.Checks) > 0 && l.cfg.ShowsEachVerdict()
	l.apply(verification.Failed{Round: of, Err: err, Facts: verification.Read(seen.Node, l.access.Keys),
		Corrects: showsEach || l.marker.shown.isWritten()})
	l.marker.removeStrayFailedTaint(ctx, seen.Node)
	if l.state.IsDue(time.Now()) {
		l.tick(ctx)
	}
}

// during runs a step, and returns its error after any write that began while it ran.
func (l *loop) during(ctx context.Context, step func(context.Context) error) error {
	go func() { l.happened <- verification.Ended{Err: step(ctx)} }()
	for {
		switch event := l.next().(type) {
		case verification.Ended:
			return event.Err
		case verification.Tick:
			l.tick(ctx)
		case verification.Waits:
			l.marker.uid = cmp.Or(event.UID, l.marker.uid) // the first read may have failed
			// A True from before is taken back.
			event.Corrects = event.Subject == condition.ForeignTaints && l.marker.shown.hidesFailure()
			l.apply(event)
		default:
			l.apply(event)
		}
	}
}

// next waits for the next event. What the step has sent comes before a Tick that is due.
func (l *loop) next() verification.Event {
	var due <-chan time.Time
	if at := l.state.Next(); !at.IsZero() {
		due = time.After(time.Until(at))
	}
	select {
	case event := <-l.happened:
		return event
	case <-due:
	}
	select {
	case event := <-l.happened:
		return event
	default:
		return verification.Tick{}
	}
}

// apply changes the State by an event, and reports what that has changed.
func (l *loop) apply(event verification.Event) {
	before := l.state
	l.state = before.After(event, time.Now())
	l.report.report(event, before, l.state)
}

// tick writes to the Node what is due, also in the middle of a step. With --once the verification ends when it times out.
func (l *loop) tick(ctx context.Context) {
	hadTimedOut := l.state.TimedOut
	l.apply(verification.Tick{})
	if l.cfg.Once && l.state.TimedOut && !hadTimedOut {
		ctx = context.WithoutCancel(ctx)
		l.stop()
	}
	now := time.Now()
	if show := l.state.Shows(now); show.Finding.Message != "" {
		err := l.write(ctx, show)
		l.apply(verification.Wrote{Began: now, Err: err})
	}
}

// write shows on the node that it is not verified, and opens it if that is due.
func (l *loop) write(ctx context.Context, show verification.Show) error {
	// Without a conflict, each policy, and the condition that rechecks need, takes at most three requests. After one, the retry
	// writes whatever is left.
	ctx, cancel := context.WithTimeout(ctx, time.Duration(3*(len(l.cfg.OnTimeout)+1))*l.cfg.CheckTimeout)
	defer cancel()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	marked, err := l.marker.showFailure(ctx, show.Finding, l.state.TimedOut)
	policy, reasons := strings.Join(l.cfg.OnTimeout, ","), condition.OfChecks(show.Finding.Failed)
	log := l.log.WithFields(logrus.Fields{"policy": policy, "reason": reasons})
	if marked {
		log.Warn("node marked as failed")
	}
	if err != nil {
		log.WithError(err).Warn("cannot mark the node as failed, will retry (ON_TIMEOUT needs rights that the chart grants)")
	}
	if show.Open { // also if the condition is refused
		opened, failure := l.opener.open(ctx, l.state, show.Finding.Failed)
		l.apply(opened)
		if failure != nil {
			l.log.WithError(failure).Warn("the node is not opened, will retry (ON_TIMEOUT)")
		}
		err = errors.Join(err, failure)
	}
	return err
}
