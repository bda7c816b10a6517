package metrics

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// waiting is a handler like that of a worker: /readyz does not answer while the round lasts. It counts who waits.
type waiting struct {
	mu    sync.Mutex
	hosts map[string]int
}

func (w *waiting) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/healthz" {
		_, _ = fmt.Fprintln(out, "ok")
		return
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	w.add(host, 1)
	<-r.Context().Done()
	w.add(host, -1)
}

func (w *waiting) add(host string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts[host] += n
}

// counts returns how many requests wait in all, and the most of one address.
func (w *waiting) counts() (all, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.hosts {
		all += n
		most = max(most, n)
	}
	return all, most
}

// listenFor serves a handler without a time limit until the test ends, and returns the address on loopback.
func listenFor(t *testing.T, handler http.Handler) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all of 127.0.0.0/8 as addresses of its own")
	}
	server, err := Listen(0, handler, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	_, port, err := net.SplitHostPort(server.Addr)
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", port)
}

// request sends a request for path from a source address, over a connection that stays open until the test ends.
func request(t *testing.T, source, address, path string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).DialContext(t.Context(), "tcp", address)
	if !assert.NoError(t, err) {
		runtime.Goexit() // of the test, or of a client of it
	}
	t.Cleanup(func() { _ = conn.Close() })
	assert.NoError(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n") // the server may have closed it already
	return conn
}

// status returns the code of the answer, or why no answer came.
func status(conn net.Conn) (int, error) {
	defer func() { _ = conn.Close() }()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// Any pod may connect to an agent. Thousands of connections must not exhaust its memory, nor keep kubelet's probe out.
func TestManyConnections(t *testing.T) {
	for name, test := range map[string]struct{ sources, each, all int }{
		"one pod":     {sources: 1, each: 9000, all: 8},
		"twenty pods": {sources: 20, each: 64, all: 64},
	} {
		t.Run(name, func(t *testing.T) {
			handler := &waiting{hosts: make(map[string]int)}
			address := listenFor(t, handler)
			controller := request(t, "127.0.0.200", address, "/readyz")
			require.Eventually(t, func() bool { all, _ := handler.counts(); return all == 1 }, time.Minute, time.Millisecond)

			var flood sync.WaitGroup
			var ended atomic.Bool
			for i := range test.sources {
				flood.Go(func() {
					for range test.each {
						request(t, fmt.Sprintf("127.0.1.%d", i+1), address, "/readyz")
					}
				})
			}
			go func() {
				flood.Wait()
				ended.Store(true)
			}()
			for last := false; !last; {
				last = ended.Load() // once more after the flood, too
				code, err := status(request(t, "127.0.0.100", address, "/healthz"))
				require.NoError(t, err, "kubelet's probe")
				require.Equal(t, http.StatusOK, code, "kubelet's probe")
			}
			flood.Wait()

			// Beside the controller's, which has waited longest.
			if !assert.Eventually(t, func() bool { all, most := handler.counts(); return all <= test.all+1 && most <= 8 }, 20*time.Second,
				10*time.Millisecond) {
				all, most := handler.counts()
				t.Errorf("%d connections wait for an answer, %d of them of one address", all, most)
			}
			handler.mu.Lock()
			assert.Equal(t, 1, handler.hosts["127.0.0.200"], "the controller's connection")
			handler.mu.Unlock()
			_ = controller.Close()
		})
	}
}

// One pod's requests come from the node's own address, as kubelet's do: kubelet's are answered as well.
func TestConnectionsFromKubeletsAddress(t *testing.T) {
	handler := &waiting{hosts: make(map[string]int)}
	address := listenFor(t, handler)
	for range 100 {
		request(t, "127.0.0.1", address, "/readyz")
	}
	code, err := status(request(t, "127.0.0.1", address, "/healthz"))
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, code)
}

func TestConnectionsEndWithTheAnswer(t *testing.T) {
	address := listenFor(t, newRecorder().Handler())
	conn := request(t, "127.0.0.1", address, "/healthz")
	text, err := io.ReadAll(conn) // to its end: the server closes it
	require.NoError(t, err)
	assert.Contains(t, string(text), "Connection: close")
}
