package checks

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// DNS resolves every name in Names, all at once.
type DNS struct {
	// Names to resolve. An IP address among them means: ask that server directly for the first
	// name outside the cluster domain, or, where there is none, for the root.
	Names []string
	// Resolver to ask; nil: as /etc/resolv.conf says at the time of the attempt.
	Resolver *Resolver
	// Outside says why names of the cluster cannot be resolved here, "" inside a cluster.
	Outside string
	// Port of the servers that are given by address; "" is 53.
	Port string
}

// Name implements Check.
func (DNS) Name() string { return DNSName }

// Try implements Check. The error names each name that did not resolve, the server that was
// asked, and what it said.
func (d DNS) Try(ctx context.Context) (Report, error) {
	resolver, err := d.resolver()
	if err != nil {
		return Report{}, fail("mount or repair "+resolvConf, "name servers: %w", err)
	}
	domain := resolver.ClusterDomain()
	var asked, skipped []string
	for _, name := range d.Names {
		if d.Outside != "" && ofCluster(name, domain) {
			skipped = append(skipped, name)
		} else {
			asked = append(asked, name)
		}
	}
	if len(asked) == 0 {
		return Report{Skipped: fmt.Sprintf("%s: %s", strings.Join(skipped, ", "), d.Outside)}, nil
	}

	// A single label is never a name outside the cluster: it is the search list that completes it.
	outside := slices.IndexFunc(asked, func(name string) bool {
		return !isIP(name) && !ofCluster(name, domain) && strings.Contains(strings.TrimSuffix(name, "."), ".")
	})
	answers := parallel(asked, func(name string) answer {
		switch {
		case !isIP(name):
			return resolves(ctx, resolver, name, func(failed *dnsError) string { return dnsRemedy(failed, name, domain) })
		case outside < 0:
			return root(ctx, d.server(name))
		default:
			a := resolves(ctx, Resolver{Servers: []string{d.server(name)}}, strings.TrimSuffix(asked[outside], ".")+".", serverRemedy)
			a.detail = "by " + name + ": " + a.detail
			return a
		}
	})
	report, err := sum(answers)
	if err == nil && len(skipped) > 0 {
		report.Detail += fmt.Sprintf("; not asked: %s (%s)", strings.Join(skipped, ", "), d.Outside)
	}
	return report, err
}

func (d DNS) resolver() (Resolver, error) {
	if d.Resolver != nil {
		return *d.Resolver, nil
	}
	return SystemResolver()
}

func (d DNS) server(ip string) string {
	port := d.Port
	if port == "" {
		port = "53"
	}
	return net.JoinHostPort(ip, port)
}

func resolves(ctx context.Context, resolver Resolver, name string, remedy func(*dnsError) string) answer {
	addrs, warnings, failed := resolver.lookup(ctx, name, false)
	if failed != nil {
		return answer{err: &Failure{Cause: failed, Remedy: remedy(failed)}}
	}
	return answer{detail: fmt.Sprintf("%s is %s", name, addrs[0].Unmap()), warnings: warnings}
}

// dnsRemedy is what to try about a name that the servers of resolv.conf did not resolve.
func dnsRemedy(failed *dnsError, name, domain string) string {
	if foreign := foreignDomain(name, domain); foreign != "" && domain != "" {
		hint := fmt.Sprintf("the cluster domain of this node is %q, so the name should be %q: correct DNS_TEST_DOMAINS",
			domain, strings.TrimSuffix(strings.TrimSuffix(name, "."), foreign)+domain)
		if failed.definite() {
			return hint
		}
		// Without the internet the question for another domain ends in any way but NXDOMAIN.
		return hint + "; else " + protocolRemedy(failed, name, domain)
	}
	return protocolRemedy(failed, name, domain)
}

func protocolRemedy(failed *dnsError, name, domain string) string {
	switch cluster := ofCluster(name, domain); {
	case failed.definite() && cluster:
		return "check that the service exists and that the cluster DNS serves this domain"
	case failed.definite():
		return "check the name in DNS_TEST_DOMAINS; without access to the internet, list only names that the cluster's DNS knows"
	case failed.truncated:
		return "open TCP 53 to the name server, and check the path"
	case failed.timeout:
		return "check that the DNS pods are running and that this node reaches them over UDP 53 (kube-proxy, CNI, network policies)"
	case failed.refused:
		return "no ready DNS pod behind the service address, or kube-proxy has not programmed it on this node yet"
	case cluster:
		return "look at the logs of the cluster's DNS pods"
	default:
		return "look at the upstream servers of the cluster's DNS; without access to the internet, take the name out of DNS_TEST_DOMAINS"
	}
}

// serverRemedy is what to try about a server that is given by address.
func serverRemedy(failed *dnsError) string {
	if failed.definite() {
		return "check the name in DNS_TEST_DOMAINS, and whether this server is meant to know it"
	}
	return "check that the server is up and that this node may ask it"
}

// root asks server for the name servers of the root. Any well-formed answer proves the path to it.
func root(ctx context.Context, server string) answer {
	var heard wire
	_, err := heard.resolver(server).LookupNS(ctx, ".")
	failure := heard.failure(server, ".", err)
	if err == nil || failure.spoken {
		return answer{detail: "name server " + server + " answers"}
	}
	return answer{err: fail(serverRemedy(failure), "name server %s: %s", server, failure.answer)}
}

// ofCluster tells whether only a cluster can answer for name. Without a domain to go by it is the
// shape of a service's name that tells (Kubernetes DNS-Based Service Discovery).
func ofCluster(name, domain string) bool {
	name = strings.TrimSuffix(name, ".")
	if domain != "" && strings.HasSuffix(name, "."+domain) {
		return true
	}
	// This one the search list completes, and every cluster has it.
	if name == "kubernetes.default" {
		return true
	}
	return strings.HasSuffix(name, ".cluster.local") || strings.Contains(name, ".svc.") || strings.HasSuffix(name, ".svc")
}

// foreignDomain returns the cluster domain in the name of a service where it is not domain.
func foreignDomain(name, domain string) string {
	_, rest, ok := strings.Cut(strings.TrimSuffix(name, "."), ".svc.")
	if !ok || rest == domain {
		return ""
	}
	return rest
}

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
