package checks

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// clusterCA is where kubelet puts the CA of the cluster, for every pod with a service account token.
const clusterCA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"

// trustedRoots returns the system's CAs, else the bundled ones, plus the cluster's CA.
func trustedRoots() (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	cluster, _ := os.ReadFile(clusterCA)
	return withRoots(pool, bundledRoots, cluster), nil
}

// withRoots adds CAs (PEM): the cluster's always, the bundled ones only if there are no system CAs.
func withRoots(system *x509.CertPool, bundled string, cluster []byte) *x509.CertPool {
	if system.Equal(x509.NewCertPool()) {
		system.AppendCertsFromPEM([]byte(bundled))
	}
	system.AppendCertsFromPEM(cluster)
	return system
}

// get requests a URL over a connection of its own. A status below 400 is a pass. A redirect is one too, and
// is not followed: the target is this host.
func (n Network) get(ctx context.Context, target Target) outcome {
	roots := n.Roots
	if roots == nil {
		var err error
		if roots, err = trustedRoots(); err != nil {
			return outcome{err: fmt.Errorf("%s: %w", target.URL, err)}
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.URL, nil)
	if err != nil {
		return outcome{err: fmt.Errorf("%s: %w", target.URL, err)}
	}
	// http.Transport would go on resolving, connecting and shaking hands after ctx has ended.
	conn, err := n.dialName(ctx, request.URL.Hostname(), cmp.Or(request.URL.Port(), "443"))
	if err != nil {
		return outcome{err: httpsFailure(target.URL, err)}
	}
	defer func() { _ = conn.Close() }()
	transport := &http.Transport{
		Proxy:             nil, // the check proves the pod's own path
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	request.Header.Set("User-Agent", "kube-node-ready")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return outcome{err: httpsFailure(target.URL, err)}
	}
	_ = response.Body.Close()
	if response.StatusCode >= http.StatusBadRequest {
		return outcome{err: fail("the network works, the target returned an error: ask its owner, or remove it from NETWORK_TARGETS",
			"GET %s: %s", target.URL, response.Status)}
	}
	return outcome{detail: "GET " + target.URL + " " + response.Status}
}

// dialName connects to a host by name or address.
func (n Network) dialName(ctx context.Context, host, port string) (net.Conn, error) {
	if isIP(host) {
		return dialTCP(ctx, net.JoinHostPort(host, port))
	}
	addrs, err := n.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	return dialFirst(ctx, addrs, port)
}

// dialFirst connects to all addresses in parallel and returns the first connection: an address that drops
// packets must not use up the attempt.
func dialFirst(ctx context.Context, addrs []netip.Addr, port string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	for _, addr := range addrs {
		go func() {
			conn, err := dialTCP(ctx, net.JoinHostPort(addr.Unmap().String(), port))
			results <- result{conn, err}
		}()
	}
	var (
		first net.Conn
		errs  []error
	)
	for range addrs {
		switch r := <-results; {
		case r.err != nil:
			errs = append(errs, r.err)
		case first == nil:
			first = r.conn
			cancel()
		default:
			_ = r.conn.Close()
		}
	}
	if first == nil {
		return nil, oneLine(errs)
	}
	return first, nil
}

func httpsFailure(url string, err error) error {
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &certificate):
		return fail("the certificate must be for that name, be valid now (check this node's clock) and come from a CA that the system or the cluster trusts",
			"GET %s: TLS: %w", url, certificate.Err)
	case errors.As(err, &record):
		return fail("the target does not speak TLS: to check only the connection, use tcp://host:port",
			"GET %s: TLS: %w", url, err)
	case Remedy(err) != "":
		return fail(Remedy(err), "GET %s: %w", url, err)
	default:
		return fail(tcpRemedy(err), "GET %s: %w", url, short(err))
	}
}

// ParseTarget reads an item of NETWORK_TARGETS: host:port, [v6]:port, tcp://host:port or https://host/path.
func ParseTarget(text string) Target {
	if strings.HasPrefix(text, "https://") {
		return Target{URL: text}
	}
	return Target{Address: strings.TrimPrefix(text, "tcp://")}
}
