package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTimesOfObjects(t *testing.T) {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		age                   time.Duration
		older, younger, stale bool
	}{
		"long ago":             {time.Hour, true, false, true},
		"just long enough ago": {10 * time.Minute, true, false, true},
		"younger":              {10*time.Minute - 1, false, true, false},
		"a moment ahead":       {-time.Minute + 1, false, true, false},
		"far ahead":            {-time.Minute, false, false, true},
	} {
		now := At(time.Now(), at.Add(test.age))
		assert.Equal(t, test.older, now.IsOlder(at, 10*time.Minute), name)
		assert.Equal(t, test.younger, now.isYounger(at, 10*time.Minute), name)
		assert.Equal(t, test.stale, now.IsStale(at, 10*time.Minute), name)
		unknown := At(time.Now(), time.Time{})
		assert.False(t, unknown.IsOlder(at, 0) || unknown.isYounger(at, time.Hour) || unknown.IsStale(at, 0), name)
	}
}

// After a jump of the API server's clock nobody knows which of its times is right, until it has run steadily for some minutes.
func TestClockThatJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		skew := -time.Duration(1<<63 - 1) // no answer yet
		c := &Clock{Steady: 5 * time.Minute, Server: func() time.Time {
			if skew < -24*time.Hour {
				return time.Time{}
			}
			return time.Now().Add(skew)
		}}
		isKnown := func(after time.Duration) bool {
			time.Sleep(after)
			return c.Now().IsServerKnown()
		}
		assert.False(t, isKnown(0))
		skew = 5 * time.Hour
		assert.True(t, isKnown(time.Hour), "the first answer is no jump")
		skew -= 59 * time.Second
		assert.True(t, isKnown(time.Second), "another API server may be a moment behind")
		for _, jump := range []time.Duration{time.Hour, -time.Hour} {
			skew += jump
			assert.False(t, isKnown(time.Second), jump)
			assert.False(t, isKnown(5*time.Minute-time.Second), jump)
			assert.True(t, isKnown(time.Second), jump)
		}
	})
}
