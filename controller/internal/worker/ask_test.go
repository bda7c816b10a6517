package worker

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

func TestVerdictOfAWorker(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		text   string
		want   bool
		header int // bytes, besides Go's own
	}{
		"passed":                {status: http.StatusOK, text: "verified secret\n", want: true},
		"failed":                {status: http.StatusServiceUnavailable, text: "not verified\n"},
		"another worker":        {status: http.StatusOK, text: "verified other\n"},
		"something else":        {status: http.StatusOK, text: "verified\n"},
		"the key, but not well": {status: http.StatusForbidden, text: "verified secret\n"},
		"megabytes of headers":  {status: http.StatusOK, text: "verified secret\n", header: 5 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
				assert.Equal(t, "/readyz", request.URL.Path)
				out.Header().Set("X-Header", strings.Repeat("a", test.header))
				out.WriteHeader(test.status)
				_, _ = out.Write([]byte(test.text))
			}))
			defer server.Close()
			pod, asker := listening(t, server)
			assert.Equal(t, test.want, asker.HasPassed(t.Context(), pod, "secret"))
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		pod, asker := listening(t, server)
		assert.False(t, asker.HasPassed(t.Context(), pod, "secret"))
	})
}

// listening is a worker that listens where server does.
func listening(t *testing.T, server *httptest.Server) (*corev1.Pod, Asker) {
	address, err := netip.ParseAddrPort(strings.TrimPrefix(server.URL, "http://"))
	require.NoError(t, err)
	return newWorker("a", 1, running, func(pod *corev1.Pod) { pod.Status.PodIP = address.Addr().String() }), Asker{Port: int(address.Port())}
}

// A worker that has said that it has passed gives its slot back at once: kubelet reports it a second later, and ends it later still.
func TestPassedWorkerHoldsNoSlot(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		_, _ = out.Write([]byte(verdict.Answer("secret")))
	}))
	defer server.Close()
	c := newCluster(t, newNode())
	pod, asker := listening(t, server)
	c.Asker, c.memories.nodes["n"] = asker, memory{workers: map[string]workerState{"a": {key: "secret"}}}
	c.workerChanged(c.queue, pod, false)
	assert.Len(t, c.slots.holders, 1)
	c.ask(t.Context(), view{node: newNode(), pods: []*corev1.Pod{pod}, memory: c.memories.nodes["n"]})
	holders := func() int {
		c.slots.mu.Lock()
		defer c.slots.mu.Unlock()
		return len(c.slots.holders)
	}
	assert.Eventually(t, func() bool { return holders() == 0 }, time.Minute, time.Millisecond)
	c.workerChanged(c.queue, pod, false) // its address, or something else
	assert.Zero(t, holders())
}

// Any pod may listen where a worker listened before.
func FuzzAnswerOfAWorker(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\nverified secret")
	f.Add("HTTP/1.1 099 low\r\n\r\nverified secret")
	f.Add("HTTP/1.1 301 Moved\r\nLocation: http://[::1\r\n\r\n")
	f.Add("HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\nConnection: Upgrade\r\n\r\nverified secret")
	f.Add("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nverified secret")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		a := Asker{Port: 8080, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				_, _ = http.ReadRequest(bufio.NewReader(theirs))
				_, _ = io.WriteString(theirs, text)
				_ = theirs.Close()
			}()
			return ours, nil
		}}}
		pod := newWorker("a", 1, running, func(pod *corev1.Pod) { pod.Status.PodIP = "10.0.0.1" })
		answer, err := a.get(t.Context(), "http://10.0.0.1:8080/readyz")
		assert.LessOrEqual(t, len(answer), 1<<10)
		if err == nil {
			assert.Equal(t, strings.TrimSpace(answer) == verdict.Answer("secret"), a.HasPassed(t.Context(), pod, "secret"))
		}
	})
}
