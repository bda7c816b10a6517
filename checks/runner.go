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

// Attempt is one try of one check.
type Attempt struct {
	Check     string
	Number    int // 1 for the first of its round; in the results of Round how many there were
	Took      time.Duration
	Report    Report
	Err       error         // nil if the check passed or was skipped
	RetryIn   time.Duration // until the next attempt; 0 if there is none in this round
	AfterSign bool          // a sign has ended the pause before it
}

// Runner runs checks one after another, in rounds. Between rounds it remembers what is known of each check that fails.
type Runner struct {
	Timeout    time.Duration // of one attempt
	MaxRetries int           // after the first attempt
	NewBackOff func() backoff.BackOff
	// Observe receives each attempt when it ends, but not one that a shutdown interrupted, which says nothing about the node.
	// nil: nobody does.
	Observe func(Attempt)

	outages map[string]*outage // by check
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
	return time.Duration(float64(l.n) * (1 + jitter*(2*rand.Float64()-1)) * float64(time.Second))
}

// Round runs every check in list, and returns the last attempt of each. The first one without retries left fails the round; the
// later ones are tried once, so that the results name every broken layer. An error means that ctx ended first: the results are
// incomplete.
func (r *Runner) Round(ctx context.Context, list []Check) ([]Attempt, error) {
	results := make([]Attempt, 0, len(list))
	failed := false
	for _, check := range list {
		retries := r.MaxRetries
		if failed || check.Name() == NodeName { // the same Node gets the same judgement
			retries = 0
		}
		result := r.retry(ctx, check, retries)
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

// Pause waits for d between two rounds, or until there is a sign that the first of the checks that have failed would pass now.
// It returns false if ctx has ended.
func (r *Runner) Pause(ctx context.Context, failed []string, d time.Duration) bool {
	first := new(outage) // nothing has failed: it only waits
	if len(failed) > 0 {
		first = r.outageOf(failed[0])
	}
	return first.wait(ctx, d)
}

func (r *Runner) outageOf(check string) *outage {
	if r.outages == nil {
		r.outages = make(map[string]*outage)
	}
	if r.outages[check] == nil {
		r.outages[check] = new(outage)
	}
	return r.outages[check]
}

// retry makes one attempt, and more while it fails and there are retries, with a pause before each.
func (r *Runner) retry(ctx context.Context, check Check, retries int) Attempt {
	waits := r.NewBackOff()
	outage := r.outageOf(check.Name())
	for number := 1; ; number++ {
		attempt := r.attempt(ctx, check, outage)
		attempt.Number = number
		isRetried := attempt.Err != nil && number <= retries
		if isRetried {
			attempt.RetryIn = waits.NextBackOff()
		}
		if ctx.Err() == nil && r.Observe != nil {
			r.Observe(attempt)
		}
		if !isRetried || !outage.wait(ctx, attempt.RetryIn) {
			return attempt
		}
	}
}

func (r *Runner) attempt(ctx context.Context, check Check, outage *outage) Attempt {
	start := time.Now()
	attempt := Attempt{Check: check.Name(), AfterSign: outage.signCame}
	ctx, cancel := context.WithTimeout(withPacing(ctx, outage.pacing(start, r.Timeout)), r.Timeout)
	defer cancel()
	report, err := check.Try(ctx)
	if err == nil {
		outage.passed()
	} else {
		outage.failed(start, err)
		attempt.Err = &Failure{Cause: err, text: printable(err.Error())}
	}
	for i, warning := range report.Warnings {
		report.Warnings[i] = printable(warning)
	}
	attempt.Report, attempt.Took = report, cmp.Or(report.Took, time.Since(start))
	return attempt
}

// printable returns the first 2 kB of a text without control characters: others wrote parts of it, and a terminal may show it.
func printable(text string) string {
	const most = 2 << 10
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, ""), func(r rune) bool { return !strconv.IsPrint(r) }), " ")
}
