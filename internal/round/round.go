// Package round is what a round of checks has found, and how its attempts are logged: the same for agents and workers.
package round

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
)

// Failure is a failed round: every layer that is broken, with the remedy to try first.
type Failure struct{ Checks, Reasons []string }

func (f Failure) Error() string { return strings.Join(f.Reasons, "; ") }

// IsOfNetwork reports whether a check of the network has failed, not the check node alone.
func (f Failure) IsOfNetwork() bool { return slices.ContainsFunc(f.Checks, IsNetworkCheck) }

// IsNetworkCheck tells the checks of the network from the check node, and from whatever else a node may wait for.
func IsNetworkCheck(name string) bool { return slices.Contains(checks.Names(), name) }

// FailureOf returns what has failed in a round, nothing if it has passed.
func FailureOf(results []checks.Attempt) (failed Failure) {
	for _, result := range results {
		if result.Err != nil {
			failed.Checks = append(failed.Checks, result.Check)
			failed.Reasons = append(failed.Reasons, Describe(result.Check, result.Err))
		}
	}
	return failed
}

// Describe returns "SUBJECT: ERROR (REMEDY)".
func Describe(subject string, err error) string {
	text := subject + ": " + err.Error()
	if remedy := checks.Remedy(err); remedy != "" {
		text += " (" + remedy + ")"
	}
	return text
}

// LogAttempt logs an attempt of a check.
func LogAttempt(log *logrus.Entry, attempt checks.Attempt) {
	log = log.WithFields(logrus.Fields{"check": attempt.Check, "attempt": attempt.Number, "took": FormatDuration(attempt.Took)})
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
		log.WithField("retry_in", FormatDuration(attempt.RetryIn)).Warn("check failed, will retry")
	case attempt.Err != nil:
		log.Error("check failed")
	case attempt.Report.Skipped != "":
		log.WithField("reason", attempt.Report.Skipped).Info("check skipped")
	default:
		log.WithField("detail", attempt.Report.Detail).Info("check passed")
	}
}

// FormatDuration rounds a duration for a person.
func FormatDuration(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// Sleep waits for d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	pause, end := context.WithTimeout(ctx, d)
	defer end()
	<-pause.Done()
	return ctx.Err() == nil
}
