package checks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// jitter is the share by which a wait may be shorter or longer, so that a thousand nodes that
// started together do not ask together for ever.
const jitter = 0.1

// Attempt is one try of one check, as an Observer sees it.
type Attempt struct {
	Check  string
	Number int // 1 for the first of its round
	Took   time.Duration
	Report Report
	Err    error // nil where the check passed or was skipped
	// RetryIn is the wait until the next attempt; 0 where there is none in this round.
	RetryIn time.Duration
}

// Observer is told about every attempt as it ends. Attempts that were cut short because the agent
// was told to stop are not reported: they say nothing about the node.
type Observer interface {
	Attempted(Attempt)
}

// Result is what a round found out about one check.
type Result struct {
	Attempt        // the last one; Number is how many there were
	Diagnosis bool // asked once only, because a check before it had failed
}

// Runner runs checks one after another.
type Runner struct {
	Timeout    time.Duration // of one attempt
	MaxRetries int           // after the first attempt
	NewBackOff func() backoff.BackOff
	Observer   Observer
}

// Exponential waits 1, 2, 4, 8, 16 s, and 30 s from then on.
func Exponential() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(time.Second),
		backoff.WithMultiplier(2),
		backoff.WithMaxInterval(30*time.Second),
		backoff.WithRandomizationFactor(jitter),
		backoff.WithMaxElapsedTime(0), // the library's default would end it after 15 minutes
	)
}

// Linear waits 1, 2, 3 s, and so on, up to 30 s.
func Linear() backoff.BackOff { return &linear{} }

type linear struct{ n int }

func (l *linear) Reset() { l.n = 0 }

func (l *linear) NextBackOff() time.Duration {
	l.n = min(l.n+1, 30)
	spread := 1 + jitter*(2*rand.Float64()-1)
	return time.Duration(float64(l.n) * spread * float64(time.Second))
}

// Round runs every check in list. The first one that is out of retries fails the round; those
// after it are still tried once, so that the results name every layer that is broken.
// An error means that ctx ended first, and the results are not complete.
func (r *Runner) Round(ctx context.Context, list []Check) ([]Result, error) {
	results := make([]Result, 0, len(list))
	failed := false
	for _, check := range list {
		result := Result{Diagnosis: failed}
		if failed {
			result.Attempt = r.try(ctx, check, 1)
			r.observe(ctx, result.Attempt)
		} else {
			result.Attempt = r.retry(ctx, check)
		}
		if err := ctx.Err(); err != nil {
			return results, fmt.Errorf("round: %w", err)
		}
		failed = failed || result.Err != nil
		results = append(results, result)
	}
	return results, nil
}

// Passed tells whether no check of a round failed.
func Passed(results []Result) bool {
	for _, result := range results {
		if result.Err != nil {
			return false
		}
	}
	return true
}

func (r *Runner) retry(ctx context.Context, check Check) Attempt {
	var last Attempt
	attempt := func() error {
		last = r.try(ctx, check, last.Number+1)
		return last.Err
	}
	// The error that RetryNotify returns is ctx's own once that has ended, so last keeps the
	// check's. It does not call the function below after the final attempt either.
	policy := backoff.WithContext(backoff.WithMaxRetries(r.NewBackOff(), uint64(r.MaxRetries)), ctx)
	_ = backoff.RetryNotify(attempt, policy, func(_ error, wait time.Duration) {
		last.RetryIn = wait
		r.observe(ctx, last)
	})
	last.RetryIn = 0
	r.observe(ctx, last)
	return last
}

func (r *Runner) try(ctx context.Context, check Check, number int) Attempt {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	start := time.Now()
	report, err := check.Try(ctx)
	took := time.Since(start)
	if report.Took > 0 {
		took = report.Took
	}
	return Attempt{Check: check.Name(), Number: number, Took: took, Report: report, Err: err}
}

func (r *Runner) observe(ctx context.Context, a Attempt) {
	if ctx.Err() == nil && r.Observer != nil {
		r.Observer.Attempted(a)
	}
}
