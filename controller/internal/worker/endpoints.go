package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/kube"
)

const (
	// endpointsFor is how long a list of endpoints is used, and noEndpointsFor is how long an empty list or an error is.
	endpointsFor   = 3 * time.Second
	noEndpointsFor = time.Second
	// noDNSFor is how long workers wait for an endpoint. A cluster that starts has none at first, and a worker does not see
	// those that come later. After that, workers start without any, and report it.
	noDNSFor = 30 * time.Second
)

// errNoEndpoints means that the DNS service has no ready endpoint yet.
var errNoEndpoints = errors.New("the DNS service has no ready endpoint yet")

// Endpoints reads the ready endpoints of the DNS service, at most once in a while.
type Endpoints struct {
	list func(context.Context) ([]string, error)

	turn               chan struct{} // has room for one, so that all wait for the same request, or for ctx
	last               []string
	err                error     // of the last request
	readAt, emptySince time.Time // emptySince has a meaning only if the last list was empty
}

// NewEndpoints returns the endpoints of service, "namespace/name". If it is empty, List returns none. timeout is for one request.
func NewEndpoints(client *kube.Client, service string, timeout time.Duration) *Endpoints {
	namespace, name, found := strings.Cut(service, "/")
	if !found {
		return &Endpoints{}
	}
	return &Endpoints{turn: make(chan struct{}, 1), list: func(ctx context.Context) ([]string, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		slices, err := kube.EndpointSlices[checks.EndpointSlice](ctx, client, namespace, name)
		if err != nil {
			return nil, fmt.Errorf("EndpointSlices of %s: %w: apply the Role and its binding from the chart in namespace %s",
				service, err, namespace)
		}
		return checks.FormatEndpoints(slices), nil
	}}
}

// List returns the ready endpoints in the format of a worker. The error is errNoEndpoints, or that of the request.
func (e *Endpoints) List(ctx context.Context) ([]string, error) {
	if e.list == nil {
		return nil, nil
	}
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	limit := endpointsFor
	if len(e.last) == 0 {
		limit = noEndpointsFor
	}
	if time.Since(e.readAt) >= limit {
		if e.readAt.IsZero() || e.err != nil || len(e.last) > 0 {
			e.emptySince = time.Now() // if the list is empty now
		}
		e.last, e.err = e.list(ctx)
		e.readAt = time.Now()
	}
	if e.err == nil && len(e.last) == 0 && time.Since(e.emptySince) < noDNSFor {
		return nil, errNoEndpoints
	}
	return e.last, e.err
}
