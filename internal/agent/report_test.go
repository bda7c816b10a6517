package agent

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestFailureIsReportedAgainLaterAndLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &verification{start: time.Now(), reported: make(map[string]repeat)}
		start := time.Now()
		var at []time.Duration
		report := func(err error) {
			if v.isDue(err) {
				at = append(at, time.Since(start))
			}
		}
		for range 60 { // minutes
			report(roundFailure{[]string{"dns"}, []string{"port " + time.Now().String()}})
			time.Sleep(time.Minute)
		}
		assert.Equal(t, []time.Duration{0, 5 * time.Minute, 15 * time.Minute, 35 * time.Minute}, at)

		at = nil
		report(roundFailure{[]string{"dns", "api"}, []string{"x"}})
		report(errors.New("the API server refuses the patch"))
		assert.Len(t, at, 2, "others are reported at once")
		report(errors.New("the API server refuses the patch: request 17"))
		assert.Len(t, at, 2, "whatever its words are this time")
		v.reported = make(map[string]repeat)
		report(roundFailure{[]string{"dns"}, []string{"x"}})
		assert.Len(t, at, 3, "a new verification counts from the start")
	})
}
