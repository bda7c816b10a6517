package checks

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// Network asks every target, all at once: for a TCP connection, or with a GET over HTTPS.
type Network struct {
	// Targets are host:port, [v6]:port too.
	Targets []Target
	// Resolver for targets given by name; nil: as /etc/resolv.conf says.
	Resolver *Resolver
	// Roots are the CAs for HTTPS; nil: the system's and the cluster's.
	Roots *x509.CertPool
}

// Target is an address that must accept connections, or a URL that must answer.
type Target struct {
	Address string // host:port
	URL     string // https://host/path, instead of an address
	// EachAddress asks every address that the host resolves to, instead of any one of them.
	EachAddress bool
	// Remedy is what to try first when it does not answer, "" for a general one.
	Remedy string
}

// Name implements Check.
func (Network) Name() string { return NetworkName }

// Try implements Check. The error names each target that did not accept, and how it failed.
func (n Network) Try(ctx context.Context) (Report, error) {
	return sum(parallel(n.Targets, func(t Target) answer {
		if t.URL != "" {
			return n.get(ctx, t)
		}
		return n.dial(ctx, t)
	}))
}

const unresolved = "the name of the target does not resolve: check it, and the dns check"

func (n Network) dial(ctx context.Context, target Target) answer {
	host, port, err := net.SplitHostPort(target.Address)
	if err != nil {
		return answer{err: fmt.Errorf("%s: %w", target.Address, err)}
	}
	if isIP(host) {
		return target.connect(ctx, target.Address)
	}
	resolver, err := DNS{Resolver: n.Resolver}.resolver()
	if err != nil {
		return answer{err: fmt.Errorf("%s: %w", target.Address, err)}
	}
	addrs, _, failed := resolver.lookup(ctx, host, true)
	if failed != nil {
		return answer{err: fail(unresolved, "%s: %w", target.Address, failed)}
	}
	return target.settle(parallel(addrs, func(addr netip.Addr) answer {
		return target.connect(ctx, net.JoinHostPort(addr.Unmap().String(), port))
	}))
}

// settle makes one verdict of the addresses of a target's name.
func (t Target) settle(answers []answer) answer {
	var (
		good             []answer
		dead, unroutable []error
	)
	for _, a := range answers {
		switch {
		case a.err == nil:
			good = append(good, a)
		// A node with one address family cannot reach the other: no fault of the target's.
		case noRoute(a.err):
			unroutable = append(unroutable, a.err)
		default:
			dead = append(dead, a.err)
		}
	}
	if len(good) == 0 || (t.EachAddress && len(dead) > 0) {
		if len(dead) == 0 {
			dead = unroutable
		}
		return answer{err: fail(remedies(dead), "%s: %w", t.Address, oneLine(dead))}
	}
	verdict := answer{detail: t.Address + " accepts at " + strings.TrimSuffix(good[0].detail, " accepts")}
	for _, err := range dead {
		verdict.warnings = append(verdict.warnings, err.Error())
	}
	return verdict
}

func (t Target) connect(ctx context.Context, address string) answer {
	conn, err := dialTCP(ctx, address)
	if err != nil {
		remedy := t.Remedy
		if remedy == "" {
			remedy = tcpRemedy(err)
		}
		return answer{err: fail(remedy, "TCP %s: %w", address, short(err))}
	}
	_ = conn.Close()
	return answer{detail: address + " accepts"}
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

func tcpRemedy(err error) string {
	switch {
	case isTimeout(err):
		return "packets vanish on the way: check the CNI's routes, kube-proxy, network policies and firewalls (security groups)"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the host answers but nothing listens, or the service has no ready endpoint"
	case errors.Is(err, syscall.EHOSTUNREACH), noRoute(err):
		return "this node has no route to it: check the CNI and the node's routing table"
	default:
		return ""
	}
}

// noRoute tells whether this node has no route of that address family, no address of it, or the family switched off
// (net.ipv6.conf.all.disable_ipv6, ipv6.disable): in the order of the errors, see connect(2).
func noRoute(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}
