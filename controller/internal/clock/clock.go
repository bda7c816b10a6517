// Package clock keeps two clocks apart. A metav1.Time or time.Time is by the API server's clock, as all objects are. A Mark is by
// this process's own monotonic clock, which never jumps and says nothing after a restart.
package clock

import (
	"sync"
	"time"
)

// maxAhead is how far a time may be ahead of the API server's clock: another API server may have written it.
const maxAhead = time.Minute

// Mark is a moment by this process's own clock. The zero value: never.
type Mark struct{ at time.Time }

// Own returns the present moment.
func Own() Mark { return Mark{time.Now()} }

// IsZero reports whether m is no moment.
func (m Mark) IsZero() bool { return m.at.IsZero() }

// Before reports whether m was before other. The zero Mark is before all others.
func (m Mark) Before(other Mark) bool { return m.at.Before(other.at) }

// Compare returns -1, 0 or 1 where m was before other, is the same, or was after it.
func (m Mark) Compare(other Mark) int { return m.at.Compare(other.at) }

// Add returns the moment that is d later.
func (m Mark) Add(d time.Duration) Mark { return Mark{m.at.Add(d)} }

// Sub returns the time from earlier to m.
func (m Mark) Sub(earlier Mark) time.Duration { return m.at.Sub(earlier.at) }

// Now is the present moment by both clocks.
type Now struct{ own, server time.Time }

// At returns a moment by both clocks. If server is zero, the API server's clock is not known.
func At(own, server time.Time) Now { return Now{own, server} }

// IsZero reports whether n is no moment.
func (n Now) IsZero() bool { return n.own.IsZero() }

// Mark returns the moment by this process's own clock.
func (n Now) Mark() Mark { return Mark{n.own} }

// Since returns how long ago m was: very long if m is zero.
func (n Now) Since(m Mark) time.Duration { return n.own.Sub(m.at) }

// HasLasted reports whether what began at m has lasted for d. What has not begun has not.
func (n Now) HasLasted(m Mark, d time.Duration) bool { return !m.IsZero() && n.Since(m) >= d }

// Server returns the time by the API server's clock, zero if that is not known.
func (n Now) Server() time.Time { return n.server }

// IsServerKnown reports whether the API server's clock is known.
func (n Now) IsServerKnown() bool { return !n.server.IsZero() }

// age returns how old t is by the API server's clock, which must be known. It is negative if t is ahead.
func (n Now) age(t time.Time) time.Duration { return n.server.Sub(t) }

// IsOlder reports whether t is d ago, or longer. It is not if the clock is unknown.
func (n Now) IsOlder(t time.Time, d time.Duration) bool { return n.IsServerKnown() && n.age(t) >= d }

// isYounger reports whether t is less than d ago. It is not if the clock is unknown, or if t is a minute ahead of it.
func (n Now) isYounger(t time.Time, d time.Duration) bool {
	return n.IsServerKnown() && n.age(t) < d && n.age(t) > -maxAhead
}

// IsStale reports whether the clock is known, and t is not younger than d. A time far ahead counts as stale: a clock was wrong.
func (n Now) IsStale(t time.Time, d time.Duration) bool {
	return n.IsServerKnown() && !n.isYounger(t, d)
}

// Clock tells the time. Safe for concurrent use.
type Clock struct {
	// Server returns the time by the API server's clock, zero if it is not known yet.
	Server func() time.Time
	// Steady is how long the API server's clock must run like this process's own after a jump. One of several API servers may be
	// wrong: by its time every node is old, and every budget is free.
	Steady time.Duration

	mu     sync.Mutex
	last   Now
	jumped Mark
}

// Now returns the present moment. The API server's clock counts as unknown while it is not steady.
func (c *Clock) Now() Now {
	now := Now{time.Now(), c.Server()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !now.IsServerKnown() {
		return now
	}
	if c.last.IsServerKnown() && (now.age(c.last.server)-now.Since(c.last.Mark())).Abs() > maxAhead {
		c.jumped = now.Mark()
	}
	c.last = now
	if !c.jumped.IsZero() && !now.HasLasted(c.jumped, c.Steady) {
		now.server = time.Time{}
	}
	return now
}
