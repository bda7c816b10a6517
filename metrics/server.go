package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
)

// Listen binds port on every address before it returns, so that a port in use fails the start. It
// serves in the background until Shutdown. An answer must be written within the timeout; 0: there is no limit.
func Listen(port int, handler http.Handler, timeout time.Duration) (*http.Server, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("metrics port %d cannot be bound: %w", port, err)
	}
	// No ReadTimeout: it would end a request that waits for its answer.
	server := &http.Server{Addr: listener.Addr().String(), Handler: handler, ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout: timeout, MaxHeaderBytes: 4 << 10, ConnState: new(connections).changed}
	server.SetKeepAlivesEnabled(false)
	go func() { _ = server.Serve(listener) }() // after Shutdown the error says so
	return server, nil
}

const maxOfAddress, maxConnections = 8, 64

// connections bounds how many connections the server holds, because any pod may connect. It closes the oldest one of the address
// that has most, not the new one: that may be kubelet's probe. A flood from kubelet's own address can still keep kubelet out.
type connections struct {
	mu   sync.Mutex
	open []net.Conn // the oldest first
}

// changed is the server's ConnState. The server calls it with a new connection before it accepts the next one.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	if state != http.StateNew && state != http.StateClosed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateNew {
		c.open = append(c.open, conn)
		number := make(map[netip.Addr]int)
		for _, each := range c.open {
			number[source(each)]++
		}
		conn = slices.MaxFunc(c.open, func(a, b net.Conn) int { return number[source(a)] - number[source(b)] }) // the first maximum
		if len(c.open) <= maxConnections && number[source(conn)] <= maxOfAddress {
			return
		}
		_ = conn.Close()
	}
	c.open = slices.DeleteFunc(c.open, func(other net.Conn) bool { return other == conn })
}

func source(conn net.Conn) netip.Addr {
	address, _ := conn.RemoteAddr().(*net.TCPAddr)
	return address.AddrPort().Addr()
}

// Handler serves the three paths.
//
// /healthz is 200 while the process answers: a restart does not repair a node that fails its checks,
// and loses the metrics. /readyz is 200 once the node is verified, else 503.
func (r *Recorder) Handler() http.Handler {
	mux := http.NewServeMux()
	// The text format alone: promhttp would add 327 kB to the binary.
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		format := expfmt.NewFormat(expfmt.TypeTextPlain)
		w.Header().Set("Content-Type", string(format))
		families, _ := r.registry.Gather() // our own series are consistent
		for _, family := range families {
			_, _ = expfmt.MetricFamilyToText(w, family)
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !r.verified.Load() {
			http.Error(w, "not verified", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "verified")
	})
	return mux
}
