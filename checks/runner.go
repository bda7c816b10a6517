package checks

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// jitter is the share by which a wait may be shorter or longer, so that nodes that started together do not stay in step.
const jitter = 0.1

// Attempt is one try of one check, as an Observer sees it.
type Attempt struct {
	Check   string
	Number  int // 1 for the first of its round
	Took    time.Duration
	Report  Report
	Err     error         // nil if the check passed or was skipped
	RetryIn time.Duration // until the next attempt; 0 if there is none in this round
}

// Observer receives every attempt when it ends, except those that a shutdown interrupted: they say nothing about the node.
type Observer interface{ Attempted(Attempt) }

// Result is the outcome of one check in a round.
type Result struct {
	Attempt        // the last one; Number is the count
	Diagnosis bool // tried only once, because an earlier check had failed
}

// Runner runs checks one after another, in rounds.
type Runner struct {
	Timeout    time.Duration // of one attempt
	MaxRetries int           // after the first attempt
	NewBackOff func() backoff.BackOff
	Observer   Observer
}

// Exponential waits 1, 2, 4, 8, 16 s, then 30 s each time.
func Exponential() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(time.Second), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(30*time.Second), backoff.WithRandomizationFactor(jitter),
		backoff.WithMaxElapsedTime(0), // never ends; the library's default is 15 minutes
	)
}

// Linear waits 1, 2, 3 s and so on, up to 30 s.
func Linear() backoff.BackOff { return &linear{} }

type linear struct{ n int }

func (l *linear) Reset() { l.n = 0 }

func (l *linear) NextBackOff() time.Duration {
	l.n = min(l.n+1, 30)
	spread := 1 + jitter*(2*rand.Float64()-1)
	return time.Duration(float64(l.n) * spread * float64(time.Second))
}

// Round runs every check in list. The first one without retries left fails the round; the later ones are tried once, so
// that the results name every broken layer. An error means that ctx ended first: the results are incomplete.
func (r Runner) Round(ctx context.Context, list []Check) ([]Result, error) {
	results := make([]Result, 0, len(list))
	failed := false
	for _, check := range list {
		retries := r.MaxRetries
		if failed || check.Name() == NodeName { // the same Node gets the same judgement
			retries = 0
		}
		result := Result{Attempt: r.retry(ctx, check, retries), Diagnosis: failed}
		if err := ctx.Err(); err != nil {
			return results, fmt.Errorf("round: %w", err)
		}
		failed = failed || result.Err != nil
		results = append(results, result)
	}
	return results, nil
}

// Longest returns the longest that a round of so many checks can take.
func (r Runner) Longest(number int) time.Duration {
	const slowest = (1 + jitter) / (1 - jitter) // the longest of a wait and the shortest that NextBackOff may return for it
	check, waits := r.Timeout, r.NewBackOff()
	for range r.MaxRetries {
		check += time.Duration(slowest*float64(waits.NextBackOff())) + r.Timeout
	}
	return time.Duration(number) * check
}

func (r Runner) retry(ctx context.Context, check Check, retries int) Attempt {
	var last Attempt
	attempt := func() error {
		attemptCtx, cancel := context.WithTimeout(ctx, r.Timeout)
		defer cancel()
		start := time.Now()
		report, err := check.Try(attemptCtx)
		if err != nil {
			err = worded{printable(err.Error()), err}
		}
		for i, warning := range report.Warnings {
			report.Warnings[i] = printable(warning)
		}
		took := cmp.Or(report.Took, time.Since(start))
		last = Attempt{Check: check.Name(), Number: last.Number + 1, Took: took, Report: report, Err: err}
		return err
	}
	ended := func(_ error, wait time.Duration) {
		last.RetryIn = wait
		if ctx.Err() == nil && r.Observer != nil {
			r.Observer.Attempted(last)
		}
	}
	// RetryNotify returns the error of ctx once that has ended: last keeps the check's. It does not notify of the last attempt.
	policy := backoff.WithContext(backoff.WithMaxRetries(r.NewBackOff(), uint64(retries)), ctx)
	_ = backoff.RetryNotify(attempt, policy, ended)
	ended(nil, 0)
	return last
}

// printable returns the first 2 kB of a text without control characters: others wrote parts of it, and a terminal may show it.
func printable(text string) string {
	const most = 2 << 10
	if len(text) > most {
		text = text[:most] + "..."
	}
	words := strings.FieldsFunc(strings.ToValidUTF8(text, ""), func(r rune) bool { return !strconv.IsPrint(r) })
	return strings.Join(words, " ")
}
