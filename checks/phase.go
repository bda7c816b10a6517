package checks

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http/httptrace"
	"sync/atomic"
)

// requestPhase is how far a request to the API server got: the causes of a timeout differ.
type requestPhase struct{ pending atomic.Pointer[string] }

// tracePhase follows the next request made with the context that it returns.
func tracePhase(ctx context.Context) (context.Context, *requestPhase) {
	phase := new(requestPhase)
	pending := func(text string) { phase.pending.Store(&text) }
	done := func(err error) {
		if err == nil {
			phase.pending.Store(nil)
		}
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectStart:      func(string, string) { pending("TCP connection not accepted") },
		ConnectDone:       func(_, _ string, err error) { done(err) },
		TLSHandshakeStart: func() { pending("TCP connects, but the TLS handshake does not end") },
		TLSHandshakeDone:  func(_ tls.ConnectionState, err error) { done(err) },
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				pending("TCP and TLS work and the request is sent, but it is not answered")
			}
		},
	}), phase
}

// explain adds the phase to a timeout.
func (p *requestPhase) explain(err error) error {
	if pending := p.pending.Load(); pending != nil && isTimeout(err) {
		return fmt.Errorf("%s: %w", *pending, err)
	}
	return err
}
