package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/imunhatep/kube-node-ready/checks"
)

// dnsBehindGate: the first node waits for DNS, and the DNS pods wait for the node.
func dnsBehindGate(c Cluster) (r Result) {
	service := c.Release.Agent.DNSService
	switch {
	case service == "":
		return Result{Passed: "config.dnsService is empty: no DNS pods are expected"}
	case c.DNS.Err != nil || c.Nodes.Err != nil:
		return unchecked(c.DNS.Err, c.Nodes.Err)
	case c.DNS.Absent:
		r.find("set config.dnsService to the cluster's DNS Service, or to empty where no pods serve DNS",
			"there is no Service %s: the service check never passes", service)
		return r
	case c.DNS.Value.External:
		return Result{Passed: "the Service " + service + " selects no pods: its endpoints are outside the nodes"}
	case len(c.DNS.Value.Pods) == 0:
		r.find("start the DNS pods", "the Service %s has no pods: no node can be verified", service)
		return r
	}
	placement := c.placementOf(c.DNS.Value.Pods)
	keys := strings.Join(placement.missing, " and ")
	remedy := fmt.Sprintf("let the DNS pods tolerate %s (operator Exists): docs/operations.md, \"DNS pods\", has the "+
		"command; or run them on nodes that join without the startup taint", keys)
	switch {
	case placement.err != nil:
		return unchecked(placement.err)
	case placement.noneCanRun:
		r.find(remedy, "no pod of %s tolerates %s, and no node that joins without the startup taint could run one: "+
			"once all nodes are new, nodes wait for DNS and DNS waits for a node", service, keys)
	case placement.noneCouldRun:
		r.warn(remedy, "no pod of %s tolerates %s: "+
			"once all nodes join with the startup taint, nodes wait for DNS and DNS waits for a node", service, keys)
	case keys != "":
		r.Passed = fmt.Sprintf("nodes that the release does not select run pods of %s", service)
	default:
		r.Passed = fmt.Sprintf("pods of %s tolerate %s", service, strings.Join(c.Release.TaintKeys(), " and "))
	}
	return r
}

// clusterDomain: names under a domain that the cluster does not have never resolve.
func clusterDomain(c Cluster) (r Result) {
	domain := corefileDomain(c.Corefile.Value)
	if domain == "" {
		return unchecked(errors.New("no Corefile has the plugin kubernetes with the cluster's domain"), c.DNS.Err, c.Corefile.Err)
	}
	known := kubernetesZones(c.Corefile.Value, "kubernetes", "multicluster")
	var names, foreign []string
	for _, name := range c.Release.Agent.DNSTestDomains {
		service, configured, isService := checks.SplitServiceName(zoneName(name))
		zone := stubZone(c.Corefile.Value, name)
		corrected := name
		switch {
		case !isService || !mustResolve(name) || slices.Contains(known, configured):
		case zone != "":
			r.note("the cluster's domain is %s: doctor cannot see whether the name servers for %s know %s", domain, zone, name)
		default:
			foreign = append(foreign, name)
			corrected = service + ".svc." + domain
		}
		names = append(names, corrected)
	}
	for _, name := range foreign {
		r.find("--set 'config.dnsTestDomains={"+strings.Join(names, ",")+"}'",
			"%s is in config.dnsTestDomains, but the cluster's domain is %s (the Corefile)", name, domain)
	}
	r.Passed = domain + " (the Corefile)"
	return r
}

// externalNames: a name that the cluster's resolver refuses prevents every release. From outside only its configuration can be
// seen; what agents report is in the status.
func externalNames(c Cluster) (r Result) {
	external, inCluster := c.testNames()
	if len(external) == 0 {
		return Result{Passed: "config.dnsTestDomains has no external name"}
	}
	remedy := "--set 'config.dnsTestDomains={" + strings.Join(inCluster, ",") + "}', or let the cluster's DNS forward the name"
	for _, name := range external {
		if refuses(c.Corefile.Value, name) {
			r.find(remedy, "%s is in config.dnsTestDomains, but nothing in the Corefile answers it", name)
		}
	}
	if c.Corefile.Value == "" {
		return unchecked(c.DNS.Err, cmp.Or(c.Corefile.Err, errors.New("no Corefile was read")))
	}
	r.Passed = "the Corefile does not refuse " + strings.Join(external, ", ")
	r.note("doctor cannot see whether pods resolve the names: run `helm test`, which asks in a pod")
	return r
}

func mustResolve(name string) bool { return !strings.HasPrefix(name, checks.WarnPrefix) }

// testNames returns the configured names that the cluster's DNS must forward, and the others, at least one that must resolve.
func (c Cluster) testNames() (external, inCluster []string) {
	domain := cmp.Or(corefileDomain(c.Corefile.Value), "cluster.local")
	isInCluster := func(name string) bool { // the search list of a pod completes the short ones
		name = zoneName(name)
		return !strings.Contains(name, ".") || checks.IsClusterName(name, domain)
	}
	for _, name := range c.Release.Agent.DNSTestDomains {
		if _, err := netip.ParseAddr(name); err != nil && mustResolve(name) && !isInCluster(name) {
			external = append(external, name)
		} else {
			inCluster = append(inCluster, name)
		}
	}
	if !slices.ContainsFunc(inCluster, mustResolve) {
		inCluster = append(inCluster, "kubernetes.default.svc."+domain)
	}
	return external, inCluster
}
