package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func queued(e *events) (messages []string) {
	for _, event := range e.queue {
		messages = append(messages, event.Message)
	}
	return messages
}

func TestFailureIsReportedAgainLaterAndLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvents(nil, config{nodeName: "node1"}, nil)
		start := time.Now()
		e.startOver(start)
		var at []time.Duration
		report := func(err error) {
			e.failing(err)
			if len(e.queue) > 0 {
				at = append(at, time.Since(start))
				e.queue = nil
			}
		}
		for range 60 { // minutes
			report(notVerified{[]string{"dns"}, []string{"port " + time.Now().String()}})
			time.Sleep(time.Minute)
		}
		assert.Equal(t, []time.Duration{0, 5 * time.Minute, 15 * time.Minute, 35 * time.Minute}, at)

		at = nil
		report(notVerified{[]string{"dns", "api"}, []string{"x"}})
		report(errors.New("the API server refuses the patch"))
		assert.Len(t, at, 2, "others are reported at once")
		report(errors.New("the API server refuses the patch: request 17"))
		assert.Len(t, at, 2, "whatever its words are this time")
		e.startOver(time.Now())
		report(notVerified{[]string{"dns"}, []string{"x"}})
		assert.Len(t, at, 3, "a new verification counts anew")
	})
}

func TestEventFits(t *testing.T) {
	e := newEvents(nil, config{nodeName: "node1"}, nil)
	e.add(eventNormal, "R", strings.Repeat("a", maxMessage))
	e.add(eventNormal, "R", strings.Repeat("a", maxMessage+1))
	e.add(eventNormal, "R", strings.Repeat("a", maxMessage-4)+"äöü")
	assert.Equal(t, []string{
		strings.Repeat("a", maxMessage),
		strings.Repeat("a", maxMessage-3) + "...",
		strings.Repeat("a", maxMessage-4) + "...", // no half of a letter
	}, queued(e))
}

func TestOldestEventIsDropped(t *testing.T) {
	e := newEvents(nil, config{nodeName: "node1"}, nil)
	for _, letter := range strings.Split("abcdefghij", "") {
		e.add(eventNormal, "R", letter)
	}
	assert.Equal(t, strings.Split("cdefghij", ""), queued(e))
}

func TestFlush(t *testing.T) {
	const refused = "event refused: apply the Role and its binding from the chart in namespace default (events, create)"
	for name, test := range map[string]struct {
		code   int
		reason metav1.StatusReason
		sent   int      // requests
		left   []string // in the queue
		log    string
	}{
		"taken":          {code: http.StatusCreated, sent: 2},
		"already there":  {code: http.StatusConflict, reason: metav1.StatusReasonAlreadyExists, sent: 2},
		"forbidden":      {code: http.StatusForbidden, reason: metav1.StatusReasonForbidden, sent: 2, log: refused},
		"invalid":        {code: http.StatusUnprocessableEntity, reason: metav1.StatusReasonInvalid, sent: 2, log: refused},
		"bad request":    {code: http.StatusBadRequest, reason: metav1.StatusReasonBadRequest, sent: 2, log: refused},
		"unauthorized":   {code: http.StatusUnauthorized, reason: metav1.StatusReasonUnauthorized, sent: 1, left: []string{"one", "two"}},
		"internal error": {code: http.StatusInternalServerError, reason: metav1.StatusReasonInternalError, sent: 1, left: []string{"one", "two"}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.before = func(_ string, _ int, w http.ResponseWriter, _ *http.Request) bool {
				return test.reason != "" && answerStatus(w, test.code, test.reason, "the server's message")
			}
			a, log := inCluster(t, api)
			a.events.add(eventNormal, "R", "one")
			a.events.add(eventNormal, "R", "two")
			a.events.flush(t.Context())
			assert.Len(t, api.seen(), test.sent)
			assert.Equal(t, test.left, queued(a.events))
			if test.log == "" {
				assert.Empty(t, log.String())
			} else {
				assert.Contains(t, log.String(), test.log)
			}

			if test.left != nil {
				api.before = nil
				a.events.flush(t.Context())
				assert.Empty(t, queued(a.events))
			}
			require.Equal(t, test.code == http.StatusCreated || test.left != nil, len(api.events) == 2, "both, in order, or none")
		})
	}
}
