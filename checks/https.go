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

// trustedRoots adds the cluster's CA (PEM; "": the CA of a pod with a token) to the system's CAs. If the system has no CAs, it
// adds the bundled CAs too.
func trustedRoots(system *x509.CertPool, bundled, clusterCA string) *x509.CertPool {
	if system.Equal(x509.NewCertPool()) {
		system.AppendCertsFromPEM([]byte(bundled))
	}
	cluster := []byte(clusterCA)
	if clusterCA == "" {
		cluster, _ = os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
	}
	system.AppendCertsFromPEM(cluster)
	return system
}

// get requests a URL over a connection of its own. It does not follow redirects to other hosts.
func (n Network) get(ctx context.Context, target Target) outcome {
	request, requestErr := http.NewRequestWithContext(ctx, http.MethodGet, target.URL, nil)
	system, systemErr := x509.SystemCertPool()
	if err := cmp.Or(requestErr, systemErr); err != nil {
		return outcome{err: fmt.Errorf("%s: %w", target.URL, err)}
	}
	// http.Transport would go on resolving, connecting and shaking hands after ctx has ended.
	addrs, err := n.resolve(ctx, request.URL.Hostname())
	if err != nil {
		return outcome{err: httpsFailure(target.URL, err)}
	}
	conn, err := dialFirst(ctx, addrs, cmp.Or(request.URL.Port(), request.URL.Scheme)) // package net knows the ports of both
	if err != nil {
		return outcome{err: httpsFailure(target.URL, err)}
	}
	defer func() { _ = conn.Close() }()
	transport := transportOver(conn)
	transport.TLSClientConfig = &tls.Config{RootCAs: trustedRoots(system, bundledRoots, n.ClusterCA)}
	request.Header.Set("User-Agent", "kube-node-ready")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return outcome{err: httpsFailure(target.URL, err)}
	}
	_ = response.Body.Close()
	status, code, expected := statusOf(response), response.StatusCode, ""
	passes := code >= http.StatusContinue && code < http.StatusBadRequest // package net/http accepts codes below 100
	if target.Statuses != "" {
		passes, expected = strings.Contains("|"+target.Statuses+"|", fmt.Sprintf("|%d|", code)), ", not "+target.Statuses
	}
	if !passes {
		return outcome{err: fail("the network works, the target returned an error: ask its owner, or remove it from NETWORK_TARGETS",
			"GET %s: %s%s", target.URL, status, expected)}
	}
	return outcome{detail: "GET " + target.URL + " " + status}
}

// transportOver returns a transport for one request over a connection, without a proxy: the check proves the pod's own path.
func transportOver(conn net.Conn) *http.Transport {
	return &http.Transport{
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 16 << 10,
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
}

// statusOf returns the code and its usual text: the server's own may be anything.
func statusOf(response *http.Response) string {
	return strings.TrimSpace(fmt.Sprint(response.StatusCode, " ", http.StatusText(response.StatusCode)))
}

// dialFirst connects to all addresses in parallel and returns the first connection: one of them may drop packets.
func dialFirst(ctx context.Context, addrs []netip.Addr, port string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conns := make(chan net.Conn, len(addrs))
	errs := inParallel(addrs, func(addr netip.Addr) error {
		conn, err := dial(ctx, net.JoinHostPort(addr.Unmap().String(), port))
		if err == nil {
			conns <- conn
			cancel()
		}
		return err
	})
	close(conns)
	if first, ok := <-conns; ok {
		for late := range conns {
			_ = late.Close()
		}
		return first, nil
	}
	return nil, &Failure{Cause: join(errs, "; "), sign: signOfOne(signsOf(errs))}
}

func httpsFailure(url string, err error) error {
	certificate, isCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case isCertificate:
		return fail("check this node's clock, and the target's certificate: its names, its dates, and its CA, "+
			"which the system or the cluster must trust", "GET %s: TLS: %w", url, certificate.Err)
	case is[tls.RecordHeaderError](err):
		return fail("the target does not speak TLS: to check only the connection, use tcp://host:port", "GET %s: TLS: %w", url, err)
	case Remedy(err) != "":
		return fail(Remedy(err), "GET %s: %w", url, err)
	default:
		return fail(tcpRemedy(err), "GET %s: %w", url, short(err))
	}
}

// ParseTarget reads an item of NETWORK_TARGETS: host:port, [v6]:port, tcp://host:port, or http(s)://host/path, whose fragment
// has the statuses that pass.
func ParseTarget(text string) Target {
	text, onlyWarns := strings.CutPrefix(text, WarnPrefix)
	url, statuses, _ := strings.Cut(text, "#")
	if strings.HasPrefix(url, "http://") || strings.HasPrefix(url, "https://") {
		return Target{URL: url, Statuses: statuses, OnlyWarns: onlyWarns}
	}
	return Target{Address: strings.TrimPrefix(url, "tcp://"), OnlyWarns: onlyWarns}
}
