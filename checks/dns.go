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

	"golang.org/x/net/dns/dnsmessage"
)

// DNS resolves every name in Names, all in parallel.
type DNS struct {
	// Names to resolve. An IP address among them is a server to ask for the first name outside the cluster, else for the root. What
	// begins with WarnPrefix may fail.
	Names    []string
	Resolver *Resolver // nil: the one of /etc/resolv.conf at the time of the attempt
	Outside  string    // the reason to skip the names of the cluster; "" inside a cluster
	Port     string    // of the servers given by address; "" is 53
	// Kubernetes is host:port of the kubernetes service, which its name must resolve to; "": the answer is not compared.
	Kubernetes string
	// ClusterIPs takes the addresses that the name has instead, for the network check; nil: nobody asks.
	ClusterIPs *atomic.Pointer[[]netip.Addr]
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
	// A name that only warns must fail no server. A single label is never a name outside the cluster: the search list completes it.
	external := slices.IndexFunc(names, func(name string) bool {
		isRequired := !strings.HasPrefix(name, WarnPrefix) && !isIP(name)
		return isRequired && !IsClusterName(name, domain) && strings.Contains(strings.TrimSuffix(name, "."), ".")
	})
	probe := func(d DNS, name string) outcome {
		if !isIP(name) {
			return d.probeName(ctx, resolver, name, func(err error) string { return dnsRemedy(err, name, domain) })
		}
		direct := Resolver{Servers: []string{d.server(name)}, Network: resolver.Network}
		if external < 0 {
			return probeRoot(ctx, direct)
		}
		o := d.probeName(ctx, direct, strings.TrimSuffix(names[external], ".")+".", serverRemedy)
		o.detail = "by " + name + ": " + o.detail
		return o
	}
	report, err := combine(inParallel(names, func(name string) outcome {
		name, onlyWarns := strings.CutPrefix(name, WarnPrefix)
		of := d
		if onlyWarns {
			of.ClusterIPs = nil // what follows from such a name must fail nothing either
		}
		return probe(of, name).orWarning(onlyWarns)
	}))
	if err == nil && len(skipped) > 0 {
		report.Detail += fmt.Sprintf("; skipped: %s (%s)", strings.Join(skipped, ", "), d.Outside)
	}
	return report, err
}

func (d DNS) server(ip string) string { return net.JoinHostPort(ip, cmp.Or(d.Port, "53")) }

func resolverOrSystem(resolver *Resolver) (Resolver, error) {
	if resolver != nil {
		return *resolver, nil
	}
	return SystemResolver()
}

func (d DNS) probeName(ctx context.Context, resolver Resolver, name string, remedy func(error) string) outcome {
	host, _, _ := net.SplitHostPort(d.Kubernetes)
	service, _ := netip.ParseAddr(host) // some platforms set a name: it equals no answer
	isKubernetes := host != "" && strings.HasPrefix(name+".", "kubernetes.default.")
	isExpected := func(addrs []netip.Addr) bool {
		return !isKubernetes || slices.ContainsFunc(addrs, func(addr netip.Addr) bool { return addr.Unmap() == service })
	}
	found, warnings, err := resolver.lookup(ctx, name, isExpected)
	if err != nil {
		return outcome{err: &Failure{Cause: err, Remedy: remedy(err)}}
	}
	o := outcome{detail: fmt.Sprintf("%s is %s", name, found.addrs[0].Unmap()), warnings: warnings}
	further := resolver.Servers[slices.Index(resolver.Servers, found.server)+1:]
	resolver.Servers = []string{found.server}
	if !isExpected(found.addrs) {
		differs := o.detail + " and KUBERNETES_SERVICE_HOST is " + host // which some platforms set to another address
		random := fmt.Sprintf("kubernetes.%08x%s", rand.Uint32(), strings.TrimPrefix(found.name, "kubernetes.default"))
		switch _, _, failure := resolver.resolve(ctx, random, share(ctx, 3), isExpected); {
		case failure == nil:
			return outcome{err: fail("this is not the cluster's DNS: set clusterDNS in this node's kubelet configuration, or remove the "+
				"wildcard record upstream", "%s, but name server %s answers any name, even a random one", differs, found.server)}
		case !errors.Is(failure, errNXDomain) && !errors.Is(failure, errNoData):
			return outcome{err: fail(remedy(failure), "%s, and the name server does not deny a random name: %w", differs, failure)}
		}
		if service.IsValid() { // a host name differs always
			o.warnings = append(o.warnings, differs)
		}
		if d.ClusterIPs != nil && strings.HasSuffix(found.name, ".svc."+resolver.ClusterDomain()+".") { // else of another cluster
			d.ClusterIPs.Store(&found.addrs)
		}
	} else if isKubernetes && d.ClusterIPs != nil {
		d.ClusterIPs.Store(nil) // an earlier answer may have differed
	}
	if isKubernetes {
		ctx, end := context.WithTimeout(ctx, min(stragglerGrace, share(ctx, 2))) // a dead one must not delay the node
		defer end()
		d.ClusterIPs = nil
		// They must pass likewise. What the first one has warned of is not repeated.
		for _, other := range inParallel(further, func(server string) outcome {
			one := Resolver{Servers: []string{server}, Search: resolver.Search, Network: resolver.Network}
			return d.probeName(ctx, one, name, remedy).orWarning(true)
		}) {
			isKnown := func(warning string) bool { return slices.Contains(o.warnings, warning) }
			o.warnings = append(o.warnings, slices.DeleteFunc(other.warnings, isKnown)...)
		}
	}
	return o
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
	remedy, sign := serverRemedy(err), briefly(answers)
	return outcome{err: &Failure{Cause: fmt.Errorf("name server %s: %w", server, err), Remedy: remedy, sign: sign}}
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
