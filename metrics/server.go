package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Listen binds port on every address before it returns, so that a port in use fails the start. It
// serves in the background until Shutdown. An answer must be written within the timeout; 0: there is no limit.
func Listen(port int, handler http.Handler, timeout time.Duration) (*http.Server, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("metrics port %d cannot be bound: %w", port, err)
	}
	server := &http.Server{Addr: listener.Addr().String(), Handler: handler, ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout: timeout, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}
	go func() { _ = server.Serve(listener) }() // after Shutdown the error says so
	return server, nil
}

// Handler serves the three paths.
//
// /healthz is 200 while the process answers: a restart does not repair a node that fails its checks,
// and loses the metrics. /readyz is 200 once the node is verified, else 503.
func (r *Recorder) Handler() http.Handler {
	mux := http.NewServeMux()
	// 4 kB every half minute: a compressor would hold more memory than it saves in bytes.
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{DisableCompression: true}))
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
