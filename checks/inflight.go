package checks

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// flight is what a probe knows of the attempt that it belongs to.
type flight struct {
	since   time.Time     // the outage began
	every   time.Duration // the least time between two packets
	connect time.Time     // at the latest
	dials   *atomic.Int32 // so far; nil outside an attempt
}

type flightKey struct{}

// flightOf returns the flight of an attempt's context. A request outside an attempt has a few seconds.
func flightOf(ctx context.Context) flight {
	if f, ok := ctx.Value(flightKey{}).(flight); ok {
		return f
	}
	return flight{time.Now(), time.Second, time.Now().Add(5 * time.Second), nil}
}

// pace returns the time until the next packet: one of so many parts of the outage, at most 15 s.
func (f flight) pace(parts time.Duration) time.Duration {
	return max(f.every, min(time.Since(f.since)/parts, 15*time.Second))
}

// again calls f, and calls it beside the calls without an answer, again and again: an attempt notices at once that the network
// works. Each call has a new source port: a flow that began before kube-proxy's rules is never translated. The first answer
// counts, also an error other than a timeout; a connection that comes late is closed.
func again[T any](ctx context.Context, f func(context.Context) (T, error)) (answer T, err error) {
	flight := flightOf(ctx)
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
		time.AfterFunc(flight.pace(24), beside)
		if value, failure := f(ctx); !isTimeout(failure) {
			offer(value, failure)
		}
	}
	timer := time.AfterFunc(flight.pace(24), beside)
	defer timer.Stop()
	value, failure := f(ctx)
	if isTimeout(failure) {
		<-ctx.Done() // another call may get an answer
	}
	offer(value, failure)
	return answer, err
}

// dial connects to a TCP address. The kernel repeats a lost packet after a second, and once: then a call of again may do so, from
// a new source port, in a few connections of an attempt.
func dial(ctx context.Context, address string) (net.Conn, error) {
	if f := flightOf(ctx); f.dials == nil || f.dials.Add(1) > 4 {
		f.every = 3 * time.Second
		ctx = context.WithValue(ctx, flightKey{}, f)
	}
	conn, err := again(ctx, func(ctx context.Context) (net.Conn, error) {
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
	ctx, cancel := context.WithDeadline(ctx, flightOf(ctx).connect)
	defer cancel()
	return dial(ctx, address)
}
