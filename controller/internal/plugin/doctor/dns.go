package doctor

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// clusterDomain: names under a domain that the cluster does not have never resolve.
func clusterDomain(c Cluster, r *Result) {
	corefile := parseCorefile(c.Corefile.Value)
	if corefile.domain == "" && len(c.Answers) == 0 {
		r.Unchecked = errors.Join(errors.New("no Corefile shows the cluster's domain"), c.DNS.Err, c.Corefile.Err)
		return
	}
	for _, name := range c.Release.Agent.DNSTestDomains {
		service, configured, isService := checks.SplitServiceName(zoneName(name))
		isForeign := isService && corefile.domain != "" && !slices.Contains(corefile.serviceZones, configured)
		// The upstream servers may know other clusters, but kubernetes.default must be this one's.
		isOwn := isForeign && strings.HasPrefix(zoneName(name), "kubernetes.default.")
		switch fate, doubt := c.fateOf(corefile, name, isForeign); {
		case !mustResolve(name) || isExternal(name, corefile.domain) || fate == resolved && !isOwn:
		case fate == resolved:
			r.skip("a DNS pod resolves %s, but the cluster's domain is %s: the answer may come from a wildcard or another cluster",
				name, corefile.domain)
		case isForeign && fate == unanswered || isOwn && fate == forwarded:
			r.find("use "+service+".svc."+corefile.domain+" instead", "%s is in config.dnsTestDomains, but the cluster's domain is %s "+
				"(the Corefile)", name, corefile.domain)
		case isForeign || c.Answers[name] != nil:
			r.doubt(name, cmp.Or(doubt, errUnclear))
		}
	}
	if corefile.domain != "" {
		r.Passed = corefile.domain + " (the Corefile)"
	}
}

// externalNames: a name that the cluster's resolver refuses prevents every release. From outside only its configuration can be
// seen, unless a DNS pod is asked; the results of the agents are in the status.
func externalNames(c Cluster, r *Result) {
	corefile := parseCorefile(c.Corefile.Value)
	external := slices.DeleteFunc(slices.Clone(c.Release.Agent.DNSTestDomains), func(name string) bool {
		return !isExternal(name, corefile.domain)
	})
	for _, name := range external {
		switch fate, doubt := c.fateOf(corefile, name, true); {
		case fate == unanswered:
			r.find("use only names of the cluster, such as kubernetes.default.svc."+cmp.Or(corefile.domain, "DOMAIN")+
				", or let the cluster's DNS forward the name",
				"%s is in config.dnsTestDomains, but nothing in the Corefile answers it", name)
		case doubt != nil:
			r.doubt(name, doubt)
		case fate == forwarded:
			r.Passed = "the Corefile forwards " + strings.Join(external, ", ")
			r.Notes = []string{"doctor cannot see whether pods resolve the names: run `helm test`, or doctor --ask-dns"}
		default:
			r.Passed = "a DNS pod resolves " + strings.Join(external, ", ")
		}
	}
}

var (
	errUnclear = errors.New("no Corefile shows it: run helm test, or doctor --ask-dns")
	errCached  = errors.New("NodeLocal DNSCache answers it by a Corefile of its own: run helm test")
)

// dnsCaches returns the names of NodeLocal DNSCache's DaemonSet: upstream and in Kubespray.
func dnsCaches() []string { return []string{"node-local-dns", "nodelocaldns"} }

// fateOf returns the fate of a name. The error is why a DNS pod has not resolved it, or why the Corefile does not show its fate.
// A cache on each node asks the DNS pods only for names in the cluster's zones.
func (c Cluster) fateOf(corefile coreDNS, name string, isOutside bool) (fate, error) {
	answer, isAsked := c.Answers[name]
	found := corefile.fateOf(name)
	isCache := func(set appsv1.DaemonSet) bool { return slices.Contains(dnsCaches(), set.Name) }
	switch {
	case isOutside && c.DaemonSets.Err != nil:
		return uncertain, c.DaemonSets.Err
	case isOutside && slices.ContainsFunc(c.DaemonSets.Value, isCache):
		return uncertain, errCached
	case isAsked && answer == nil:
		return resolved, nil
	case !isAsked && found == uncertain:
		return found, cmp.Or(c.DNS.Err, c.Corefile.Err, errUnclear)
	}
	return found, answer
}

// doubt reports why a name may not resolve. That is never a trap.
func (r *Result) doubt(name string, err error) {
	if checks.IsNXDomain(err) {
		r.warn("correct config.dnsTestDomains, or the cluster's DNS", "%s: %v", name, err)
	} else {
		r.skip("whether %s resolves: %w", name, err)
	}
}

// mustResolve reports whether an entry of config.dnsTestDomains is a name, and does not only warn.
func mustResolve(name string) bool {
	_, err := netip.ParseAddr(name)
	return err != nil && !strings.HasPrefix(name, checks.WarnPrefix)
}

// isExternal reports whether the cluster's DNS must forward a name that must resolve.
func isExternal(name, domain string) bool {
	isShort := !strings.Contains(zoneName(name), ".") // the search list of a pod completes it
	return mustResolve(name) && !isShort && !checks.IsClusterName(zoneName(name), domain)
}

// Forward forwards a local port to a port of a pod until ctx ends, and returns the local address.
type Forward func(ctx context.Context, pod *corev1.Pod, port int32) (address string, err error)

// AskDNS resolves the names that must resolve through a ready DNS pod, as an agent does, but over TCP.
func (c *Cluster) AskDNS(ctx context.Context, forward Forward) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	address, err := c.forwardDNS(ctx, forward)
	known := parseCorefile(c.Corefile.Value).domain
	domain := cmp.Or(known, "cluster.local")
	resolver := checks.Resolver{Servers: []string{address}, Network: "tcp",
		Search: []string{c.Release.Namespace + ".svc." + domain, "svc." + domain, domain}}
	c.Answers = make(map[string]error)
	for _, name := range c.Release.Agent.DNSTestDomains {
		if !mustResolve(name) {
			continue
		}
		answer := err
		if err == nil {
			limited, cancel := context.WithTimeout(ctx, c.Release.Agent.CheckTimeout)
			_, answer = checks.DNS{Names: []string{name}, Resolver: &resolver}.Try(limited)
			cancel()
		}
		if known == "" && checks.IsNXDomain(answer) && !isExternal(name, known) {
			answer = errors.New("the cluster's domain is unknown")
		}
		c.Answers[name] = answer
	}
}

// forwardDNS forwards a local port to that of a ready DNS pod for queries over TCP.
func (c *Cluster) forwardDNS(ctx context.Context, forward Forward) (string, error) {
	isReady := func(pod corev1.Pod) bool { return fleet.IsReady(&pod) }
	isDNS := func(port corev1.ServicePort) bool { return port.Protocol == corev1.ProtocolTCP && port.Port == 53 }
	i, n := slices.IndexFunc(c.DNS.Value.Pods, isReady), slices.IndexFunc(c.DNS.Value.Ports, isDNS)
	if i < 0 || n < 0 {
		return "", cmp.Or(c.DNS.Err, errors.New("config.dnsService has no ready pod, or no TCP port 53"))
	}
	pod, target := &c.DNS.Value.Pods[i], c.DNS.Value.Ports[n].TargetPort
	number := cmp.Or(target.IntVal, 53)
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if target.Type == intstr.String && port.Name == target.StrVal && port.Protocol == corev1.ProtocolTCP {
				number = port.ContainerPort
			}
		}
	}
	return forward(ctx, pod, number)
}

// coreDNS is what doctor understands of a Corefile: https://coredns.io/manual/configuration/
type coreDNS struct {
	domain       string   // of the cluster, or "" if it is unknown
	serviceZones []string // of the plugins kubernetes and multicluster
	otherZones   []string // of the server blocks that are not for the root
	fate         fate     // of the names outside these zones
}

// fate is what becomes of a query for a name outside the cluster.
type fate int

const (
	uncertain  fate = iota
	unanswered      // no plugin can answer it
	forwarded       // to the upstream servers, like every other name
	resolved        // a DNS pod has answered with addresses
)

// dnsKey matches a key of a server block, with its port, that is neither for DNS over TLS or HTTPS nor for an IPv6 network.
var dnsKey = regexp.MustCompile(`^(?:dns://)?[^:]+(?::(\d+))?,?$`)

// parseCorefile reads server blocks of the usual form: an opening brace ends a line, and a closing brace is alone on one.
// Anything else, such as a variable, an option that excludes names, or servers on several ports, makes the fate of every name
// uncertain.
func parseCorefile(text string) coreDNS {
	found := coreDNS{fate: unanswered} // CoreDNS refuses a name that no server block is for
	depth, roots, isUnclear := 0, 0, false
	ports := sets.New[string]()
	var zones []string // of the server block
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "}" {
			depth--
			continue
		}
		line, opens := strings.CutSuffix(line, " {")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		isUnclear = isUnclear || depth < 0 || depth == 0 && !opens || strings.ContainsAny(line, `{}"`) || words[0] == "except"
		switch depth {
		case 0:
			zones = zoneNames(words)
			if slices.Contains(zones, "") {
				roots++
			} else {
				found.otherZones = append(found.otherZones, zones...)
			}
			for _, key := range words {
				match := dnsKey.FindStringSubmatch(key)
				isUnclear = isUnclear || match == nil || ports.Insert(cmp.Or(match[1], "53")).Len() > 1
			}
		case 1:
			isUnclear = !found.add(words, zones) || isUnclear
		}
		if opens {
			depth++
		}
	}
	if isUnclear || roots > 1 || depth != 0 || len(zones) == 0 {
		found.fate = uncertain
	}
	return found
}

// add adds a plugin of a server block. It reports whether the plugin's effect on names outside the cluster is clear: only a plain
// forward of everything is, beside plugins that never answer such names.
func (c *coreDNS) add(words, zones []string) bool {
	silent := []string{"errors", "health", "ready", "prometheus", "cache", "loop", "reload", "loadbalance", "log", "bufsize",
		"debug", "nsid", "pprof", "trace", "metadata", "cancel", "minimal", "root", "autopath", "chaos", "timeouts",
		"multisocket", "header", "local", "any", "transfer"}
	switch plugin := words[0]; {
	case plugin == "kubernetes" || plugin == "multicluster":
		if len(words) > 1 {
			zones = zoneNames(words[1:])
		}
		c.serviceZones = append(c.serviceZones, zones...)
		for _, zone := range zones {
			isReverse := strings.HasSuffix(zone, ".arpa") || strings.Contains(zone, "/")
			if c.domain == "" && plugin == "kubernetes" && !isReverse && !strings.ContainsAny(zone, "{(") { // a variable or a snippet
				c.domain = zone
			}
		}
	case slices.Contains(silent, plugin) || !slices.Contains(zones, ""):
	case plugin == "forward" && len(words) > 2 && words[1] == ".":
		c.fate = forwarded
	default:
		return false
	}
	return true
}

func zoneNames(words []string) (zones []string) {
	for _, word := range words {
		zones = append(zones, zoneName(word))
	}
	return zones
}

// zoneName returns the name of a zone in lower case, without protocol, port, and dots or commas around it: "" is the root.
func zoneName(zone string) string {
	if _, rest, found := strings.Cut(zone, "://"); found {
		zone = rest
	}
	if host, _, err := net.SplitHostPort(zone); err == nil {
		zone = host
	}
	return strings.ToLower(strings.Trim(zone, ".,"))
}

// fateOf returns the fate of a name as far as the Corefile shows it.
func (c coreDNS) fateOf(name string) fate {
	for _, zone := range slices.Concat(c.serviceZones, c.otherZones) {
		if zone == "" || strings.HasSuffix("."+zoneName(name), "."+zone) {
			return uncertain
		}
	}
	return c.fate
}
