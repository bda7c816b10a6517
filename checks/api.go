package checks

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// API makes one request to the Kubernetes API: the path to it, TLS, authentication and authorization in one call.
type API struct {
	// Get makes the request and returns what it proved. It sends the header of WithLargeHeader, or reuses a request that did.
	Get func(ctx context.Context) (Report, error)
	// ClockSkew returns by how much this node's clock is ahead of the API server's; nil: the clocks are not compared.
	ClockSkew func() time.Duration
	MaxSkew   time.Duration // 0: no difference is a failure
}

// noticeableSkew is the difference of the clocks that is a warning.
const noticeableSkew = 10 * time.Second

// Name implements Check.
func (API) Name() string { return APIName }

// Try implements Check.
func (a API) Try(ctx context.Context) (Report, error) {
	ctx, explain := tracePhase(ctx)
	report, err := a.Get(ctx)
	if err != nil {
		return Report{}, apiFailure(ctx, explain(err), "apply the chart's ClusterRole and its binding: get and patch of nodes")
	}
	if a.ClockSkew == nil {
		return report, nil
	}
	return a.compareClocks(report)
}

// compareClocks adds a warning to the report, or returns an error, if the clocks differ too much.
func (a API) compareClocks(report Report) (Report, error) {
	skew, now := a.ClockSkew(), time.Now().UTC()
	fails := a.MaxSkew > 0 && skew.Abs() > a.MaxSkew
	if !fails && skew.Abs() <= noticeableSkew {
		return report, nil
	}
	err := fail("synchronize this node's clock (chrony, systemd-timesyncd), or the API server's if many nodes differ from it",
		"this node's clock differs from the API server's (%s, not %s)", now.Format(time.RFC3339), now.Add(-skew).Format(time.RFC3339))
	if fails {
		return report, err
	}
	report.Warnings = append(report.Warnings, err.Error())
	return report, nil
}

// WithLargeHeader calls send with the value for a header that makes the request larger than two packets of this node, so that
// it proves the MTU of the path. If the API server or a proxy refuses it (400, 431), it calls send once more with "", for a
// request without the header, and returns a warning. A header, because a query would stand in every line of the audit log.
func WithLargeHeader(send func(value string) error) (warnings []string, err error) {
	value := largeHeader(largestMTU())
	err = send(value)
	if !isHeaderRefused(err) {
		return nil, err
	}
	warning := fmt.Sprintf("the API server, or a proxy on the path, refuses a header of %d bytes: "+
		"this check does not prove that large packets reach it (%v)", len(value), err)
	return []string{warning}, send("")
}

// largeHeader returns a random header value, of 24 kB at most, that HTTP/2 (RFC 7541) cannot compress below two packets.
func largeHeader(mtu int) string {
	value := make([]byte, min(2*mtu, 18<<10))
	_, _ = rand.Read(value) // never fails
	return base64.RawURLEncoding.EncodeToString(value)
}

// largestMTU returns the largest MTU in bytes of the network interfaces that are up, or that of an Ethernet.
func largestMTU() int {
	mtu := 1500
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			mtu = max(mtu, i.MTU)
		}
	}
	return mtu
}

func isHeaderRefused(err error) bool {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return status.ErrStatus.Code == http.StatusBadRequest || status.ErrStatus.Code == http.StatusRequestHeaderFieldsTooLarge
	}
	// With HTTP/2 a server may announce its limit, which the client keeps, or end the connection (RFC 9113, 7 and 10.5.1).
	refusals := []string{"advertised limit", "PROTOCOL_ERROR", "COMPRESSION_ERROR", "ENHANCE_YOUR_CALM"}
	return err != nil && slices.ContainsFunc(refusals, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// tracePhase follows one request made with the context that it returns. If the request times out, explain adds to the error
// how far it got, because the causes differ.
func tracePhase(ctx context.Context) (traced context.Context, explain func(error) error) {
	var phase atomic.Pointer[string]
	next := func(text string, err error) {
		if err == nil {
			phase.Store(&text)
		}
	}
	const sent = "TCP and TLS work and the request is sent, but no answer comes"
	traced = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectStart:      func(string, string) { next("TCP connection not accepted", nil) },
		ConnectDone:       func(_, _ string, err error) { next("", err) },
		TLSHandshakeStart: func() { next("TCP connects, but the TLS handshake does not end", nil) },
		TLSHandshakeDone:  func(_ tls.ConnectionState, err error) { next("", err) },
		WroteRequest:      func(info httptrace.WroteRequestInfo) { next(sent, info.Err) },
	})
	return traced, func(err error) error {
		if text := phase.Load(); text != nil && *text != "" && isTimeout(err) {
			return fmt.Errorf("%s: %w", *text, err)
		}
		return err
	}
}

// apiFailure names the layer that failed; grant is the remedy if a permission is missing.
func apiFailure(ctx context.Context, err error, grant string) error {
	switch {
	case Remedy(err) != "":
		return err
	case apierrors.IsUnauthorized(err):
		return fail("check the pod's service account token (kubelet rotates it before it expires) and the API server's log",
			"authentication: the API server does not accept the service account token: %w", err)
	case apierrors.IsForbidden(err):
		return fail(grant, "authorization: %w", err)
	case apierrors.IsNotFound(err):
		return fail("set NODE_NAME to the name of the Node object (the pod's spec.nodeName), unless the node was deleted",
			"the node does not exist: %w", err)
	case apierrors.IsTooManyRequests(err):
		return fail("wait, the agent retries: the API server is overloaded, or limits this client (API Priority and Fairness)",
			"the API server asks to wait: %w", err)
	case is[*tls.CertificateVerificationError](err):
		return fail("check that the API server's certificate is from the CA in the pod's service account volume (worker: CLUSTER_CA), "+
			"that this node's clock is right, and that no proxy answers instead of the API server", "TLS: %w", err)
	case is[tls.RecordHeaderError](err), errors.Is(err, http.ErrSchemeMismatch):
		return fail("find out what answers at the API server's address: it does not speak TLS", "TLS: %w", err)
	case apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err), apierrors.IsServerTimeout(err),
		apierrors.IsTimeout(err), apierrors.IsUnexpectedServerError(err):
		return fail("check the health and the log of the API server", "the API server answers with an error: %w", err)
	case isTimeout(err) || ctx.Err() != nil:
		return fail("check that kube-proxy (or its replacement) has programmed the kubernetes service on this node, "+
			"and that nothing drops packets to the API server, small or large ones (path MTU)",
			"no answer from the API server in time: %w", err)
	default:
		return fail("check the API server and the path to it: kube-proxy (or its replacement), the CNI's routes", "%w", err)
	}
}
