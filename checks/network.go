package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// Network connects to every target, all in parallel, or sends it a GET.
type Network struct {
	Targets  []Target
	Resolver *Resolver // for targets given by name; nil: the one of /etc/resolv.conf
	// ClusterCA is the cluster's CA (PEM), which HTTPS trusts beside the system's; "": that of the pod's service account.
	ClusterCA string
}

// Target is an address that must accept connections, or a URL that must answer.
type Target struct {
	Address     string // host:port, or [v6]:port
	URL         string // http://host/path or https://host/path, instead of an address
	Statuses    string // that pass, such as 200|401; "": each below 400
	OnlyWarns   bool   // a failure is a warning
	EachAddress bool   // every address of the host must accept, not just one of them
	Remedy      string // what to try first if the target fails; "": a general one
	// Addresses are the host's, if the dns check has stored some; else the target is left out. nil: the host is resolved.
	Addresses *FoundAddresses
}

// Name implements Check.
func (Network) Name() string { return NetworkName }

// Try implements Check. The error names each target that failed, and how.
func (n Network) Try(ctx context.Context) (Report, error) {
	return combine(inParallel(n.Targets, func(t Target) outcome {
		if t.URL != "" {
			return n.get(ctx, t).orWarning(t.OnlyWarns)
		}
		return n.dial(ctx, t).orWarning(t.OnlyWarns)
	}))
}

func (n Network) dial(ctx context.Context, target Target) outcome {
	host, port, err := net.SplitHostPort(target.Address)
	if err != nil {
		return outcome{err: fmt.Errorf("%s: %w", target.Address, err)}
	}
	if isIP(host) {
		return target.connect(ctx, target.Address)
	}
	var addrs []netip.Addr
	if target.Addresses == nil {
		addrs, err = n.resolve(ctx, host)
	} else if found := target.Addresses.Load(); found != nil {
		addrs = *found
	} else {
		return outcome{} // the target is left out: it has no detail and no error
	}
	if err != nil {
		return outcome{err: fail(Remedy(err), "%s: %w", target.Address, err)}
	}
	return target.verdictOf(inParallel(addrs, func(addr netip.Addr) outcome {
		return target.connect(ctx, net.JoinHostPort(addr.Unmap().String(), port))
	}))
}

// resolve returns all addresses of a host: itself if it is one, those of /etc/hosts if it is listed there, else those of DNS.
func (n Network) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	noServer := func(context.Context, string, string) (net.Conn, error) { return nil, errors.ErrUnsupported }
	hostsFile := &net.Resolver{PreferGo: true, Dial: noServer} // package net's resolver without a server: also parses an address
	if addrs, _ := hostsFile.LookupNetIP(ctx, "ip", host); len(addrs) > 0 {
		return addrs, nil
	}
	resolver, err := resolverOrSystem(n.Resolver)
	if err != nil {
		return nil, err
	}
	found, _, err := resolver.lookup(ctx, host, bothFamilies)
	if err != nil {
		return nil, fail(withFullName(err, "check the target's name, and the dns check"), "%w", err)
	}
	return found.addrs, nil
}

// verdictOf makes one outcome of those for the addresses of a target's name.
func (t Target) verdictOf(outcomes []outcome) outcome {
	var details, warnings []string
	var dead, unroutable []error
	for _, o := range outcomes {
		switch {
		case o.err == nil:
			details = append(details, o.detail)
		case noRoute(o.err): // a node with one address family cannot reach the other: not the target's fault
			unroutable = append(unroutable, o.err)
		default:
			dead = append(dead, o.err)
			warnings = append(warnings, o.err.Error())
		}
	}
	if len(details) == 0 || (t.EachAddress && len(dead) > 0) {
		if len(dead) == 0 {
			dead = unroutable
		}
		err := join(dead, "; ")
		if !t.EachAddress {
			err = &Failure{Cause: err, sign: signOfOne(signsOf(dead))}
		}
		return outcome{err: fail(Remedy(err), "%s: %w", t.Address, err)}
	}
	return outcome{detail: t.Address + " accepts at " + strings.TrimSuffix(details[0], " accepts"), warnings: warnings}
}

func (t Target) connect(ctx context.Context, address string) outcome {
	conn, err := dial(ctx, address)
	if err != nil {
		return outcome{err: fail(cmp.Or(t.Remedy, tcpRemedy(err)), "TCP %s: %w", address, short(err))}
	}
	_ = conn.Close()
	return outcome{detail: address + " accepts"}
}

func tcpRemedy(err error) string {
	switch {
	case isTimeout(err):
		return "packets are dropped on the way: check the CNI's routes, kube-proxy, network policies and firewalls (security groups)"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "check that something listens on this port of the host, or that the service has a ready endpoint"
	case errors.Is(err, syscall.EHOSTUNREACH), noRoute(err):
		return "this node has no route to it: check the CNI and the node's routing table"
	default:
		return "check the target, and the path to it"
	}
}

// noRoute: this node has no route for the address family, no address of it, or has it disabled (in this order; connect(2)).
func noRoute(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}
