package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/kube"
)

const (
	// endpointsFor is how long a list of endpoints is used, noEndpointsFor is how long an empty one is.
	endpointsFor   = 3 * time.Second
	noEndpointsFor = time.Second
	// noDNSFor is how long workers wait for an endpoint. A cluster that starts has none at first, and a worker does not see
	// those that come later. Then they start without, to report it.
	noDNSFor = 30 * time.Second
)

// errNoEndpoints means that the DNS service has no ready endpoint yet.
var errNoEndpoints = errors.New("the DNS service has no ready endpoint yet")

// Endpoints reads the ready endpoints of the DNS service, at most once in a while.
type Endpoints struct {
	list func(context.Context) ([]checks.EndpointSlice, error)

	reading            singleflight.Group
	mu                 sync.Mutex
	last               []string
	readAt, emptySince time.Time
}

// NewEndpoints returns those of service, namespace/name; "": there are none to read. One request takes at most timeout.
func NewEndpoints(client *kube.Client, service string, timeout time.Duration) *Endpoints {
	namespace, name, found := strings.Cut(service, "/")
	if !found {
		return &Endpoints{}
	}
	return &Endpoints{list: func(ctx context.Context) ([]checks.EndpointSlice, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		found, err := kube.EndpointSlices[checks.EndpointSlice](ctx, client, namespace, name)
		if err != nil {
			return nil, fmt.Errorf("EndpointSlices of %s: %w: apply the Role and its binding from the chart in namespace %s",
				service, err, namespace)
		}
		return found, nil
	}}
}

// List returns the ready endpoints as a worker reads them. The error is errNoEndpoints, or that of the request. Nobody waits
// for more than one request.
func (e *Endpoints) List(ctx context.Context) ([]string, error) {
	if e.list == nil {
		return nil, nil
	}
	e.mu.Lock()
	limit := endpointsFor
	if len(e.last) == 0 {
		limit = noEndpointsFor
	}
	isFresh := time.Since(e.readAt) < limit
	e.mu.Unlock()
	if !isFresh {
		if _, err, _ := e.reading.Do("", func() (any, error) { return nil, e.read(ctx) }); err != nil {
			return nil, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.last) == 0 && time.Since(e.emptySince) < noDNSFor {
		return nil, errNoEndpoints
	}
	return e.last, nil
}

func (e *Endpoints) read(ctx context.Context) error {
	found, err := e.list(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last, e.readAt = checks.FormatEndpoints(found), time.Now()
	if len(e.last) > 0 {
		e.emptySince = time.Time{}
	} else if e.emptySince.IsZero() {
		e.emptySince = e.readAt
	}
	return nil
}
