// Package kube is the agent's access to the Kubernetes API: the REST client of a pod or a kubeconfig, the
// EndpointSlices of a service, and Events about the node.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/imunhatep/kube-node-ready/checks"
)

// Client is a REST client without any type of k8s.io/api: see nodepatch.Node. A clientset with all of
// them would double the binary.
type Client struct {
	Core rest.Interface
	*Clock
	http *http.Client
}

// NewClient returns a client without a limit of its own: each caller bounds what it sends.
func NewClient(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	// The pod's own path to the API is what is verified, whatever HTTPS_PROXY says. A kubeconfig may name a proxy for its cluster.
	if config.Proxy == nil {
		config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	config.Dial = checks.Dial
	config.WarningHandler = rest.NoWarnings{} // client-go would print them between the lines of the log
	if config.BearerTokenFile != "" {
		// client-go caches the file for a minute; after a refused token it is read again at once.
		config.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(config.BearerTokenFile)))
		config.BearerToken, config.BearerTokenFile = "", ""
	}
	clock := new(Clock)
	config.Wrap(clock.Wrap)

	// Callers decode the objects; the client itself needs to know a Status only.
	config.APIPath, config.GroupVersion = "/api", &schema.GroupVersion{Version: "v1"}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, *config.GroupVersion)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()

	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	// Go begins a TLS connection with records, and so packets, of 1 to 6 kB: a large request would fill no jumbo frame.
	if tlsConfig, err := utilnet.TLSClientConfig(httpClient.Transport); err == nil && tlsConfig != nil {
		tlsConfig.DynamicRecordSizingDisabled = true
	}
	core, err := rest.RESTClientForConfigAndClient(config, httpClient)
	return &Client{Core: core, Clock: clock, http: httpClient}, err
}

// EndpointSlices lists the EndpointSlices (discovery.k8s.io/v1) of a service as the caller's type T, from the API
// server's cache: by default it waits, up to a tenth of a second, until its cache has seen the latest write to etcd.
func EndpointSlices[T any](ctx context.Context, c *Client, namespace, service string) (found []T, err error) {
	err = EachEndpointSlice(ctx, c, namespace, service, func(slice T) { found = append(found, slice) })
	return found, err
}

// EachEndpointSlice lists them likewise, one by one: those of 5,000 endpoints are 1.5 MB. After an error the list is incomplete.
func EachEndpointSlice[T any](ctx context.Context, c *Client, namespace, service string, each func(T)) error {
	return list(ctx, c.Core.Get().AbsPath("/apis/discovery.k8s.io/v1").Namespace(namespace).Resource("endpointslices").
		Param("labelSelector", "kubernetes.io/service-name="+service), each)
}

// Pods lists the pods (core/v1) on a node in a namespace as the caller's type T, from the API server's cache.
func Pods[T any](ctx context.Context, c *Client, namespace, node string) (found []T, err error) {
	err = list(ctx, c.Core.Get().Namespace(namespace).Resource("pods").Param("fieldSelector", "spec.nodeName="+node),
		func(pod T) { found = append(found, pod) })
	return found, err
}

func list[T any](ctx context.Context, request *rest.Request, each func(T)) error {
	body, err := request.Param("resourceVersion", "0").MaxRetries(0).Stream(ctx) // see nodepatch.Client
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	return decodeItems(body, each)
}

// decodeItems reads the items of a list.
func decodeItems[T any](body io.Reader, each func(T)) error {
	decoder := json.NewDecoder(body)
	depth := 0
	for last := json.Token(nil); ; {
		token, err := decoder.Token()
		switch {
		case errors.Is(err, io.EOF) && depth > 0:
			return io.ErrUnexpectedEOF
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case token == json.Delim('{'), token == json.Delim('['):
			depth++
		case token == json.Delim('}'), token == json.Delim(']'):
			depth--
		}
		isItems := token == json.Delim('[') && depth == 2 && last == "items"
		for isItems && decoder.More() {
			var item T
			if err := decoder.Decode(&item); err != nil {
				return err
			}
			each(item)
		}
		last = token
	}
}

// Versions requests /api, which only authenticated callers get (RBAC: system:discovery) and which needs no node.
func (c *Client) Versions(ctx context.Context) error {
	return c.Core.Get().AbsPath("/api").MaxRetries(0).Do(ctx).Error()
}

// NodeStatus requests a Node and returns the HTTP status of the answer, 0 if there is none.
func (c *Client) NodeStatus(ctx context.Context, name string) (status int, err error) {
	err = c.Core.Get().Resource("nodes").Name(name).MaxRetries(0).Do(ctx).StatusCode(&status).Error()
	return status, err
}

type largeHeader struct{}

// WithLargeHeader gives the requests that a Client makes with the context a header of this value, unless it is empty.
func WithLargeHeader(ctx context.Context, value string) context.Context {
	return context.WithValue(ctx, largeHeader{}, value)
}

// CloseIdleConnections makes the next request prove the path to the API server again, from TCP on. It also drops silently dead
// connections. A connection is not idle while an Event waits for its answer: that request proves the path of before.
func (c *Client) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// Clock is the API server's clock, as the answers to a client tell it.
type Clock struct{ last atomic.Pointer[reading] }

// Wrap lets the clock read each answer: it is for rest.Config.Wrap.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper { return roundTripper{next, c} }

// ServerTime returns the time by the API server's clock, zero if no answer had a Date header (RFC 9110, 6.6.1) yet.
func (c *Clock) ServerTime() time.Time {
	last := c.last.Load()
	if last == nil {
		return time.Time{}
	}
	return last.server.Add(time.Since(last.local)) // monotonic, whatever this node's clock does
}

// ClockSkew returns by how much this node's clock is ahead of the API server's, at least; below 0 it is behind. A Date has whole
// seconds, and the API server wrote it at any moment of the request.
func (c *Clock) ClockSkew() time.Duration {
	last := c.last.Load()
	if last == nil {
		return 0
	}
	most := time.Since(c.ServerTime())
	return min(most, 0) + max(most-last.local.Sub(last.sent)-time.Second, 0)
}

// reading is the API server's clock, as an answer told it, beside this node's, and when the request was sent.
type reading struct{ server, local, sent time.Time }

// roundTripper adds the large header, and reads the Date header of each answer: rest.Result has no headers.
type roundTripper struct {
	http.RoundTripper
	clock *Clock
}

func (c roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if value, _ := r.Context().Value(largeHeader{}).(string); value != "" {
		r = r.Clone(r.Context()) // a RoundTripper must not change the request
		r.Header.Set("X-Kube-Node-Ready-Padding", value)
	}
	sent := time.Now()
	response, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		if date, parseErr := http.ParseTime(response.Header.Get("Date")); parseErr == nil {
			c.clock.last.Store(&reading{date, time.Now(), sent})
		}
	}
	return response, err
}

// WrappedRoundTripper lets CloseIdleConnections find the transport (k8s.io/apimachinery/pkg/util/net).
func (c roundTripper) WrappedRoundTripper() http.RoundTripper { return c.RoundTripper }
