package kube

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/imunhatep/kube-node-ready/hack/apitest"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

func queued(e *Events) (messages []string) {
	for len(e.queue) > 0 {
		var event corev1.Event
		_ = json.Unmarshal((<-e.queue).body, &event)
		messages = append(messages, event.Message)
	}
	return messages
}

func TestEventFits(t *testing.T) {
	e := NewEvents(nil, "node1", "ns/pod", time.Second, nil)
	e.Add(EventNormal, "R", strings.Repeat("a", verdict.MaxMessage))
	e.Add(EventNormal, "R", strings.Repeat("a", verdict.MaxMessage+1))
	e.Add(EventNormal, "R", strings.Repeat("a", verdict.MaxMessage-4)+"äöü")
	assert.Equal(t, []string{
		strings.Repeat("a", verdict.MaxMessage),
		strings.Repeat("a", verdict.MaxMessage-3) + "...",
		strings.Repeat("a", verdict.MaxMessage-4) + "...", // no half of a letter
	}, queued(e))
}

func TestOldestEventIsDropped(t *testing.T) {
	e := NewEvents(nil, "node1", "ns/pod", time.Second, nil)
	for _, letter := range strings.Split("abcdefghij", "") {
		e.Add(EventNormal, "R", letter)
	}
	assert.Equal(t, strings.Split("cdefghij", ""), queued(e))
}

// What is refused is dropped, with a warning; what else fails is sent again, and what is behind it waits. Nobody waits for either.
func TestRun(t *testing.T) {
	const refused = "event refused: apply the Role and its binding from the chart in namespace default (events, create)"
	for name, test := range map[string]struct {
		code   int
		reason metav1.StatusReason
		sent   []string
		log    string
	}{
		"taken":          {code: http.StatusCreated, sent: []string{"one", "two"}},
		"already there":  {code: http.StatusConflict, reason: metav1.StatusReasonAlreadyExists, sent: []string{"one", "two"}},
		"forbidden":      {code: http.StatusForbidden, reason: metav1.StatusReasonForbidden, sent: []string{"one", "two"}, log: refused},
		"invalid":        {code: http.StatusUnprocessableEntity, reason: metav1.StatusReasonInvalid, sent: []string{"one", "two"}, log: refused},
		"bad request":    {code: http.StatusBadRequest, reason: metav1.StatusReasonBadRequest, sent: []string{"one", "two"}, log: refused},
		"unauthorized":   {code: http.StatusUnauthorized, reason: metav1.StatusReasonUnauthorized, sent: []string{"one", "one", "two"}},
		"internal error": {code: http.StatusInternalServerError, reason: metav1.StatusReasonInternalError, sent: []string{"one", "one", "two"}},
	} {
		t.Run(name, func(t *testing.T) {
			var sent []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "/api/v1/namespaces/default/events", r.URL.Path)
				var event corev1.Event
				assert.NoError(t, json.NewDecoder(r.Body).Decode(&event))
				code := http.StatusCreated
				if sent = append(sent, event.Message); len(sent) == 1 {
					code = test.code
				}
				apitest.AnswerStatus(w, code, test.reason, "the server's message")
			}))
			defer server.Close()
			client, err := NewClient(&rest.Config{Host: server.URL})
			require.NoError(t, err)
			var log bytes.Buffer
			logger := logrus.New()
			logger.SetOutput(&log)
			e := NewEvents(client.Core, "node1", "ns/pod", 3*time.Second, logger.WithField("node", "node1"))
			e.Flush(t.Context()) // there is nothing to wait for
			e.Add(EventNormal, "R", "one")
			e.Add(EventNormal, "R", "two")
			go e.Run(t.Context())
			e.Flush(t.Context())
			assert.Equal(t, test.sent, sent)
			if test.log == "" {
				assert.Empty(t, log.String())
			} else {
				assert.Contains(t, log.String(), test.log)
			}
		})
	}
}

// The age of a node is taken from the API server's clock.
func TestServerTime(t *testing.T) {
	date := "Sat, 21 Nov 2026 21:00:00 GMT"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Date"] = nil
		if date != "" {
			w.Header().Set("Date", date)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	assert.Zero(t, client.ServerTime())
	require.NoError(t, client.Versions(t.Context()))
	want := time.Date(2026, 11, 21, 21, 0, 0, 0, time.UTC)
	assert.WithinDuration(t, want, client.ServerTime(), time.Minute)
	for _, none := range []string{"", "now"} {
		date = none
		require.NoError(t, client.Versions(t.Context()))
		assert.WithinDuration(t, want, client.ServerTime(), time.Minute, "the last one that there was")
	}
}

// A clock is off only by what an answer proves: its Date header has whole seconds, and was written at any moment of the request.
func TestClockSkew(t *testing.T) {
	for name, test := range map[string]struct{ ahead, before, after, since, want time.Duration }{
		"none":                     {},
		"less than the resolution": {ahead: 999 * time.Millisecond},
		"ahead":                    {ahead: 15 * time.Second, want: 14 * time.Second},
		"behind":                   {ahead: -15 * time.Second, want: -15 * time.Second},
		"a slow connection":        {before: 12 * time.Second, after: 12 * time.Second},
		"ahead, a slow connection": {ahead: time.Minute, before: 12 * time.Second, want: 47 * time.Second},
		"behind, a slow answer":    {ahead: -time.Minute, after: 12 * time.Second, want: -48 * time.Second},
		"an hour later":            {ahead: -15 * time.Second, since: time.Hour, want: -15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, err := NewClient(&rest.Config{Host: "http://api", Transport: answering(func() http.Header {
					time.Sleep(test.before)
					date := time.Now().Add(-test.ahead).UTC().Format(http.TimeFormat)
					time.Sleep(test.after)
					return http.Header{"Date": {date}}
				})})
				require.NoError(t, err)
				assert.Zero(t, client.ClockSkew(), "before an answer")
				require.NoError(t, client.Versions(t.Context()))
				time.Sleep(test.since)
				assert.Equal(t, test.want, client.ClockSkew())
			})
		})
	}
}

// answering is a transport to a server that answers with these headers.
type answering func() http.Header

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: a(), Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
}

func (answering) CloseIdleConnections() {}

// Each api check proves the path from TCP on, also through the reader of the clock.
func TestCloseIdleConnections(t *testing.T) {
	var remote []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		remote = append(remote, r.RemoteAddr)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	require.NoError(t, err)
	require.NoError(t, client.Versions(t.Context()))
	require.NoError(t, client.Versions(t.Context()))
	client.CloseIdleConnections()
	require.NoError(t, client.Versions(t.Context()))
	assert.Equal(t, remote[0], remote[1])
	assert.NotEqual(t, remote[1], remote[2])
}
