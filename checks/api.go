package checks

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// API makes one authenticated request to the Kubernetes API. That proves the path to it, TLS
// against the cluster's CA, authentication and authorization in one call.
type API struct {
	// Get makes the request and says what it proved, and how long it took if that was before.
	Get func(ctx context.Context) (detail string, took time.Duration, err error)
}

// Name implements Check.
func (API) Name() string { return APIName }

// Try implements Check.
func (a API) Try(ctx context.Context) (Report, error) {
	ctx, way := traced(ctx)
	detail, took, err := a.Get(ctx)
	if err != nil {
		return Report{}, apiFailure(ctx, way.explain(err), "apply the ClusterRole and its binding from the chart: nodes, get and patch")
	}
	return Report{Detail: detail, Took: took}, nil
}

// apiFailure names the layer that err comes from; grant is the remedy where a permission is missing.
func apiFailure(ctx context.Context, err error, grant string) error {
	var (
		authority    x509.UnknownAuthorityError
		hostname     x509.HostnameError
		certificate  x509.CertificateInvalidError
		verification *tls.CertificateVerificationError
		record       tls.RecordHeaderError
	)
	switch {
	case Remedy(err) != "":
		return err
	case apierrors.IsUnauthorized(err):
		return fail("look at the pod's service account token and at the API server's log; a token is rotated by kubelet before it expires",
			"authentication: the API server does not accept the service account token: %w", err)
	case apierrors.IsForbidden(err):
		return fail(grant, "authorization: %w", err)
	case apierrors.IsNotFound(err):
		return fail("NODE_NAME must be the name of the Node object (the pod's spec.nodeName); or the node was deleted",
			"the node does not exist: %w", err)
	case apierrors.IsTooManyRequests(err):
		return fail("the API server is overloaded or limits this client (API Priority and Fairness); it is tried again",
			"the API server asks to wait: %w", err)
	case errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &certificate), errors.As(err, &verification):
		return fail("compare the CA in the pod's service account volume with the API server's certificate, and the clock of this node; or something between them answers in its place",
			"TLS: %w", err)
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return fail("what answers at the address of the API server is not the API server",
			"TLS: %w", err)
	case apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsUnexpectedServerError(err):
		return fail("look at the health and the log of the API server",
			"the API server answers with an error: %w", err)
	case isTimeout(err) || ctx.Err() != nil:
		return fail("check that kube-proxy (or what replaces it) has programmed the kubernetes service on this node, and that nothing drops packets to the API server; large packets too (path MTU)",
			"no answer from the API server in time: %w", err)
	default:
		return fail("look at the API server and at what lies between it and this node: kube-proxy (or what replaces it), the CNI's routes", "%w", err)
	}
}
