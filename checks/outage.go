package checks

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// outage is what the Runner knows of one check that fails, from its first attempt that failed until one passes. The zero value
// is a check that does not fail.
type outage struct {
	began time.Time // the first attempt that failed
	sign  sign      // of the last attempt; nil: the check does not fail
	look  time.Time // not before then for the sign
	// A sign ends a pause once. If the attempt after it fails, signs of this outage are wrong, as behind a path that loses only
	// large packets: they end no further pause.
	signCame, ignoresSigns bool
}

// failed notes an attempt that failed.
func (o *outage) failed(began time.Time, err error) {
	*o = outage{began: cmp.Or(o.began, began), sign: signOf(err), look: o.look, ignoresSigns: o.ignoresSigns || o.signCame}
}

// passed notes an attempt that passed.
func (o *outage) passed() { *o = outage{} }

// wait waits for d, or until the sign comes. It returns false if ctx has ended.
func (o *outage) wait(ctx context.Context, d time.Duration) bool {
	pause, end := context.WithTimeout(ctx, d)
	defer end()
	for o.sign != nil && !o.ignoresSigns {
		select {
		case <-pause.Done():
			return ctx.Err() == nil
		case <-time.After(time.Until(o.look)):
		}
		between := max(time.Second, slowdown(o.began, 60))
		o.look = time.Now().Add(time.Duration((0.8 + 0.4*rand.Float64()) * float64(between)))
		o.signCame = o.sign(pause)
		if o.signCame {
			return true
		}
	}
	<-pause.Done()
	return ctx.Err() == nil
}

// pacing returns how often an attempt that begins now may send packets. The pace slows down with the outage. It begins again
// after a sign, and where signs are ignored: then no sign would come soon after a lost packet.
func (o *outage) pacing(now time.Time, timeout time.Duration) pacing {
	p := pacing{outage: now, least: min(time.Second, timeout/3), connectBy: now.Add(timeout * 9 / 10), dials: new(atomic.Int32)}
	if o.sign != nil && !o.signCame && !o.ignoresSigns {
		p.outage = o.began
	}
	return p
}
