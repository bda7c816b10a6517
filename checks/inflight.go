package checks

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// flight is what a probe knows of the attempt that it belongs to.
type flight struct {
	since    time.Time     // the outage began
	every    time.Duration // the least time between two packets
	deadline time.Time
}

type flightKey struct{}

// flightOf returns the flight of an attempt's context. A request outside an attempt has a few seconds.
func flightOf(ctx context.Context) flight {
	if f, ok := ctx.Value(flightKey{}).(flight); ok {
		return f
	}
	f := flight{time.Now(), time.Second, time.Now().Add(5 * time.Second)}
	if _, limited := ctx.Deadline(); limited {
		f.every = min(time.Second, share(ctx, 3))
	}
	return f
}

// pace returns the time until the next packet in an outage that began at since: a 60th of the outage, at least every 15 s.
func pace(since time.Time, least time.Duration) time.Duration {
	return max(least, min(time.Since(since)/60, 15*time.Second))
}

// again calls f, and calls it beside the calls without an answer, again and again: an attempt notices at once that the network
// works. Each call has a new source port: a flow that began before kube-proxy's rules is never translated. The first answer
// counts, also an error other than a timeout; those that are late are closed.
func again[T any](ctx context.Context, f func(context.Context) (T, error)) (value T, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	flight := flightOf(ctx)
	var first sync.Once
	accept := func(v T, e error) {
		late := true
		first.Do(func() { value, err, late = v, e, false })
		end()
		if conn, ok := any(v).(io.Closer); ok && late {
			_ = conn.Close()
		}
	}
	timer := time.AfterFunc(pace(flight.since, flight.every), func() {
		for ctx.Err() == nil {
			go func() {
				if v, e := f(ctx); !isTimeout(e) {
					accept(v, e)
				}
			}()
			wait(ctx, pace(flight.since, flight.every))
		}
	})
	defer timer.Stop()
	v, e := f(ctx)
	if isTimeout(e) {
		<-ctx.Done() // another call may get an answer
	}
	accept(v, e)
	return value, err
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// dial connects to a TCP address.
func dial(ctx context.Context, address string) (net.Conn, error) {
	return again(ctx, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext(ctx, "tcp", address)
	})
}

// Dial connects for a client whose transport dials on after the request has ended.
func Dial(ctx context.Context, _, address string) (net.Conn, error) {
	ctx, cancel := context.WithDeadline(ctx, flightOf(ctx).deadline)
	defer cancel()
	return dial(ctx, address)
}
