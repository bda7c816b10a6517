package main

import (
	"errors"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
)

// Attempted implements checks.Observer.
func (a *agent) Attempted(attempt checks.Attempt) {
	a.attempts[attempt.Check]++
	a.metrics.Attempt(attempt.Check, attempt.Took)
	if attempt.Err != nil {
		a.trouble.Store(&attempt)
	} else if last := a.trouble.Load(); last != nil && last.Check == attempt.Check {
		a.trouble.Store(nil)
	}
	logAttempt(a.log, attempt)
}

// judge counts the checks that failed a round, and returns what an operator has to know of them.
func (a *agent) judge(results []checks.Result) error {
	var failed notVerified
	for _, result := range results {
		if result.Err != nil {
			a.metrics.Failure(result.Check)
			failed.checks = append(failed.checks, result.Check)
			failed.reasons = append(failed.reasons, describe(result.Attempt))
		}
	}
	if len(failed.checks) == 0 {
		return nil
	}
	return failed
}

// notVerified is a failed round: every layer that is broken, with what to try first.
type notVerified struct{ checks, reasons []string }

func (n notVerified) Error() string { return strings.Join(n.reasons, "; ") }

// brief is err for a log whose lines before it have said the rest.
func brief(err error) string {
	var round notVerified
	if errors.As(err, &round) {
		return "failed: " + strings.Join(round.checks, ", ")
	}
	return err.Error()
}

func describe(a checks.Attempt) string {
	text := a.Check + ": " + a.Err.Error()
	if remedy := checks.Remedy(a.Err); remedy != "" {
		text += " (" + remedy + ")"
	}
	return text
}

func logAttempt(log *logrus.Entry, attempt checks.Attempt) {
	log = log.WithFields(logrus.Fields{"check": attempt.Check, "attempt": attempt.Number, "took": seconds(attempt.Took)})
	for _, warning := range attempt.Report.Warnings {
		log.WithField("warning", warning).Warn("check found a fault that does not hold the node back")
	}
	if attempt.Err != nil {
		log = log.WithField("remedy", checks.Remedy(attempt.Err)).WithError(attempt.Err)
	}
	switch {
	case attempt.RetryIn > 0:
		log.WithField("retry_in", seconds(attempt.RetryIn)).Warn("check failed: trying again")
	case attempt.Err != nil:
		log.Error("check failed")
	case attempt.Report.Skipped != "":
		log.WithField("reason", attempt.Report.Skipped).Info("check skipped")
	default:
		log.WithField("detail", attempt.Report.Detail).Info("check passed")
	}
}
