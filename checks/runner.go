package checks

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// jitter is the share by which a wait may be shorter or longer, so that nodes that started together do not stay in step.
const jitter = 0.1

// Attempt is one try of one check, as an Observer sees it.
type Attempt struct {
	Check     string
	Number    int // 1 for the first of its round; of what Round returns the count
	Took      time.Duration
	Report    Report
	Err       error         // nil if the check passed or was skipped
	RetryIn   time.Duration // until the next attempt; 0 if there is none in this round
	AfterSign bool          // a sign has ended the pause before it
}

// Observer receives every attempt when it ends, except those that a shutdown interrupted: they say nothing about the node.
type Observer interface{ Attempted(Attempt) }

// Runner runs checks one after another, in rounds. It remembers between them what fails.
type Runner struct {
	Timeout    time.Duration // of one attempt
	MaxRetries int           // after the first attempt
	NewBackOff func() backoff.BackOff
	Observer   Observer

	outages  map[string]outage // of each check that fails
	retrying string            // the check that the round must pass first
}

// outage is what is known of a check that fails, until it passes.
type outage struct {
	since       time.Time // the first attempt that failed
	err         error     // of the last attempt
	hasSign     bool      // its sign has come
	ignoreSigns bool      // an attempt has failed after a sign: none is trusted
	due         time.Time // the next look for a sign
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
		} else {
			r.retrying = check.Name()
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

// retry makes one attempt, and more while it fails and there are retries, with a pause before each.
func (r *Runner) retry(ctx context.Context, check Check, retries int) Attempt {
	var last Attempt
	for waits := r.NewBackOff(); ; {
		last = r.attempt(ctx, check, last.Number+1)
		isRetried := last.Err != nil && last.Number <= retries
		if isRetried {
			last.RetryIn = waits.NextBackOff()
		}
		if ctx.Err() == nil && r.Observer != nil {
			r.Observer.Attempted(last)
		}
		if !isRetried || !r.Pause(ctx, last.RetryIn) {
			return last
		}
	}
}

func (r *Runner) attempt(ctx context.Context, check Check, number int) Attempt {
	if r.outages == nil {
		r.outages = make(map[string]outage)
	}
	start := time.Now()
	o := r.outages[check.Name()]
	pacing := attemptPacing{o.since, min(time.Second, r.Timeout/3), start.Add(r.Timeout * 9 / 10), new(atomic.Int32)}
	if o.err == nil || o.hasSign || o.ignoreSigns { // no sign would come after a lost packet
		pacing.since = start
	}
	attemptCtx, cancel := context.WithTimeout(context.WithValue(ctx, pacingKey{}, pacing), r.Timeout)
	defer cancel()
	report, err := check.Try(attemptCtx)
	if err == nil {
		delete(r.outages, check.Name())
	} else {
		r.outages[check.Name()] = outage{since: cmp.Or(o.since, start), err: err, ignoreSigns: o.ignoreSigns || o.hasSign, due: o.due}
		err = &Failure{Cause: err, text: printable(err.Error())}
	}
	for i, warning := range report.Warnings {
		report.Warnings[i] = printable(warning)
	}
	took := cmp.Or(report.Took, time.Since(start))
	return Attempt{Check: check.Name(), Number: number, Took: took, Report: report, Err: err, AfterSign: o.hasSign}
}

// Pause waits for d, or until there is a sign that the check that has failed would pass now. It returns false if ctx has ended.
func (r *Runner) Pause(ctx context.Context, d time.Duration) bool {
	pause, end := context.WithTimeout(ctx, d)
	defer end()
	o := r.outages[r.retrying]
	for o.err != nil && !o.ignoreSigns {
		due, cancel := context.WithDeadline(pause, o.due)
		<-due.Done()
		cancel()
		if pause.Err() != nil {
			break
		}
		pace := float64(attemptPacing{since: o.since, every: time.Second}.pace(60))
		o.due = time.Now().Add(time.Duration((0.8 + 0.4*rand.Float64()) * pace))
		o.hasSign = isOver(pause, o.err)
		if r.outages[r.retrying] = o; o.hasSign {
			return true
		}
	}
	<-pause.Done()
	return ctx.Err() == nil
}

// printable returns the first 2 kB of a text without control characters: others wrote parts of it, and a terminal may show it.
func printable(text string) string {
	const most = 2 << 10
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, ""), func(r rune) bool { return !strconv.IsPrint(r) }), " ")
}
