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

// trusted returns the CAs of the system, where there is no system around the binary those it brings along,
// and, where there is one, the cluster's.
func trusted() (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	cluster, _ := os.ReadFile(clusterCA)
	return withRoots(pool, bundledRoots, cluster), nil
}

// withRoots adds CAs (PEM) to the system's. Whoever has a system has the last word on which of the public ones to trust.
func withRoots(system *x509.CertPool, bundled string, cluster []byte) *x509.CertPool {
	if system.Equal(x509.NewCertPool()) {
		system.AppendCertsFromPEM([]byte(bundled))
	}
	system.AppendCertsFromPEM(cluster)
	return system
}

// get asks for a URL over a connection of its own. A status below 400 is a pass; a redirect is one,
// and is not followed: it is this host that was asked about.
func (n Network) get(ctx context.Context, target Target) answer {
	roots := n.Roots
	if roots == nil {
		var err error
		if roots, err = trusted(); err != nil {
			return answer{err: fmt.Errorf("%s: %w", target.URL, err)}
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.URL, nil)
	if err != nil {
		return answer{err: fmt.Errorf("%s: %w", target.URL, err)}
	}
	// Not left to http.Transport, which goes on with what it has begun (names, connection, handshake) after ctx has ended.
	conn, err := n.dialName(ctx, request.URL.Hostname(), cmp.Or(request.URL.Port(), "443"))
	if err != nil {
		return answer{err: httpsFailure(target.URL, err)}
	}
	defer func() { _ = conn.Close() }()
	transport := &http.Transport{
		Proxy:             nil, // the path that is proven is the pod's own
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	request.Header.Set("User-Agent", "kube-node-ready")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return answer{err: httpsFailure(target.URL, err)}
	}
	_ = response.Body.Close()
	if response.StatusCode >= http.StatusBadRequest {
		return answer{err: fail("the network is good: ask whoever runs the target, or take it out of NETWORK_TARGETS",
			"GET %s: %s", target.URL, response.Status)}
	}
	return answer{detail: "GET " + target.URL + " " + response.Status}
}

// dialName connects to a host by name or address.
func (n Network) dialName(ctx context.Context, host, port string) (net.Conn, error) {
	if isIP(host) {
		return dialTCP(ctx, net.JoinHostPort(host, port))
	}
	resolver, err := DNS{Resolver: n.Resolver}.resolver()
	if err != nil {
		return nil, err
	}
	addrs, _, failed := resolver.lookup(ctx, host, true)
	if failed != nil {
		return nil, fail(unresolved, "%w", failed)
	}
	return firstOf(ctx, addrs, port)
}

// firstOf connects to all addresses at once and keeps the first connection: an address that drops
// packets must not use up the attempt.
func firstOf(ctx context.Context, addrs []netip.Addr, port string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conns, errs := make(chan net.Conn), make(chan error)
	for _, addr := range addrs {
		go func() {
			conn, err := dialTCP(ctx, net.JoinHostPort(addr.Unmap().String(), port))
			if err != nil {
				errs <- err
				return
			}
			conns <- conn
		}()
	}
	var (
		first  net.Conn
		failed []error
	)
	for range addrs {
		select {
		case conn := <-conns:
			if first != nil {
				_ = conn.Close()
				continue
			}
			first = conn
			cancel()
		case err := <-errs:
			failed = append(failed, err)
		}
	}
	if first == nil {
		return nil, oneLine(failed)
	}
	return first, nil
}

func httpsFailure(url string, err error) error {
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &certificate):
		return fail("its certificate must be for that name, be valid now (the clock of this node, too), and come from a CA that the system or the cluster trusts",
			"GET %s: TLS: %w", url, certificate.Err)
	case errors.As(err, &record):
		return fail("what answers there does not speak TLS: tcp://host:port asks for no more than a connection",
			"GET %s: TLS: %w", url, err)
	case Remedy(err) != "":
		return fail(Remedy(err), "GET %s: %w", url, err)
	default:
		return fail(tcpRemedy(err), "GET %s: %w", url, short(err))
	}
}

// ParseTarget reads what NETWORK_TARGETS names: host:port, [v6]:port, tcp://host:port or
// https://host/path.
func ParseTarget(text string) Target {
	if strings.HasPrefix(text, "https://") {
		return Target{URL: text}
	}
	return Target{Address: strings.TrimPrefix(text, "tcp://")}
}
