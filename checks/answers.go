package checks

import (
	"context"
	"errors"
	"net/http/httptrace"
	"strings"
	"syscall"
)

// WithAnswers returns a context for checks and API requests. It calls answered for everything that answers one of them: a connection
// that is accepted or refused, a DNS reply, an HTTP response. The error of an attempt does not tell: one of two queries may
// have a reply, and a connection may be accepted before the silence that the error names.
func WithAnswers(ctx context.Context, answered func()) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotFirstResponseByte: answered, // also of a reply: see noteReply
		ConnectDone: func(network, _ string, err error) {
			if isAnswer(err) && !strings.HasPrefix(network, "udp") { // which sends nothing yet
				answered()
			}
		},
	})
}

// noteReply tells WithAnswers about a DNS query that had a reply, or was refused.
func noteReply(ctx context.Context, err error) {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotFirstResponseByte != nil && isAnswer(err) {
		trace.GotFirstResponseByte()
	}
}

func isAnswer(err error) bool {
	return err == nil || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}
