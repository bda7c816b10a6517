package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// FoundAddresses are the addresses of the kubernetes service that its name has, where KUBERNETES_SERVICE_HOST is another one.
// The dns check, which runs first, stores them; the network check connects to them. nil: nothing is stored.
type FoundAddresses = atomic.Pointer[[]netip.Addr]

// DNS resolves every name in Names, all in parallel.
type DNS struct {
	// Names to resolve. An IP address among them is a server to ask for the first name outside the cluster, else for the root.
	// What begins with WarnPrefix may fail.
	Names    []string
	Resolver *Resolver // nil: the one of /etc/resolv.conf at the time of the attempt
	Outside  string    // the reason to skip the names of the cluster; "" inside a cluster
	Port     string    // of the servers given by address; "" is 53
	// Kubernetes is host:port of the kubernetes service, which its name must resolve to; "": the answer is not compared.
	Kubernetes string
	ClusterIPs *FoundAddresses // nil: nobody asks
}

// Name implements Check.
func (DNS) Name() string { return DNSName }

// Try implements Check. The error names each name that does not resolve, the server, and its reply.
func (d DNS) Try(ctx context.Context) (Report, error) {
	resolver, err := resolverOrSystem(d.Resolver)
	if err != nil {
		return Report{}, fail("mount "+resolvConf+", or correct it", "cannot read the name servers: %w", err)
	}
	domain := resolver.ClusterDomain()
	var names, skipped []string
	for _, name := range d.Names {
		if bare := strings.TrimPrefix(name, WarnPrefix); d.Outside != "" && IsClusterName(bare, domain) {
			skipped = append(skipped, bare)
		} else {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return Report{Skipped: fmt.Sprintf("%s: %s", strings.Join(skipped, ", "), d.Outside)}, nil
	}
	if d.ClusterIPs != nil {
		d.ClusterIPs.Store(nil) // an earlier attempt may have stored some
	}
	external := externalName(names, domain)
	report, err := combine(inParallel(names, func(name string) outcome {
		name, onlyWarns := strings.CutPrefix(name, WarnPrefix)
		switch {
		case isIP(name):
			return d.probeServer(ctx, resolver, name, external).orWarning(onlyWarns)
		case d.Kubernetes != "" && strings.HasPrefix(name+".", "kubernetes.default."):
			found := d.ClusterIPs
			if onlyWarns {
				found = nil // what follows from such a name must fail nothing either
			}
			return d.probeKubernetes(ctx, resolver, name, found).orWarning(onlyWarns)
		default:
			remedy := func(err error) string { return dnsRemedy(err, name, domain) }
			return probeName(ctx, resolver, name, remedy).orWarning(onlyWarns)
		}
	}))
	if err == nil && len(skipped) > 0 {
		report.Detail += fmt.Sprintf("; skipped: %s (%s)", strings.Join(skipped, ", "), d.Outside)
	}
	return report, err
}

// wildcardTest is a label that no domain should have. It is constant so that name servers can cache the answer.
const wildcardTest = "kube-node-ready-wildcard-test"

// Wildcards sends one query for a nonexistent name in each of the node's own search domains, and returns the names that resolve.
// With ndots:5, such a wildcard answers most names that pods look up. Try does not notice it, because it ignores these domains.
func (d DNS) Wildcards(ctx context.Context) (names string) {
	resolver, err := resolverOrSystem(d.Resolver)
	if err != nil || d.Outside != "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 900*time.Millisecond) // before hedge repeats a query
	defer cancel()
	_, candidates := resolver.candidates(wildcardTest)
	found, _ := combine(inParallel(candidates, func(name string) outcome {
		_, err := resolver.query(ctx, resolver.Servers[0], name, dnsmessage.TypeA)
		if err != nil && !errors.Is(err, errSinkhole) {
			return outcome{}
		}
		return outcome{detail: strings.TrimSuffix(name, ".")}
	}))
	return found.Detail
}

func resolverOrSystem(resolver *Resolver) (Resolver, error) {
	if resolver != nil {
		return *resolver, nil
	}
	return SystemResolver()
}

// externalName returns the first name outside the cluster, "" if there is none. A server must not fail for a name that only
// warns. A single label is never a name outside the cluster: the search list completes it.
func externalName(names []string, domain string) string {
	for _, name := range names {
		bare := strings.TrimSuffix(name, ".")
		if !strings.HasPrefix(name, WarnPrefix) && !isIP(name) && !IsClusterName(name, domain) && strings.Contains(bare, ".") {
			return bare + "."
		}
	}
	return ""
}

// probeName resolves a name.
func probeName(ctx context.Context, resolver Resolver, name string, remedy func(error) string) outcome {
	found, warnings, err := resolver.lookup(ctx, name, oneFamily)
	if err != nil {
		return outcome{err: &Failure{Cause: err, Remedy: remedy(err)}}
	}
	return outcome{detail: found.describe(name), warnings: warnings}
}

// probeServer asks a name server given by address: for a name outside the cluster, or for the root.
func (d DNS) probeServer(ctx context.Context, system Resolver, ip, external string) outcome {
	server := Resolver{Servers: []string{d.server(ip)}, Network: system.Network}
	if external == "" {
		return probeRoot(ctx, server)
	}
	o := probeName(ctx, server, external, serverRemedy)
	o.detail = "by " + ip + ": " + o.detail
	return o
}

func (d DNS) server(ip string) string { return net.JoinHostPort(ip, cmp.Or(d.Port, "53")) }

// probeKubernetes resolves a name of the kubernetes service. If it has another address, it stores what was found instead, and
// fails if the server may not be this cluster's.
func (d DNS) probeKubernetes(ctx context.Context, resolver Resolver, name string, instead *FoundAddresses) outcome {
	host, _, _ := net.SplitHostPort(d.Kubernetes)
	service, notAddress := netip.ParseAddr(host) // some platforms set a name: it equals no answer
	hasService := func(addrs []netip.Addr) bool {
		return slices.ContainsFunc(addrs, func(addr netip.Addr) bool { return addr.Unmap() == service })
	}
	domain := resolver.ClusterDomain()
	found, warnings, err := resolver.lookup(ctx, name, hasService)
	if err != nil {
		return outcome{err: &Failure{Cause: err, Remedy: dnsRemedy(err, name, domain)}}
	}
	o := outcome{detail: found.describe(name), warnings: warnings}
	if hasService(found.addrs) {
		return o
	}
	differs := o.detail + " and KUBERNETES_SERVICE_HOST is " + host
	switch failure := resolver.resolveRandom(ctx, found); {
	case failure == nil:
		return outcome{err: fail("this is not the cluster's DNS: set clusterDNS in this node's kubelet configuration, or remove the "+
			"wildcard record upstream", "%s, but name server %s answers any name, even a random one", differs, found.server)}
	case !errors.Is(failure, errNXDomain) && !errors.Is(failure, errNoData):
		return outcome{err: fail(dnsRemedy(failure, name, domain),
			"%s, and the name server does not deny a random name: %w", differs, failure)}
	}
	// The server is the cluster's: the platform has set KUBERNETES_SERVICE_HOST to another address, or to a name.
	if notAddress == nil { // a name differs always
		o.warnings = append(o.warnings, differs)
	}
	if instead != nil && strings.HasSuffix(found.name, ".svc."+domain+".") { // else it may be another cluster's
		instead.Store(&found.addrs)
	}
	return o
}

// resolveRandom asks the server that has answered for a random name in the same domain. Only a wildcard has one.
func (r Resolver) resolveRandom(ctx context.Context, answered answer) *dnsError {
	r.Servers = []string{answered.server}
	name := fmt.Sprintf("kubernetes.%08x%s", rand.Uint32(), strings.TrimPrefix(answered.name, "kubernetes.default"))
	_, _, failure := r.resolve(ctx, name, share(ctx, 3), oneFamily)
	return failure
}

// probeRoot asks the one server of resolver for the name servers of the root. Any reply is a pass: it proves the path.
func probeRoot(ctx context.Context, resolver Resolver) outcome {
	server := resolver.Servers[0]
	query, err := newQuery(".", dnsmessage.TypeNS, true) // never fails
	answers := func(ctx context.Context) bool {
		_, err = exchange(ctx, cmp.Or(resolver.Network, "udp"), server, query)
		return err == nil
	}
	if answers(ctx) {
		return outcome{detail: "name server " + server + " answers"}
	}
	cause := fmt.Errorf("name server %s: %w", server, err)
	return outcome{err: &Failure{Cause: cause, Remedy: serverRemedy(err), sign: briefly(answers)}}
}

// dnsRemedy is what to try if the servers of resolv.conf do not resolve name.
func dnsRemedy(err error, name, domain string) string {
	remedy := withFullName(err, replyRemedy(err, name, domain))
	service, other, isService := SplitServiceName(name)
	if !isService || domain == "" || other == domain {
		return remedy
	}
	hint := fmt.Sprintf("the cluster domain of this node is %q, so the name should be %q: correct DNS_TEST_DOMAINS",
		domain, service+".svc."+domain)
	if isNegative(err) {
		return hint
	}
	// Without internet access a query for another domain may fail in any way.
	return hint + "; else " + remedy
}

func replyRemedy(err error, name, domain string) string {
	switch isCluster := IsClusterName(name, domain); {
	case isNegative(err) && isCluster:
		return "check that the service exists and that the cluster DNS serves this domain"
	case isNegative(err), errors.Is(err, errNotName):
		return "check the name in DNS_TEST_DOMAINS; without access to the internet, list only names that the cluster's DNS knows"
	case errors.Is(err, errTruncated):
		return "allow TCP port 53 to the name server, and check the path to it"
	case isTimeout(err):
		return "check that the DNS pods are running and that this node reaches them over UDP 53 (kube-proxy, CNI, network policies)"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "check that a DNS pod is ready, and that kube-proxy (or its replacement) has programmed the service address on this node"
	case isCluster:
		return "check the logs of the cluster's DNS pods"
	default:
		return "check the upstream servers of the cluster's DNS; without access to the internet, remove the name from DNS_TEST_DOMAINS"
	}
}

// serverRemedy is what to try if a server given by address does not resolve a name.
func serverRemedy(err error) string {
	if isNegative(err) {
		return "check the name in DNS_TEST_DOMAINS, and whether this server should know it"
	}
	return "check that the server is up and accepts queries from this node"
}

// IsClusterName reports whether only a cluster can resolve name. Without a domain it goes by the form of service names.
func IsClusterName(name, domain string) bool {
	_, _, isService := SplitServiceName(name)
	name = strings.TrimSuffix(name, ".")
	return domain != "" && strings.HasSuffix(name, "."+domain) ||
		isShortServiceName(name) || strings.HasSuffix(name, ".cluster.local") || isService
}

// SplitServiceName splits a name of the form [POD.]SERVICE.NAMESPACE.svc.DOMAIN at ".svc.". It is not ok for
// api.svc.example.com: that names no namespace, so it is a name outside the cluster.
func SplitServiceName(name string) (service, domain string, ok bool) {
	service, domain, ok = strings.Cut(strings.TrimSuffix(name, "."), ".svc.")
	return service, domain, ok && domain != "" && strings.Contains(service, ".")
}

// isShortServiceName: the search list completes name in every cluster.
func isShortServiceName(name string) bool {
	return name == "kubernetes.default" || strings.HasSuffix(name, ".svc")
}

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
