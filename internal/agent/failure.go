package agent

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
)

// Reported instead of a check name when no check fails.
const (
	patching      = "patch"
	foreignTaints = "taints"
	startupTaint  = "late taint"
)

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

// judge counts the failed checks of a round and returns them as a roundFailure.
func (d *deps) judge(results []checks.Attempt) error {
	failed := failuresOf(results)
	if len(failed.checks) == 0 {
		return nil
	}
	for _, check := range failed.checks {
		d.metrics.Failure(check)
	}
	return failed
}

func logAttempt(log *logrus.Entry, attempt checks.Attempt) {
	log = log.WithFields(logrus.Fields{"check": attempt.Check, "attempt": attempt.Number, "took": formatDuration(attempt.Took)})
	if attempt.Signed {
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
