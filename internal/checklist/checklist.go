// Package checklist chooses the checks of a round: which of them can run where the process is, and how thorough they are. The
// agent, its workers, a dry run and the controller's baseline make their rounds with it.
package checklist

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// How many endpoints of the DNS service a verification and a recheck connect to. A recheck connects to two nodes, and fails only
// if neither answers: a single node that does not answer may itself be broken.
const (
	verificationDials = 8
	recheckDials      = 2
)

// Options are how a round of rechecks is made. A verification has none, and always proves everything.
type Options struct {
	Recheck       bool
	Thorough      bool // with large packets
	NewConnection bool // to the API server
	// DNSMustAnswer and PeersMustAnswer ask for an answer from another node, even where few other nodes can answer.
	DNSMustAnswer, PeersMustAnswer bool
	FewPeersMayWarn                bool // see checks.Peers
}

// List returns the checks of a round in their order. Those that cannot run in the environment are skipped with the reason.
type List func(checks.API, Options) []checks.Check

// New returns the list for a process in this environment.
func New(cfg config.Config, e kube.Environment) List {
	resolver, _ := checks.SystemResolver()
	domain := cmp.Or(cfg.ClusterDomain, resolver.ClusterDomain(), "cluster.local")
	return func(api checks.API, o Options) []checks.Check {
		clusterIPs := new(checks.FoundAddresses)
		list := []checks.Check{
			checks.DNS{Names: cfg.DNSTestDomains, Outside: e.Outside(), Kubernetes: e.Service, ClusterIPs: clusterIPs}}
		if errors.Is(e.Err, kube.ErrNoKubeconfig) {
			list = append(list, checks.Skip(checks.APIName, e.Err.Error()))
		} else {
			if e.Client != nil {
				api.ClockSkew, api.MaxSkew = e.Client.ClockSkew, cfg.MaxClockSkew
			}
			list = append(list, api)
		}
		return append(list, network(cfg, e, clusterIPs), service(cfg, e, domain, o))
	}
}

// ForAnotherProcess returns the checks that an agent in this pod would run, and their runner: the process uses the results
// itself.
func ForAnotherProcess(cfg config.Config, e kube.Environment) ([]checks.Check, checks.Runner) {
	node := nodepatch.Client{REST: e.Client.Core, Name: cfg.NodeName}
	get := func(ctx context.Context) (checks.Report, error) {
		e.Client.CloseIdleConnections()
		_, report, err := ReadNode(ctx, cfg.NodeName, node.Get)
		return report, err
	}
	return New(cfg, e)(checks.API{Get: get}, Options{}), Runner(cfg, nil)
}

// ReadNode is the request of the api check: get, larger than a packet.
func ReadNode(ctx context.Context, name string, get func(context.Context) (*nodepatch.Node, error)) (
	node *nodepatch.Node, report checks.Report, err error) {
	report.Detail = "node " + name + " read"
	report.Warnings, err = checks.WithLargeHeader(func(value string) (err error) {
		node, err = get(kube.WithLargeHeader(ctx, value))
		return err
	})
	return node, report, err
}

// Runner returns the runner of the checks; observe may be nil.
func Runner(cfg config.Config, observe func(checks.Attempt)) checks.Runner {
	backOff := checks.Exponential
	if cfg.RetryBackoff == config.BackoffLinear {
		backOff = checks.Linear
	}
	return checks.Runner{Timeout: cfg.CheckTimeout, MaxRetries: cfg.MaxRetries, NewBackOff: backOff, Observe: observe}
}

// LongestRound returns the longest that a round can take.
func LongestRound(cfg config.Config) time.Duration {
	return Runner(cfg, nil).Longest(len(checks.Names()))
}

// Names returns the names of the checks that cfg asks for.
func Names(cfg config.Config) []string {
	names := checks.Names()
	if len(cfg.Require) > 0 {
		names = append(names, checks.NodeName)
	}
	if cfg.ChecksPeers {
		names = append(names, checks.PeersName)
	}
	return names
}

// network also connects to the addresses of the kubernetes service that the dns check has found: some platforms set
// KUBERNETES_SERVICE_HOST to another address, or to a name.
func network(cfg config.Config, e kube.Environment, clusterIPs *checks.FoundAddresses) checks.Check {
	const remedy = "the kubernetes service does not answer: check kube-proxy (or its replacement) on this node, and network policies"
	var targets []checks.Target
	if e.Service != "" {
		targets = append(targets, checks.Target{Address: e.Service, EachAddress: true, Remedy: remedy},
			checks.Target{Address: "kubernetes.default.svc:443", EachAddress: true, Remedy: remedy, Addresses: clusterIPs})
	} else if e.APIServer != "" {
		targets = append(targets, checks.Target{Address: e.APIServer})
	}
	for _, target := range cfg.NetworkTargets {
		targets = append(targets, checks.ParseTarget(target))
	}
	if len(targets) > 0 {
		return checks.Network{Targets: targets, ClusterCA: cfg.ClusterCA}
	}
	return checks.Skip(checks.NetworkName, e.Outside()+"; no kubeconfig, or its API server is behind a proxy; no NETWORK_TARGETS")
}

func service(cfg config.Config, e kube.Environment, domain string, o Options) checks.Check {
	skip := func(reason string) checks.Check { return checks.Skip(checks.ServiceName, reason) }
	namespace, name, found := strings.Cut(cfg.DNSService, "/")
	switch {
	case !found:
		return skip("DNS_SERVICE is empty")
	case e.Client == nil:
		return skip("the endpoints of " + cfg.DNSService + " cannot be listed without the API")
	case e.Outside() != "":
		return skip("pod addresses cannot be reached from here: " + e.Outside())
	}
	list := func(ctx context.Context) ([]checks.EndpointSlice, error) {
		return kube.EndpointSlices[checks.EndpointSlice](ctx, e.Client, namespace, name)
	}
	if cfg.Worker { // which may not list them
		list = func(context.Context) ([]checks.EndpointSlice, error) { return checks.ParseEndpoints(cfg.DNSEndpoints) }
	}
	check := checks.Service{
		Namespace: namespace, Service: name, Node: cfg.NodeName, Domain: domain,
		TaintKey: cfg.TaintKey, FailedTaintKey: cfg.FailedTaintKey,
		List: list, MaxDials: verificationDials,
	}
	if o.Recheck {
		check.MaxDials, check.SmallPackets, check.MayBeUnknown = recheckDials, !o.Thorough, true
	}
	if o.Recheck && !o.DNSMustAnswer {
		check.FewestNodes = recheckDials
	}
	return check
}
