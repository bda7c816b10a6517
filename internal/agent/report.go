package agent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/internal/verification"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// reporter says in the log, the metrics and Events how a verification goes. It decides nothing.
type reporter struct {
	*common
	attempts map[string]int // of each check
	repeats  repeats
}

// report says what an event has changed.
func (r *reporter) report(event verification.Event, before, after verification.State) {
	switch event := event.(type) {
	case verification.Attempted:
		r.attempts[event.Check]++
		r.metrics.Attempt(event.Check, event.Took)
		round.LogAttempt(r.log, event.Attempt)
	case verification.Failed:
		if r.repeats.isDue(event.Err) {
			r.events.Add(kube.EventWarning, verdict.NodeNotVerified, verdict.SinceMessage(before.Began, event.Err.Error()))
		}
		if before.IsOpen() && !after.IsOpen() {
			r.log.Warn("the startup taint is back on the opened node: INITIAL_TIMEOUT begins again")
		}
	case verification.Replaced:
		r.log.Warn("node was deleted and created again: restarting the checks")
		clear(r.attempts)
		clear(r.repeats)
	}
	if after.TimedOut && !before.TimedOut {
		r.log.WithField("reason", after.TimeoutMessage()).Error("initial timeout exceeded")
		r.events.Add(kube.EventWarning, verdict.NodeTimedOut, after.TimeoutMessage())
	}
	if why := after.OpenedBecause(); why != "" && before.OpenedBecause() == "" {
		r.log.WithField("reason", why).Warn("node opened: it is not verified, and the checks go on")
		r.events.Add(kube.EventWarning, verdict.NodeOpened, "the node takes pods although it is not verified (ON_TIMEOUT): "+why)
	}
	r.gauges(after)
}

func (r *reporter) gauges(s verification.State) {
	r.metrics.TimedOut(s.TimedOut)
	r.metrics.Opened(s.IsOpen())
}

// end reports the end of the verification.
func (r *reporter) end() { r.gauges(verification.State{}) }

// brief returns err without the details that the log has already.
func brief(err error) string {
	if failed, ok := errors.AsType[round.Failure](err); ok {
		return "failed: " + strings.Join(failed.Checks, ", ")
	}
	return err.Error()
}

// repeatAfter is when a failure that goes on is reported again, then after twice as long, and so on: a node that
// fails for an hour has a handful of Events.
const repeatAfter = 5 * time.Minute

// repeats are when each failure is reported again.
type repeats map[string]repeat

type repeat struct {
	at    time.Time
	after time.Duration
}

// isDue reports whether a failure is new, or goes on for so long that it is due for another Event.
func (r repeats) isDue(err error) bool {
	// Without the details, which change from round to round: ports, or the number of a request.
	key, _, _ := strings.Cut(err.Error(), ":")
	if _, checked := errors.AsType[round.Failure](err); checked {
		key = brief(err)
	} else if nodepatch.IsFinal(err) {
		key = fmt.Sprintf("%.120s", err) // who refuses it; the rest may have the number of a request
	}
	last := r[key] // zero, if it is new
	now := time.Now()
	if now.Before(last.at) {
		return false
	}
	after := max(repeatAfter, 2*last.after)
	r[key] = repeat{now.Add(after), after}
	return true
}
