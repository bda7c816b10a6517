package checks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	maxAddresses   = 8                      // how many addresses of a name are dialled
	stragglerGrace = 500 * time.Millisecond // for the others once the check has passed: a dead endpoint must not delay the node
)

// Service lists a service's EndpointSlices and connects to ready endpoints by pod address: discovery and the pod network.
type Service struct {
	Namespace, Service string
	Node               string // this node: a local endpoint proves nothing about the network between nodes
	TaintKey           string // of the startup taint: the service's pods must tolerate it
	FailedTaintKey     string // of the failed taint, which they must tolerate too
	Domain             string // the cluster's DNS domain, for a name that every DNS endpoint can resolve
	MaxDials           int    // how many endpoints to connect to; of a dual-stack service at least both families on two nodes
	SmallPackets       bool   // only connect, without the large query
	// FewestNodes is on how many other nodes nothing may answer before the check fails. On fewer that is a warning: the fault
	// may be theirs. 0: it always fails.
	FewestNodes  int
	MayBeUnknown bool // a list that the API server forbids says nothing
	// List returns the EndpointSlices of the service.
	List func(ctx context.Context) ([]EndpointSlice, error)
}

// Name implements Check.
func (Service) Name() string { return ServiceName }

// Try implements Check. A ready endpoint must answer, and a remote one if there is any; but see FewestNodes. Warnings name those
// that do not.
func (s Service) Try(ctx context.Context) (Report, error) {
	name := s.Namespace + "/" + s.Service
	listCtx, explain := tracePhase(ctx)
	found, err := s.List(listCtx)
	switch {
	case s.MayBeUnknown && apierrors.IsForbidden(err):
		return Report{Warnings: []string{"EndpointSlices of " + name + ": " + err.Error()}, IsUnknown: true}, nil
	case err != nil:
		return Report{}, fmt.Errorf("EndpointSlices of %s: %w", name, apiFailure(ctx, explain(err),
			"apply the Role and its binding from the chart in namespace "+s.Namespace+": endpointslices, list"))
	}
	ready, unready, portless := endpoints(found)
	switch {
	case len(ready) > 0:
		return s.connect(ctx, name, s.choose(ready))
	case portless > 0:
		return Report{}, fail("set DNS_SERVICE to a service whose pods listen on TCP", "service %s has no TCP port", name)
	}
	return Report{}, fail(fmt.Sprintf("most likely the pods of %s are Pending because they do not tolerate the taint %[2]s: "+
		"add the tolerations {key: %[2]s, operator: Exists} and {key: %[3]s, operator: Exists} to them, "+
		"or run them on nodes that are never gated; see: kubectl -n %[4]s get pods -o wide",
		name, s.TaintKey, s.FailedTaintKey, s.Namespace), "service %s has no ready endpoint (%d not ready)", name, unready)
}

func (s Service) isLocal(e endpoint) bool { return e.node != "" && e.node == s.Node }

// choose returns the endpoints to connect to: all of a few, else a random few; remote ones first, one of each node before
// others. Of a dual-stack service that is one of each family: this node may have only one of them.
func (s Service) choose(ready []endpoint) []endpoint {
	rand.Shuffle(len(ready), func(i, j int) { ready[i], ready[j] = ready[j], ready[i] })
	var first, others, local []endpoint
	nodes := make(map[string]bool)
	for _, e := range ready {
		switch {
		case s.isLocal(e):
			local = append(local, e)
		case nodes[e.node]:
			others = append(others, e)
		default:
			nodes[e.node] = true
			first = append(first, e)
		}
	}
	most := s.MaxDials
	var chosen []endpoint
	for _, e := range first {
		chosen = append(chosen, e)
		isPair := func(other endpoint) bool { return other.node == e.node && other.isIPv6() != e.isIPv6() }
		if i := slices.IndexFunc(others, isPair); i >= 0 {
			most = max(most, 4)
			chosen = append(chosen, others[i])
			others = slices.Delete(others, i, i+1)
		}
	}
	chosen = append(append(chosen, others...), local...)
	return chosen[:min(len(chosen), most)]
}

// connect probes the chosen endpoints, and fails if no other node answers.
func (s Service) connect(ctx context.Context, name string, chosen []endpoint) (Report, error) {
	graceCtx, endGrace := context.WithCancel(ctx)
	defer endGrace()
	return s.judge(name, chosen, inParallel(chosen, func(e endpoint) outcome {
		o := s.probe(graceCtx, e)
		if o.err == nil && s.proves(e, chosen) {
			time.AfterFunc(stragglerGrace, endGrace)
		} else if o.err != nil && graceCtx.Err() != nil && ctx.Err() == nil {
			o.err = fmt.Errorf("%s: no answer within %s after the first answer", e, stragglerGrace)
		}
		return o
	}))
}

// proves reports whether an answer of e is enough for the check to pass: e is on another node, unless all are on this one.
func (s Service) proves(e endpoint, chosen []endpoint) bool {
	return !s.isLocal(e) || s.isLocal(chosen[0])
}

// judge makes a verdict of the outcomes for the chosen endpoints, of which remote ones come first.
func (s Service) judge(name string, chosen []endpoint, outcomes []outcome) (Report, error) {
	var failures, provingFailures []error
	var warnings []string
	passed, deadNodes := false, make(map[string]bool)
	for i, o := range outcomes {
		e := chosen[i]
		if o.err == nil {
			passed = passed || s.proves(e, chosen)
			warnings = append(warnings, o.warnings...)
			continue
		}
		failures = append(failures, o.err)
		if s.proves(e, chosen) {
			provingFailures = append(provingFailures, o.err)
		}
		if !s.isLocal(e) {
			deadNodes[e.node] = true
		}
	}
	if !passed && len(deadNodes) >= s.FewestNodes {
		which := "none of its ready endpoints"
		if s.Node != "" && !s.isLocal(chosen[0]) {
			which += " on other nodes"
		}
		err := &Failure{Cause: join(failures, "; "), sign: signOfOne(signsOf(provingFailures))}
		return Report{}, fail(serviceRemedy(failures), "service %s: %s answers: %w", name, which, err)
	}
	for _, failure := range failures {
		if !passed || !noRoute(failure) { // a single-stack node has no route to the other address family
			warnings = append(warnings, failure.Error())
		}
	}
	slices.Sort(warnings)
	detail := fmt.Sprintf("%d of %d ready endpoints of %s answer", len(chosen)-len(failures), len(chosen), name)
	return Report{Detail: detail, Warnings: warnings}, nil
}

// probe connects to e and, if it is a DNS endpoint, sends it a large query, and a smaller one if it may refuse the size.
func (s Service) probe(ctx context.Context, e endpoint) outcome {
	err := s.probeOnce(ctx, e, maxMessage)
	if !errors.Is(err, errTooLarge) {
		return outcome{err: err}
	}
	const warning = "%v; it answers a query of %d bytes: this check does not prove that large packets come back from it"
	return outcome{warnings: []string{fmt.Sprintf(warning, err, minLargeQuery)}, err: s.probeOnce(ctx, e, minLargeQuery)}
}

func (s Service) probeOnce(ctx context.Context, e endpoint, limit int) error {
	conn, err := dial(ctx, e.address)
	if err != nil {
		return fmt.Errorf("%s: %w", e, short(err))
	}
	defer func() { _ = conn.Close() }()
	if !e.isDNS || s.SmallPackets {
		return nil
	}
	if err := exchangeLargeQuery(ctx, conn, s.Domain, limit); err != nil {
		return fmt.Errorf("%s connects, but %w", e, err)
	}
	return nil
}

func serviceRemedy(failures []error) string {
	switch {
	case errors.Is(errors.Join(failures...), errLargeQuery):
		return "small packets pass and large ones do not: compare the MTU of the pods' interface with the MTU of the path " +
			"(overlay, VPN, jumbo frames), and let ICMP \"fragmentation needed\" through"
	case slices.ContainsFunc(failures, isTimeout):
		return "check the CNI on this node and on the nodes of these pods (tunnels, routes), " +
			"network policies and firewalls between nodes"
	default:
		return "check that the pods listen on TCP, and the CNI's routes to them"
	}
}
