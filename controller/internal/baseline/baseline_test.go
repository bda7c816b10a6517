package baseline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
)

// check fails with its error, after a while.
type check struct {
	mu   sync.Mutex
	err  error
	took time.Duration
}

func (c *check) set(err error, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.took = err, took
}

func (*check) Name() string { return checks.DNSName }

func (c *check) Try(ctx context.Context) (checks.Report, error) {
	c.mu.Lock()
	err, took := c.err, c.took
	c.mu.Unlock()
	select {
	case <-time.After(took): // in a bubble: no real time passes
		return checks.Report{}, err
	case <-ctx.Done():
		return checks.Report{}, ctx.Err()
	}
}

// running calls test with a baseline whose only check is the one given; time is that of the bubble.
func running(t *testing.T, retries int, test func(*check, *Rounds)) {
	synctest.Test(t, func(t *testing.T) {
		c := new(check)
		r := &Rounds{Now: now, Checks: []checks.Check{c}, Log: slog.New(slog.DiscardHandler),
			Runner: checks.Runner{Timeout: time.Hour, MaxRetries: retries, NewBackOff: checks.Linear}}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { assert.NoError(t, r.Start(ctx)) }()
		synctest.Wait()
		test(c, r)
		cancel()
		synctest.Wait()
	})
}

func TestPassesWithoutABreak(t *testing.T) {
	running(t, 0, func(c *check, r *Rounds) {
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		assert.Equal(t, 5*time.Minute, r.State().PassedFor(now()))
		assert.Empty(t, r.State().Failure)

		c.set(errors.New("timeout"), 0)
		time.Sleep(Interval)
		synctest.Wait()
		assert.Zero(t, r.State().PassedFor(now()))
		assert.Equal(t, "dns: timeout", r.State().Failure)

		c.set(nil, 0)
		time.Sleep(Interval)
		synctest.Wait()
		time.Sleep(time.Second)
		assert.Equal(t, time.Second, r.State().PassedFor(now()), "from the beginning again")
		assert.Equal(t, "dns: timeout", r.State().Failure, "is still known")
	})
}

// A round that is being retried says nothing yet: the last result is outdated.
func TestRoundThatDoesNotEnd(t *testing.T) {
	running(t, 0, func(c *check, r *Rounds) {
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		c.set(nil, 50*time.Second) // until 5m30s and 50 seconds more
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Positive(t, r.State().PassedFor(now()))
		time.Sleep(time.Second)
		assert.Zero(t, r.State().PassedFor(now()))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		assert.Equal(t, time.Second, r.State().PassedFor(now()), "from the beginning again")
	})
}

func TestRetriesAreTheAgents(t *testing.T) {
	running(t, 1, func(c *check, r *Rounds) {
		c.set(errors.New("timeout"), 0)
		time.Sleep(Interval)
		synctest.Wait()
		assert.Empty(t, r.State().Failure, "the retry is waited for")
		c.set(nil, 0)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Empty(t, r.State().Failure, "a lost packet is no failure")
		assert.Equal(t, Interval+2*time.Second, r.State().PassedFor(now()))
	})
}

func now() clock.Now { return clock.At(time.Now(), time.Now()) }
