package checks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What others send is bounded, and no terminal obeys it.

// raw answers every request with this text.
func raw(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, text)
	}
}

// outcomeOf makes one round of a check, and returns its attempt.
func outcomeOf(t *testing.T, check Check) Attempt {
	t.Helper()
	runner := Runner{Timeout: enough, NewBackOff: func() backoff.BackOff { return &backoff.StopBackOff{} }}
	results, err := runner.Round(t.Context(), []Check{check})
	require.NoError(t, err)
	return results[0]
}

func TestForeignHTTPAnswers(t *testing.T) {
	t.Parallel()
	const escapes = "\x1b[2J\x1b[31m"
	header := func(bytes int) string {
		return "HTTP/1.1 200 OK\r\nX-Header: " + strings.Repeat("a", bytes) + "\r\nContent-Length: 0\r\n\r\n"
	}
	for name, test := range map[string]struct {
		answer     string
		says, peer string // what is said about an HTTPS target and about a peer; "": it passes
		detail     string
	}{
		"a status text":              {answer: "HTTP/1.1 404 " + escapes + "gone\r\n\r\n", says: ": 404 Not Found", peer: "answers 404 Not Found"},
		"an unknown status":          {answer: "HTTP/1.1 499 " + escapes + "gone\r\n\r\n", says: ": 499", peer: "answers 499"},
		"a status below 100":         {answer: "HTTP/1.1 099 " + escapes + "gone\r\n\r\n", says: ": 99", peer: "answers 99"},
		"the status text of a pass":  {answer: "HTTP/1.1 200 " + escapes + "fine\r\nContent-Length: 0\r\n\r\n", detail: " 200 OK"},
		"a status line of 9 MB":      {answer: "HTTP/1.1 404 " + strings.Repeat("a", 9<<20) + "\r\n\r\n", says: "exceeded 16384 bytes", peer: "exceeded 16384 bytes"},
		"a header of 9 MB":           {answer: header(9 << 20), says: "exceeded 16384 bytes", peer: "exceeded 16384 bytes"},
		"a header of 12 kB":          {answer: header(12 << 10), detail: " 200 OK"},
		"a header that is malformed": {answer: "HTTP/1.1 200 OK\r\n" + escapes + strings.Repeat("a", 9000) + "\r\n\r\n", says: "malformed", peer: "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, ca := secure(t, raw(test.answer))
			target := outcomeOf(t, Network{ClusterCA: ca, Targets: []Target{ParseTarget("https://" + address)}})
			listed := outcomeOf(t, Network{ClusterCA: ca, Targets: []Target{ParseTarget("https://" + address + "#200|401")}})
			assert.Equal(t, target.Err == nil, listed.Err == nil)
			plain := serving(t, "127.0.0.1", func(conn net.Conn) {
				_, _ = conn.Read(make([]byte, 4096))
				_, _ = io.WriteString(conn, test.answer)
			})
			peer := outcomeOf(t, Peers{MustAnswer: true, Sample: func(context.Context) ([]Peer, error) { return []Peer{{Address: plain, Node: "n"}}, nil }})
			if test.says == "" {
				require.NoError(t, target.Err)
				assert.Equal(t, "GET https://"+address+test.detail, target.Report.Detail)
				require.NoError(t, peer.Err)
				return
			}
			for err, says := range map[error]string{target.Err: test.says, peer.Err: test.peer} {
				require.ErrorContains(t, err, says)
				assert.NotContains(t, err.Error(), "\x1b")
				assert.NotContains(t, err.Error(), "gone")
				assert.LessOrEqual(t, len(err.Error()), 2100)
			}
		})
	}
}

// checkOf is a check with this report and error.
type checkOf struct {
	report Report
	err    error
}

func (checkOf) Name() string                          { return NetworkName }
func (c checkOf) Try(context.Context) (Report, error) { return c.report, c.err }

func TestTextsAreShortAndPrintable(t *testing.T) {
	t.Parallel()
	cause := errors.New("é\x1b[2J\u009b31m\u202e\n" + strings.Repeat("ü", 1<<20))
	attempt := outcomeOf(t, checkOf{Report{Warnings: []string{"a\x07b", "fine: é"}}, fail("call somebody", "TCP: %w", cause)})
	assert.Regexp(t, "^TCP: é \\[2J 31m ü+\\.\\.\\.$", attempt.Err.Error())
	assert.LessOrEqual(t, len(attempt.Err.Error()), 2100)
	assert.ErrorIs(t, attempt.Err, cause)
	assert.Equal(t, "call somebody", Remedy(attempt.Err))
	assert.Equal(t, []string{"a b", "fine: é"}, attempt.Report.Warnings)
}

// A name may have thousands of addresses: 8 of each family are dialled.
func TestNameWithManyAddresses(t *testing.T) {
	t.Parallel()
	var v4, v6 []string
	for i := range 40 {
		v4, v6 = append(v4, fmt.Sprintf("127.0.1.%d", i)), append(v6, fmt.Sprintf("ff02::%x", i+1))
	}
	_, port, err := net.SplitHostPort(refusing(t))
	require.NoError(t, err)
	for failure, says := range map[string]script{"connection refused": {a: v4}, "network is unreachable": {aaaa: v6}} {
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"many.example.": says})
		n := Network{Resolver: &Resolver{Servers: []string{server.address}}, Targets: []Target{ParseTarget("many.example:" + port)}}
		_, err := n.Try(limited(t, enough))
		require.Error(t, err)
		assert.Equal(t, 8, strings.Count(err.Error(), failure), failure)
	}
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"many.example.": {a: v4, aaaa: v6}})
	addrs, err := Network{Resolver: &Resolver{Servers: []string{server.address}}}.resolve(limited(t, enough), "many.example")
	require.NoError(t, err)
	assert.ElementsMatch(t, append(parseAddrs(v4[:8]), parseAddrs(v6[:8])...), addrs)
}
