package checks

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http/httptrace"
	"sync/atomic"
)

// way is how far a request to the API server got: an answer that did not come has another cause
// when the connection was never made than when TLS stopped half-way.
type way struct{ missing atomic.Value }

// traced follows the next request that is made with the context it returns.
func traced(ctx context.Context) (context.Context, *way) {
	w := new(way)
	w.missing.Store("")
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectStart: func(string, string) { w.missing.Store("TCP connection not accepted") },
		ConnectDone: func(_, _ string, err error) {
			if err == nil {
				w.missing.Store("")
			}
		},
		TLSHandshakeStart: func() { w.missing.Store("TCP connects, but the TLS handshake does not end") },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			if err == nil {
				w.missing.Store("")
			}
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				w.missing.Store("TCP and TLS work and the request is sent, but it is not answered")
			}
		},
	}), w
}

// explain adds to a timeout how far the request got.
func (w *way) explain(err error) error {
	if missing, ok := w.missing.Load().(string); ok && missing != "" && isTimeout(err) {
		return fmt.Errorf("%s: %w", missing, err)
	}
	return err
}
