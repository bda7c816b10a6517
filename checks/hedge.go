package checks

import (
	"cmp"
	"context"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// pacing is how often the probes of one attempt may send packets. It is in the attempt's context, which also reaches Dial,
// through client-go's transport.
type pacing struct {
	outage    time.Time     // when the outage began
	least     time.Duration // between two packets of one probe
	connectBy time.Time     // when Dial gives up
	dials     *atomic.Int32 // how many connections the attempt has begun
}

type pacingKey struct{}

func withPacing(ctx context.Context, p pacing) context.Context {
	return context.WithValue(ctx, pacingKey{}, p)
}

// pacingOf returns the pacing of an attempt's context. A request outside an attempt has 5 s to connect, and no fast redials.
func pacingOf(ctx context.Context) pacing {
	if p, ok := ctx.Value(pacingKey{}).(pacing); ok {
		return p
	}
	now := time.Now()
	p := pacing{outage: now, least: time.Second, connectBy: now.Add(5 * time.Second), dials: new(atomic.Int32)}
	p.dials.Store(fastRedials)
	return p
}

// isLongOutage reports whether a packet without an answer is to be the last one of its probe.
func (p pacing) isLongOutage() bool { return time.Since(p.outage) > time.Minute }

// between returns the time between two packets of a probe: one of so many parts of the outage, but not less than least.
func (p pacing) between(parts int) time.Duration { return max(p.least, slowdown(p.outage, parts)) }

// slowdown returns one of so many parts of the time since an outage began, at most 15 s.
func slowdown(outage time.Time, parts int) time.Duration {
	return min(time.Since(outage)/time.Duration(parts), 15*time.Second)
}

// hedgeParts is the pace of hedge: a twenty-fourth of the outage.
const hedgeParts = 24

// hedge calls f, and after each pause without an answer once more, beside the calls that still wait: an attempt notices at once
// that the network works. Each call has a new source port: a flow that began before kube-proxy's rules is never translated.
//
// The first answer counts and ends the other calls; an error is an answer too, unless it is a timeout. Without an answer, hedge
// returns when ctx ends. A connection that another call makes too late is closed.
func hedge[T any](ctx context.Context, pause time.Duration, f func(context.Context) (T, error)) (T, error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	type result struct {
		value T
		err   error
	}
	results := make(chan result)
	call := func() {
		value, err := f(ctx)
		select {
		case results <- result{value, err}:
		case <-ctx.Done():
			if conn, isOpen := any(value).(io.Closer); isOpen {
				_ = conn.Close()
			}
		}
	}
	repeat := time.NewTicker(pause)
	defer repeat.Stop()
	var last result
	go call()
	for ctx.Err() == nil {
		select {
		case last = <-results:
			if !isTimeout(last.err) {
				return last.value, last.err
			}
		case <-repeat.C:
			go call()
		case <-ctx.Done():
		}
	}
	return last.value, cmp.Or(last.err, ctx.Err())
}

// A few connections of an attempt are repeated as often as its pacing allows, which is more often than the kernel repeats a
// packet; the others only after slowRedial.
const (
	fastRedials = 4
	slowRedial  = 3 * time.Second
)

// dial connects to a TCP address. The kernel repeats a lost packet once, after a second, from the same source port.
func dial(ctx context.Context, address string) (net.Conn, error) {
	p := pacingOf(ctx)
	if p.dials.Add(1) > fastRedials {
		p.least = slowRedial
	}
	dialer := net.Dialer{KeepAlive: 30 * time.Second, Timeout: 1900 * time.Millisecond}
	conn, err := hedge(ctx, p.between(hedgeParts), func(ctx context.Context) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	})
	if err != nil {
		return nil, &Failure{Cause: err, sign: accepts(address)}
	}
	return conn, nil
}

// Dial connects for a client whose transport dials on after the request has ended. It ends before the attempt, so that the
// attempt has its error.
func Dial(ctx context.Context, _, address string) (net.Conn, error) {
	ctx, cancel := context.WithDeadline(ctx, pacingOf(ctx).connectBy)
	defer cancel()
	return dial(ctx, address)
}
