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

// API makes one authenticated request to the Kubernetes API. That proves the path to it, TLS against the cluster's CA,
// authentication and authorization in one call.
type API struct {
	// Get makes the request and returns what it proved. took is set if it reused an earlier request: the duration of that.
	Get func(ctx context.Context) (detail string, took time.Duration, err error)
}

// Name implements Check.
func (API) Name() string { return APIName }

// Try implements Check.
func (a API) Try(ctx context.Context) (Report, error) {
	ctx, phase := tracePhase(ctx)
	detail, took, err := a.Get(ctx)
	if err != nil {
		grant := "apply the ClusterRole and its binding from the chart: nodes, get and patch"
		return Report{}, apiFailure(ctx, phase.explain(err), grant)
	}
	return Report{Detail: detail, Took: took}, nil
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
		return fail("NODE_NAME must be the name of the Node object (the pod's spec.nodeName); or the node was deleted",
			"the node does not exist: %w", err)
	case apierrors.IsTooManyRequests(err):
		return fail("the API server is overloaded or limits this client (API Priority and Fairness); the agent will retry",
			"the API server asks to wait: %w", err)
	case is[x509.UnknownAuthorityError](err), is[x509.HostnameError](err), is[x509.CertificateInvalidError](err),
		is[*tls.CertificateVerificationError](err):
		return fail("compare the CA in the pod's service account volume with the API server's certificate, "+
			"and check this node's clock; or a proxy on the path answers instead", "TLS: %w", err)
	case is[tls.RecordHeaderError](err), errors.Is(err, http.ErrSchemeMismatch):
		return fail("something other than the API server answers at its address", "TLS: %w", err)
	case apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err), apierrors.IsServerTimeout(err),
		apierrors.IsTimeout(err), apierrors.IsUnexpectedServerError(err):
		return fail("check the health and the log of the API server", "the API server answers with an error: %w", err)
	case isTimeout(err) || ctx.Err() != nil:
		return fail("check that kube-proxy (or its replacement) has programmed the kubernetes service on this node, "+
			"and that nothing drops packets to the API server; large packets too (path MTU)",
			"no answer from the API server in time: %w", err)
	default:
		return fail("check the API server and the path to it: kube-proxy (or its replacement), the CNI's routes", "%w", err)
	}
}
