package checks

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// attemptPacing is what a probe knows of the attempt that it belongs to.
type attemptPacing struct {
	since   time.Time     // the outage began
	every   time.Duration // the least time between two packets
	connect time.Time     // at the latest
	dials   *atomic.Int32 // so far; nil outside an attempt
}

type pacingKey struct{}

// pacingOf returns the pacing of an attempt's context. A request outside an attempt has a few seconds.
func pacingOf(ctx context.Context) attemptPacing {
	if p, ok := ctx.Value(pacingKey{}).(attemptPacing); ok {
		return p
	}
	return attemptPacing{time.Now(), time.Second, time.Now().Add(5 * time.Second), nil}
}

// pace returns the time until the next packet: one of so many parts of the outage, at most 15 s.
func (p attemptPacing) pace(parts time.Duration) time.Duration {
	return max(p.every, min(time.Since(p.since)/parts, 15*time.Second))
}

// hedge calls f, and after each pause without an answer once more, beside the calls that still wait: an attempt notices at once
// that the network works. Each call has a new source port: a flow that began before kube-proxy's rules is never translated. The
// first answer counts, also an error other than a timeout; a connection that comes late is closed.
func hedge[T any](ctx context.Context, f func(context.Context) (T, error)) (answer T, err error) {
	pacing := pacingOf(ctx)
	ctx, end := context.WithCancel(ctx)
	defer end()
	var first sync.Once
	offer := func(value T, failure error) {
		late := true
		first.Do(func() { answer, err, late = value, failure, false })
		end()
		if conn, ok := any(value).(io.Closer); ok && late {
			_ = conn.Close()
		}
	}
	var beside func()
	beside = func() {
		if ctx.Err() != nil {
			return
		}
		time.AfterFunc(pacing.pace(24), beside)
		if value, failure := f(ctx); !isTimeout(failure) {
			offer(value, failure)
		}
	}
	timer := time.AfterFunc(pacing.pace(24), beside)
	defer timer.Stop()
	value, failure := f(ctx)
	if isTimeout(failure) {
		<-ctx.Done() // another call may get an answer
	}
	offer(value, failure)
	return answer, err
}

// dial connects to a TCP address. The kernel repeats a lost packet after a second, and once: then a call of hedge may do so, from
// a new source port, in a few connections of an attempt.
func dial(ctx context.Context, address string) (net.Conn, error) {
	if p := pacingOf(ctx); p.dials == nil || p.dials.Add(1) > 4 {
		p.every = 3 * time.Second
		ctx = context.WithValue(ctx, pacingKey{}, p)
	}
	conn, err := hedge(ctx, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{KeepAlive: 30 * time.Second, Timeout: 1900 * time.Millisecond}).DialContext(ctx, "tcp", address)
	})
	if err != nil {
		err = &Failure{Cause: err, sign: accepts(address)}
	}
	return conn, err
}

// Dial connects for a client whose transport dials on after the request has ended. It ends before an attempt, so that the attempt
// has its error.
func Dial(ctx context.Context, _, address string) (net.Conn, error) {
	ctx, cancel := context.WithDeadline(ctx, pacingOf(ctx).connect)
	defer cancel()
	return dial(ctx, address)
}
