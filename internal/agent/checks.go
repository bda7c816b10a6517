package agent

import (
	"context"
	"errors"
	"strings"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
)

// newChecks returns the four checks in their order. Those that cannot run in the environment are skipped with the reason.
func newChecks(cfg config.Config, e kube.Environment, domain string, api checks.API) []checks.Check {
	list := []checks.Check{checks.DNS{Names: cfg.DNSTestDomains, Outside: e.Outside}}

	noKubeconfig := errors.Is(e.Err, kube.ErrNoKubeconfig)
	if noKubeconfig {
		list = append(list, checks.Skip(checks.APIName, e.Err.Error()))
	} else {
		list = append(list, api)
	}
	return append(list, networkCheck(cfg, e, noKubeconfig), serviceCheck(cfg, e, domain, noKubeconfig))
}

func networkCheck(cfg config.Config, e kube.Environment, noKubeconfig bool) checks.Check {
	var targets []checks.Target
	if e.Service != "" {
		targets = append(targets, checks.Target{Address: e.Service, EachAddress: true,
			Remedy: "the kubernetes service does not answer: check kube-proxy (or its replacement) on this node, and network policies"})
	} else if e.APIServer != "" {
		targets = append(targets, checks.Target{Address: e.APIServer})
	}
	for _, target := range cfg.NetworkTargets {
		targets = append(targets, checks.ParseTarget(target))
	}
	if len(targets) > 0 {
		return checks.Network{Targets: targets, ClusterCA: cfg.ClusterCA}
	}
	server := "no kubeconfig"
	if !noKubeconfig {
		server = "the kubeconfig's API server is behind a proxy"
	}
	return checks.Skip(checks.NetworkName, e.Outside+", "+server+", no NETWORK_TARGETS")
}

func serviceCheck(cfg config.Config, e kube.Environment, domain string, noKubeconfig bool) checks.Check {
	skip := func(reason string) checks.Check { return checks.Skip(checks.ServiceName, reason) }
	namespace, service, found := strings.Cut(cfg.DNSService, "/")
	switch {
	case !found:
		return skip("DNS_SERVICE is empty")
	case noKubeconfig:
		return skip(e.Err.Error())
	case e.Client == nil:
		return skip("the endpoints of " + cfg.DNSService + " cannot be listed without the API")
	case e.Outside != "":
		return skip("pod addresses cannot be reached from here: " + e.Outside)
	}
	list := func(ctx context.Context) ([]checks.EndpointSlice, error) {
		return kube.EndpointSlices[checks.EndpointSlice](ctx, e.Client, namespace, service)
	}
	if cfg.Worker { // which may not list them
		list = func(context.Context) ([]checks.EndpointSlice, error) { return checks.ParseEndpoints(cfg.DNSEndpoints) }
	}
	return checks.Service{
		Namespace: namespace, Service: service, Node: cfg.NodeName, Domain: domain,
		TaintKey: cfg.TaintKey, FailedTaintKey: cfg.FailedTaintKey,
		List: list,
	}
}

// clusterDomain returns the cluster's DNS domain as this pod's resolv.conf has it.
func clusterDomain() string {
	if resolver, err := checks.SystemResolver(); err == nil && resolver.ClusterDomain() != "" {
		return resolver.ClusterDomain()
	}
	return "cluster.local"
}
