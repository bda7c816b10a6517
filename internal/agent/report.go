package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Reasons of the agent's Events, a closed set.
const (
	reasonTimedOut  = "NodeVerificationTimedOut"
	reasonFailed    = "NodeRecheckFailed"
	reasonRecovered = "NodeRecovered"
)

// Reported instead of a check name when no check fails.
const (
	patching      = "patch"
	foreignTaints = "taints"
	startupTaint  = "late taint"
)

// repeatAfter is when a failure that goes on is reported again, then after twice as long, and so on: a node that
// fails for an hour has a handful of Events.
const repeatAfter = 5 * time.Minute

// reportInterval is the time until the next attempt to report a timeout, ±20 %.
const reportInterval = 30 * time.Second

// repeat is when a failure is reported again.
type repeat struct {
	at    time.Time
	after time.Duration
}

// failure is the last error of a check, of a wait or of the patch.
type failure struct {
	subject string // the check, or what is reported instead
	err     error
}

func (f failure) String() string {
	text := f.subject + ": " + f.err.Error()
	if remedy := checks.Remedy(f.err); remedy != "" {
		text += " (" + remedy + ")"
	}
	return text
}

// roundFailure is a failed round: every layer that is broken, with the remedy to try first.
type roundFailure struct{ checks, reasons []string }

func (r roundFailure) Error() string { return strings.Join(r.reasons, "; ") }

// brief returns err without the details that the log has already.
func brief(err error) string {
	if round, ok := errors.AsType[roundFailure](err); ok {
		return "failed: " + strings.Join(round.checks, ", ")
	}
	return err.Error()
}

// Attempted implements checks.Observer. It is called by the step that runs.
func (v *verification) Attempted(attempt checks.Attempt) { v.attempted <- attempt }

// record counts an attempt and remembers the last failure.
func (v *verification) record(attempt checks.Attempt) {
	v.attempts[attempt.Check]++
	v.metrics.Attempt(attempt.Check, attempt.Took)
	if attempt.Err != nil {
		v.lastFailure = &failure{attempt.Check, attempt.Err}
		v.proof = nil // an earlier one of this process does not hold any more
	} else if last := v.lastFailure; last != nil && last.subject == attempt.Check {
		v.lastFailure = nil
	}
	logAttempt(v.log, attempt)
}

// judge counts the failed checks of a round and returns them as a roundFailure.
func (a *Agent) judge(results []checks.Result) error {
	var failed roundFailure
	for _, result := range results {
		if result.Err != nil {
			a.metrics.Failure(result.Check)
			failed.checks = append(failed.checks, result.Check)
			failed.reasons = append(failed.reasons, failure{result.Check, result.Err}.String())
		}
	}
	if len(failed.checks) == 0 {
		return nil
	}
	return failed
}

// reportFailure reports a failed round or patch, before the next round.
func (v *verification) reportFailure(ctx context.Context, err error, nextRound time.Duration) {
	v.log.WithFields(logrus.Fields{"reason": brief(err), "next_round_in": formatDuration(nextRound)}).Error("node not verified")
	round, checked := errors.AsType[roundFailure](err)
	if !checked {
		v.lastFailure = &failure{patching, err}
	}
	if v.isDue(err) {
		v.events.Add(kube.EventWarning, verdict.NodeNotVerified, fmt.Sprintf("since %s: %v", v.start.UTC().Format(time.RFC3339), err))
	}
	v.events.Flush(ctx)
	v.removeLoneFailedTaint(ctx)
	if v.timedOut || v.shownVerified {
		v.mark(ctx, round.checks, err.Error())
	}
}

// isDue reports whether a failure is new, or goes on for so long that it is due for another Event.
func (v *verification) isDue(err error) bool {
	// Without the details, which change from round to round: ports, or the number of a request.
	key := patching
	if _, checked := errors.AsType[roundFailure](err); checked {
		key = brief(err)
	}
	last, seen := v.reported[key]
	now := time.Now()
	if seen && now.Before(last.at) {
		return false
	}
	after := repeatAfter
	if seen {
		after = 2 * last.after
	}
	v.reported[key] = repeat{now.Add(after), after}
	return true
}

// reportTimeout reports that INITIAL_TIMEOUT has passed, also in the middle of an attempt. What cannot be written is
// tried again: there may be no further round (a foreign taint that stays). The rounds go on, except with --once.
func (v *verification) reportTimeout(ctx context.Context) {
	v.timeout = nil
	message := "not verified within " + v.cfg.InitialTimeout.String()
	var failed []string
	if v.lastFailure != nil {
		message += ": " + v.lastFailure.String()
		if v.lastFailure.subject != patching {
			failed = []string{v.lastFailure.subject}
		}
	}
	if v.cfg.Once {
		ctx = context.WithoutCancel(ctx)
		v.stop()
	}
	if !v.timedOut {
		v.timedOut = true
		v.metrics.TimedOut(true)
		v.log.WithField("reason", message).Error("initial timeout passed")
		v.events.Add(kube.EventWarning, reasonTimedOut, message)
	}
	done := v.events.Flush(ctx)
	if !v.releasing && (v.lastFailure == nil || v.lastFailure.subject != startupTaint) {
		done = v.mark(ctx, failed, message) && done
	}
	if !done {
		v.timeout = time.After(time.Duration((0.8 + 0.4*rand.Float64()) * float64(v.reportInterval)))
	}
}

// announce reports the released node. The DaemonSet controller deletes this pod as soon as it sees the label, so the
// condition and the Event are finished first, whether ctx has ended or not: --once within CHECK_TIMEOUT and 2 s.
func (v *verification) announce(ctx context.Context, removed []nodepatch.Taint) {
	limit := v.cfg.CheckTimeout + 2*time.Second
	if !v.cfg.Once {
		limit *= 2
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	took := time.Since(v.start)
	v.metrics.Verified(time.Now(), took)
	what := "no startup taint found"
	if len(removed) > 0 {
		what = "removed " + strings.Join(nodepatch.FormatTaints(removed), ", ")
	}
	log := v.log.WithFields(logrus.Fields{"took": formatDuration(took), "taints": what})
	if left := v.remaining(); len(left) > 0 {
		log = log.WithField("remaining_taints", strings.Join(nodepatch.FormatTaints(left), ", "))
	}
	log.Info("node verified")
	isStartup := func(taint nodepatch.Taint) bool { return taint.Key != v.cfg.FailedTaintKey }
	if (!v.shownVerified || v.releaseFailed) && (slices.ContainsFunc(removed, isStartup) || v.hasCondition()) {
		retry(ctx, v.markVerified)
	}
	v.events.Add(kube.EventNormal, verdict.NodeVerified, verdict.AllChecksPass+"; verified in "+formatDuration(took)+"; "+what)
	retry(ctx, v.events.Flush)
}

// remaining returns the taints that still repel pods after the release.
func (v *verification) remaining() []nodepatch.Taint {
	return slices.DeleteFunc(slices.Clone(v.node.Spec.Taints), func(taint nodepatch.Taint) bool {
		return v.request.Removes(taint) || (taint.Effect != "NoSchedule" && taint.Effect != "NoExecute")
	})
}

func logAttempt(log *logrus.Entry, attempt checks.Attempt) {
	log = log.WithFields(logrus.Fields{"check": attempt.Check, "attempt": attempt.Number, "took": formatDuration(attempt.Took)})
	for _, warning := range attempt.Report.Warnings {
		log.WithField("warning", warning).Warn("check passed with a warning")
	}
	if attempt.Err != nil {
		log = log.WithField("remedy", checks.Remedy(attempt.Err)).WithError(attempt.Err)
	}
	switch {
	case attempt.RetryIn > 0:
		log.WithField("retry_in", formatDuration(attempt.RetryIn)).Warn("check failed, will retry")
	case attempt.Err != nil:
		log.Error("check failed")
	case attempt.Report.Skipped != "":
		log.WithField("reason", attempt.Report.Skipped).Info("check skipped")
	default:
		log.WithField("detail", attempt.Report.Detail).Info("check passed")
	}
}

// retry calls f up to three times, a second apart, until it returns true or ctx ends.
func retry(ctx context.Context, f func(context.Context) bool) {
	for range 3 {
		if f(ctx) || !sleep(ctx, time.Second) {
			return
		}
	}
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// formatDuration rounds a duration for a person.
func formatDuration(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}
