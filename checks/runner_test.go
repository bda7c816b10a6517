package checks

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tried is a check that calls try with the number of the attempt.
type tried struct {
	name string
	try  func(ctx context.Context, number int) (Report, error)
	// attempts and journal are written by the one goroutine that runs a round.
	attempts int
	journal  *[]string
}

func (c *tried) Name() string { return c.name }

func (c *tried) Try(ctx context.Context) (Report, error) {
	c.attempts++
	if c.journal != nil {
		*c.journal = append(*c.journal, c.name)
	}
	return c.try(ctx, c.attempts)
}

func passes(context.Context, int) (Report, error) { return Report{Detail: "fine"}, nil }

func failsAlways(_ context.Context, number int) (Report, error) {
	return Report{}, fmt.Errorf("failure %d", number)
}

// failsFirst fails the first n attempts.
func failsFirst(n int) func(context.Context, int) (Report, error) {
	return func(ctx context.Context, number int) (Report, error) {
		if number <= n {
			return failsAlways(ctx, number)
		}
		return passes(ctx, number)
	}
}

// allPassed reports whether no check of a round failed.
func allPassed(results []Attempt) bool {
	return !slices.ContainsFunc(results, func(r Attempt) bool { return r.Err != nil })
}

// watcher records every attempt.
type watcher struct {
	seen []Attempt
	then func(Attempt)
}

func (w *watcher) attempted(a Attempt) {
	w.seen = append(w.seen, a)
	if w.then != nil {
		w.then(a)
	}
}

// counted waits 1, 2, 3 ms and so on.
type counted struct{ n int }

func (c *counted) Reset() { c.n = 0 }
func (c *counted) NextBackOff() time.Duration {
	c.n++
	return time.Duration(c.n) * time.Millisecond
}

func countedBackOff() backoff.BackOff { return &counted{} }
func hourBackOff() backoff.BackOff    { return backoff.NewConstantBackOff(time.Hour) }

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestRoundRunsChecksInTheirOrderOnceEach(t *testing.T) {
	t.Parallel()
	var journal []string
	var list []Check
	for _, name := range Names() {
		list = append(list, &tried{name: name, try: passes, journal: &journal})
	}
	var seen watcher
	r := Runner{Timeout: time.Minute, MaxRetries: 5, NewBackOff: hourBackOff, Observe: seen.attempted}

	results, err := r.Round(t.Context(), list)

	require.NoError(t, err)
	assert.Equal(t, []string{"dns", "api", "network", "service"}, journal)
	assert.True(t, allPassed(results))
	require.Len(t, results, 4)
	require.Len(t, seen.seen, 4)
	for i, name := range []string{"dns", "api", "network", "service"} {
		assert.Equal(t, name, results[i].Check)
		assert.Equal(t, 1, results[i].Number)
		assert.Equal(t, "fine", results[i].Report.Detail)
		assert.Zero(t, results[i].RetryIn)
		assert.Equal(t, results[i], seen.seen[i])
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		maxRetries int
		failures   int // of the first attempts
		attempts   int
		err        string
		retryIn    []time.Duration
	}{
		{"none needed", 3, 0, 1, "", []time.Duration{0}},
		{"none allowed", 0, 9, 1, "failure 1", []time.Duration{0}},
		{"none allowed, none needed", 0, 0, 1, "", []time.Duration{0}},
		{"one allowed", 1, 9, 2, "failure 2", []time.Duration{1, 0}},
		{"the last one passes", 3, 3, 4, "", []time.Duration{1, 2, 3, 0}},
		{"one too few", 3, 4, 4, "failure 4", []time.Duration{1, 2, 3, 0}},
		{"the second attempt passes", 5, 1, 2, "", []time.Duration{1, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			check := &tried{name: "dns", try: failsFirst(test.failures)}
			var seen watcher
			r := Runner{Timeout: time.Minute, MaxRetries: test.maxRetries, NewBackOff: countedBackOff, Observe: seen.attempted}

			results, err := r.Round(t.Context(), []Check{check})

			require.NoError(t, err)
			require.Len(t, results, 1)
			assert.Equal(t, test.attempts, check.attempts)
			assert.Equal(t, test.attempts, results[0].Number)
			assert.Equal(t, test.err, text(results[0].Err))
			assert.Equal(t, test.err == "", allPassed(results))
			require.Len(t, seen.seen, test.attempts)
			for i, a := range seen.seen {
				assert.Equal(t, i+1, a.Number)
				assert.Equal(t, test.retryIn[i]*time.Millisecond, a.RetryIn, "attempt %d", i+1)
				if i < test.failures {
					assert.Equal(t, fmt.Sprintf("failure %d", i+1), text(a.Err))
				} else {
					assert.NoError(t, a.Err)
				}
			}
		})
	}
}

// RetryIn is the wait until the next attempt. On synctest's clock.
func TestRetryWaitsForRetryIn(t *testing.T) {
	t.Parallel()
	for name, newBackOff := range map[string]func() backoff.BackOff{"exponential": Exponential, "linear": Linear} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var began []time.Time
				check := &tried{name: "dns", try: func(ctx context.Context, n int) (Report, error) {
					began = append(began, time.Now())
					return failsAlways(ctx, n)
				}}
				var seen watcher
				r := Runner{Timeout: time.Second, MaxRetries: 6, NewBackOff: newBackOff, Observe: seen.attempted}

				_, err := r.Round(t.Context(), []Check{check})

				require.NoError(t, err)
				require.Len(t, began, 7)
				for i := range 6 {
					assert.Positive(t, seen.seen[i].RetryIn)
					assert.Equal(t, seen.seen[i].RetryIn, began[i+1].Sub(began[i]), "after attempt %d", i+1)
				}
			})
		})
	}
}

func TestEachCheckHasItsOwnRetriesAndBackOff(t *testing.T) {
	t.Parallel()
	var seen watcher
	r := Runner{Timeout: time.Minute, MaxRetries: 2, NewBackOff: countedBackOff, Observe: seen.attempted}
	first, second := &tried{name: "dns", try: failsFirst(2)}, &tried{name: "api", try: failsFirst(2)}

	results, err := r.Round(t.Context(), []Check{first, second})

	require.NoError(t, err)
	assert.True(t, allPassed(results))
	assert.Equal(t, []int{3, 3}, []int{first.attempts, second.attempts})
	var waits []time.Duration
	for _, a := range seen.seen {
		waits = append(waits, a.RetryIn/time.Millisecond)
	}
	assert.Equal(t, []time.Duration{1, 2, 0, 1, 2, 0}, waits)
}

func TestChecksAfterAFailureAreTriedOnceForDiagnosis(t *testing.T) {
	t.Parallel()
	var journal []string
	var seen watcher
	r := Runner{Timeout: time.Minute, MaxRetries: 2, NewBackOff: countedBackOff, Observe: seen.attempted}

	results, err := r.Round(t.Context(), []Check{
		&tried{name: "dns", try: passes, journal: &journal},
		&tried{name: "api", try: failsAlways, journal: &journal},
		&tried{name: "network", try: passes, journal: &journal},
		&tried{name: "service", try: failsAlways, journal: &journal},
	})

	require.NoError(t, err)
	assert.Equal(t, []string{"dns", "api", "api", "api", "network", "service"}, journal)
	require.Len(t, results, 4)
	assert.False(t, allPassed(results))
	var got []string
	for _, result := range results {
		got = append(got, fmt.Sprintf("%s %d %q", result.Check, result.Number, text(result.Err)))
	}
	assert.Equal(t, []string{
		`dns 1 ""`, `api 3 "failure 3"`, `network 1 ""`, `service 1 "failure 1"`,
	}, got)
	require.Len(t, seen.seen, 6)
	for _, a := range seen.seen[3:] {
		assert.Zero(t, a.RetryIn, "%s is not tried again", a.Check)
	}
}

// The second attempt fails, and the shutdown comes during the wait for the third.
func TestCancelledDuringTheWait(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (context.Context, *Runner, *watcher, *tried) {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		waits := []time.Duration{time.Millisecond, time.Hour}
		seen := &watcher{then: func(a Attempt) {
			if a.Number == 2 {
				cancel()
			}
		}}
		r := &Runner{Timeout: time.Minute, MaxRetries: 5, NewBackOff: func() backoff.BackOff { return &listed{waits: waits} }, Observe: seen.attempted}
		return ctx, r, seen, &tried{name: "dns", try: failsAlways}
	}
	t.Run("the round returns the error and observes nothing else", func(t *testing.T) {
		t.Parallel()
		ctx, r, seen, check := start(t)
		next := &tried{name: "api", try: passes}
		results, err := r.Round(ctx, []Check{check, next})
		require.EqualError(t, err, "round: context canceled")
		require.ErrorIs(t, err, context.Canceled)
		assert.Empty(t, results)
		assert.Equal(t, 2, check.attempts)
		assert.Zero(t, next.attempts)
		require.Len(t, seen.seen, 2)
		assert.Equal(t, time.Hour, seen.seen[1].RetryIn)
	})
	t.Run("the check's last error is kept", func(t *testing.T) {
		t.Parallel()
		ctx, r, _, check := start(t)
		last := r.retry(ctx, check, r.MaxRetries)
		require.EqualError(t, last.Err, "failure 2")
		assert.Equal(t, 2, last.Number)
	})
}

// listed waits as listed, and repeats the last wait.
type listed struct {
	waits []time.Duration
	n     int
}

func (l *listed) Reset() { l.n = 0 }
func (l *listed) NextBackOff() time.Duration {
	wait := l.waits[min(l.n, len(l.waits)-1)]
	l.n++
	return wait
}

// An attempt that a shutdown interrupts says nothing about the node.
func TestCancelledInsideAnAttempt(t *testing.T) {
	t.Parallel()
	for _, diagnosis := range []bool{false, true} {
		t.Run(fmt.Sprintf("diagnosis %v", diagnosis), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var seen watcher
			r := Runner{Timeout: time.Minute, MaxRetries: 0, NewBackOff: hourBackOff, Observe: seen.attempted}
			first := &tried{name: "dns", try: passes}
			if diagnosis {
				first.try = failsAlways
			}
			cut := &tried{name: "api", try: func(ctx context.Context, _ int) (Report, error) {
				cancel()
				<-ctx.Done()
				return Report{}, ctx.Err()
			}}
			after := &tried{name: "network", try: passes}

			results, err := r.Round(ctx, []Check{first, cut, after})

			require.ErrorIs(t, err, context.Canceled)
			require.Len(t, results, 1)
			assert.Equal(t, "dns", results[0].Check)
			require.Len(t, seen.seen, 1)
			assert.Equal(t, "dns", seen.seen[0].Check)
			assert.Equal(t, 1, cut.attempts)
			assert.Zero(t, after.attempts)
		})
	}
}

func TestEveryAttemptHasItsOwnTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := &tried{name: "dns", try: func(ctx context.Context, _ int) (Report, error) {
			<-ctx.Done()
			return Report{}, ctx.Err()
		}}
		var seen watcher
		r := Runner{Timeout: 3 * time.Second, MaxRetries: 1, NewBackOff: countedBackOff, Observe: seen.attempted}

		results, err := r.Round(t.Context(), []Check{hangs, &tried{name: "api", try: passes}})

		require.NoError(t, err, "the round is not over when an attempt is")
		require.Len(t, seen.seen, 3)
		for _, a := range seen.seen[:2] {
			require.ErrorIs(t, a.Err, context.DeadlineExceeded)
			assert.Equal(t, 3*time.Second, a.Took)
		}
		require.NoError(t, results[1].Err, "the next check has its own timeout")
	})
}

func TestTook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := &tried{name: "dns", try: func(context.Context, int) (Report, error) {
			time.Sleep(2 * time.Second)
			return Report{}, nil
		}}
		asked := &tried{name: "api", try: func(context.Context, int) (Report, error) {
			time.Sleep(2 * time.Second)
			return Report{Took: 40 * time.Millisecond}, nil
		}}
		r := Runner{Timeout: time.Minute, NewBackOff: hourBackOff} // without an Observer
		results, err := r.Round(t.Context(), []Check{slow, asked})
		require.NoError(t, err)
		assert.Equal(t, 2*time.Second, results[0].Took, "as measured")
		assert.Equal(t, 40*time.Millisecond, results[1].Took, "as the check reports")
	})
}

func TestSkippedChecksPass(t *testing.T) {
	t.Parallel()
	r := Runner{Timeout: time.Minute, NewBackOff: hourBackOff}
	results, err := r.Round(t.Context(), []Check{Skip(APIName, "no kubeconfig")})
	require.NoError(t, err)
	assert.True(t, allPassed(results))
	assert.Equal(t, "api", results[0].Check)
	assert.Equal(t, Report{Skipped: "no kubeconfig"}, results[0].Report)
}

func TestBackOffs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		new  func() backoff.BackOff
		want []float64 // seconds, then 30 each time
	}{
		"exponential": {Exponential, []float64{1, 2, 4, 8, 16}},
		"linear":      {Linear, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var shorter, longer bool
				for range 100 {
					b := test.new()
					for i, want := range append(slices.Clone(test.want), 30, 30, 30) {
						got := b.NextBackOff().Seconds()
						require.InDelta(t, want, got, want*0.1+1e-8, "wait %d", i+1) // a nanosecond more is the library's rounding
						shorter = shorter || got < want*0.95
						longer = longer || got > want*1.05
						time.Sleep(time.Minute) // the library's default ends it after 15 minutes
					}
				}
				assert.True(t, shorter && longer, "nodes that start together must not stay in step")
			})
		})
	}
}

func TestLongest(t *testing.T) {
	runner := Runner{Timeout: 3 * time.Second, MaxRetries: 5, NewBackOff: Linear}
	for range 20 {
		longest := runner.Longest(4)
		const exact = 4 * (6*3 + 1 + 2 + 3 + 4 + 5) * time.Second
		assert.GreaterOrEqual(t, longest, exact)
		assert.Less(t, longest, exact*3/2)
	}
	runner.MaxRetries = 0
	assert.Equal(t, 12*time.Second, runner.Longest(4))
}
