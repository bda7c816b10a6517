package kube

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/hack/apitest"
)

// tapped is a listener that keeps what its connections receive.
type tapped struct {
	net.Listener
	mu       sync.Mutex
	received []byte
}

func (l *tapped) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return tappedConn{conn, l}, err
}

type tappedConn struct {
	net.Conn
	listener *tapped
}

func (c tappedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.received = append(c.listener.received, p[:n]...)
	return n, err
}

func TestDecodeItems(t *testing.T) {
	type item struct{ A int }
	const list = `{"kind":"X","metadata":{"items":1,"continue":""},"items":[{"a":1,"b":{"items":[7]}},{"a":2}],"more":["items"]}`
	var items []item
	decode := func(text string) error {
		items = nil
		return decodeItems(strings.NewReader(text), func(i item) { items = append(items, i) })
	}
	require.NoError(t, decode(list))
	assert.Equal(t, []item{{1}, {2}}, items)
	for _, empty := range []string{`{"items":[]}`, `{"items":null,"x":[{"a":1}]}`, `{}`} {
		require.NoError(t, decode(empty))
		assert.Empty(t, items, empty)
	}
	for end := 1; end < len(list); end++ {
		require.Error(t, decode(list[:end]), list[:end])
	}
}

// Kubelet rotates the token of a pod that lives for weeks: a refused token is read again at once.
func TestTokenIsRotated(t *testing.T) {
	t.Parallel()
	var valid atomic.Value
	valid.Store("Bearer first")
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != valid.Load() {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("first"), 0o600))
	client, err := NewClient(&rest.Config{Host: server.URL, BearerTokenFile: file, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	require.NoError(t, err)
	require.NoError(t, client.Versions(t.Context()))

	require.NoError(t, os.WriteFile(file, []byte("second"), 0o600))
	valid.Store("Bearer second")
	require.Error(t, client.Versions(t.Context()), "the cached one")
	require.Eventually(t, func() bool { return client.Versions(t.Context()) == nil }, 30*time.Second, 10*time.Millisecond)
}

// silent listens, and drops every packet until open.
func silent(t *testing.T) (listener net.Listener, open func()) {
	t.Helper()
	socket := 0
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
		return errors.Join(raw.Control(func(fd uintptr) {
			socket = int(fd)
			err = unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
		}), err)
	}}
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener, func() { _ = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) }
}

// The next attempt comes as soon as the API server accepts connections, and not after the pause.
func TestSignOfTheAPIServer(t *testing.T) {
	t.Parallel()
	listener, open := silent(t)
	server := &httptest.Server{Listener: listener, Config: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { apitest.Answer(w, http.StatusOK, struct{}{}) })}}
	server.Start()
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: "http://" + listener.Addr().String()})
	require.NoError(t, err)
	var seen []checks.Attempt
	runner := checks.Runner{Timeout: 500 * time.Millisecond, MaxRetries: 1, Observe: func(a checks.Attempt) {
		seen = append(seen, a)
		open()
	}, NewBackOff: func() backoff.BackOff { return backoff.NewConstantBackOff(time.Hour) }}

	_, err = runner.Round(t.Context(), []checks.Check{checks.API{Get: func(ctx context.Context) (checks.Report, error) {
		return checks.Report{}, client.Versions(ctx)
	}}})

	require.NoError(t, err)
	require.Len(t, seen, 2)
	require.ErrorContains(t, seen[0].Err, "no answer from the API server in time: TCP connection not accepted")
	require.NoError(t, seen[1].Err)
	assert.True(t, seen[1].AfterSign)
}

// A flow that began before kube-proxy's rules is never translated: another source port is.
func TestRequestConnectsAgainBesideASilentConnection(t *testing.T) {
	t.Parallel()
	listener, _ := silent(t)
	client, err := NewClient(&rest.Config{Host: "http://" + listener.Addr().String()})
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var connections atomic.Int32
	err = client.Versions(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectStart: func(string, string) {
		if connections.Add(1) == 2 {
			cancel()
		}
	}}))
	require.Error(t, err)
	assert.EqualValues(t, 2, connections.Load())
}

// Go sends each TLS record (RFC 8446, 5.1) as soon as it is complete, so that no packet is larger than a record.
func TestLargeRequestFillsJumboFrames(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	server.EnableHTTP2 = true
	listener := &tapped{Listener: server.Listener}
	server.Listener = listener
	server.StartTLS()
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	require.NoError(t, err)

	value := strings.Repeat("X~", 9000) // HTTP/2 would send longer codes for these: it sends them as they are
	require.NoError(t, client.Core.Get().AbsPath("/api").SetHeader("Padding", value).Do(t.Context()).Error())

	listener.mu.Lock()
	defer listener.mu.Unlock()
	largest := 0
	for left := listener.received; len(left) >= 5; {
		length := int(binary.BigEndian.Uint16(left[3:5]))
		largest = max(largest, length)
		left = left[min(len(left), 5+length):]
	}
	assert.Greater(t, largest, 9001)
}

// The header goes with the requests of its context, and with no others.
func TestLargeHeader(t *testing.T) {
	t.Parallel()
	var got [][]string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header["X-Kube-Node-Ready-Padding"])
		apitest.Answer(w, http.StatusOK, struct{}{})
	}))
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	large := WithLargeHeader(t.Context(), "X~X~")
	for _, ctx := range []context.Context{large, t.Context(), WithLargeHeader(large, "")} {
		require.NoError(t, client.Versions(ctx))
		_, err := client.NodeStatus(ctx, "node1")
		require.NoError(t, err)
		require.NoError(t, client.Core.Get().Resource("nodes").Name("node1").Do(ctx).Error(), "as package nodepatch reads a node")
	}
	value := []string{"X~X~"}
	assert.Equal(t, [][]string{value, value, value, nil, nil, nil, nil, nil, nil}, got)
}

// The API server, or a proxy in front of it, may send anything.
func FuzzList(f *testing.F) {
	f.Add(`{"kind":"EndpointSliceList","metadata":{"resourceVersion":"1"},"items":[{"endpoints":[{"addresses":["10.0.0.1"]}]},{}]}`)
	f.Add(`{"items":[null,{"metadata":{"items":[1]}}],"items":[{}]}`)
	f.Add(`[["items",[{}]]]`)
	f.Add(`{"items":[{"endpoints":`)
	f.Add(`]}"items"`)
	f.Fuzz(func(t *testing.T, text string) {
		err := decodeItems(strings.NewReader(text), func(checks.EndpointSlice) {})
		var list struct{ Items []checks.EndpointSlice }
		if json.Unmarshal([]byte(text), &list) == nil {
			assert.NoError(t, err, "encoding/json reads the list")
		}
	})
}
