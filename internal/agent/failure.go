package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/metrics"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Reported instead of a check name when no check fails, as is condition.ForeignTaints.
const (
	patching     = "patch"
	startupTaint = "late taint"
)

// failure is the last error of a check, of a wait or of the patch. The zero value is none.
type failure struct {
	subject string // the check, or what is reported instead
	err     error
}

// failed returns what to name as failed: no check where there is no failure, or where the patch has failed.
func (f failure) failed() []string {
	if f.subject == "" || f.subject == patching {
		return nil
	}
	return []string{f.subject}
}

func (f failure) String() string {
	if f.err == nil {
		return ""
	}
	text := f.subject + ": " + f.err.Error()
	if remedy := checks.Remedy(f.err); remedy != "" {
		text += " (" + remedy + ")"
	}
	return text
}

// roundFailure is a failed round: every layer that is broken, with the remedy to try first.
type roundFailure struct{ checks, reasons []string }

func (r roundFailure) Error() string { return strings.Join(r.reasons, "; ") }

// isOfNetwork reports whether a check of the network has failed, not the check node alone.
func (r roundFailure) isOfNetwork() bool { return slices.ContainsFunc(r.checks, isNetworkCheck) }

// isNetworkCheck tells the checks of the network from the check node, and from what else a node may wait for.
func isNetworkCheck(name string) bool { return slices.Contains(checks.Names(), name) }

// brief returns err without the details that the log has already.
func brief(err error) string {
	if round, ok := errors.AsType[roundFailure](err); ok {
		return "failed: " + strings.Join(round.checks, ", ")
	}
	return err.Error()
}

// failuresOf returns what has failed in a round.
func failuresOf(results []checks.Attempt) (failed roundFailure) {
	for _, result := range results {
		if result.Err != nil {
			failed.checks = append(failed.checks, result.Check)
			failed.reasons = append(failed.reasons, failure{result.Check, result.Err}.String())
		}
	}
	return failed
}

// judge counts the failed checks of a round. It returns nil if there are none.
func judge(failed roundFailure, count *metrics.Recorder) error {
	if len(failed.checks) == 0 {
		return nil
	}
	for _, check := range failed.checks {
		count.Failure(check)
	}
	return failed
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
	if _, checked := errors.AsType[roundFailure](err); checked {
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

func logAttempt(log *logrus.Entry, attempt checks.Attempt) {
	log = log.WithFields(logrus.Fields{"check": attempt.Check, "attempt": attempt.Number, "took": formatDuration(attempt.Took)})
	if attempt.AfterSign {
		log.Debug("a sign of recovery has ended the pause before this attempt")
	}
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

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	pause, end := context.WithTimeout(ctx, d)
	defer end()
	<-pause.Done()
	return ctx.Err() == nil
}

// formatDuration rounds a duration for a person.
func formatDuration(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// note is what a step tells the reporter: an attempt, a wait that begins, or, if it is empty, that the wait is over.
type note struct {
	attempt *checks.Attempt
	wait    failure
}

// finding is what a round has found: the checks that fail (none: the patch), and a text.
type finding struct {
	failed  []string
	message string
}

// sooner returns the earlier of two times, of which a may be zero: never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
