package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// maxDials limits how many endpoints of a large DNS service one node connects to.
	maxDials = 8
	// stragglerGrace is how long the other endpoints may still answer once the check has passed. Then a warning names
	// them: a dead endpoint must not delay a healthy node.
	stragglerGrace = 500 * time.Millisecond
)

// Service lists the EndpointSlices of a service and connects to its ready endpoints by pod address. That proves service
// discovery and the pod network between nodes.
type Service struct {
	Namespace, Service string
	// Node is the name of this node: a local endpoint proves nothing about the network between nodes.
	Node string
	// TaintKey is the key of the startup taint, and FailedTaintKey that of the failed taint, "" if nothing puts it on. Pods of
	// the service must tolerate both.
	TaintKey, FailedTaintKey string
	// Domain is the cluster's DNS domain, for a name that every DNS endpoint can resolve.
	Domain string
	// List returns the EndpointSlices of the service.
	List func(ctx context.Context) ([]EndpointSlice, error)
}

// Name implements Check.
func (Service) Name() string { return ServiceName }

// Try implements Check. At least one ready endpoint must answer; if any are remote, at least one of those. Warnings name
// the endpoints that do not answer.
func (s Service) Try(ctx context.Context) (Report, error) {
	name := s.Namespace + "/" + s.Service
	listCtx, phase := tracePhase(ctx)
	found, err := s.List(listCtx)
	if err != nil {
		return Report{}, fmt.Errorf("EndpointSlices of %s: %w", name, apiFailure(ctx, phase.explain(err),
			"apply the Role and its binding from the chart in namespace "+s.Namespace+": endpointslices, list"))
	}
	ready, unready, portless := endpoints(found)
	if len(ready) == 0 && portless > 0 {
		return Report{}, fail("set DNS_SERVICE to a service whose pods listen on TCP", "service %s has no TCP port", name)
	}
	if len(ready) == 0 {
		return Report{}, fail(
			fmt.Sprintf("most likely the pods of %s are Pending because they do not tolerate the taint %s: "+
				"add the %s to them, or run them on nodes that are never gated; see: kubectl -n %s get pods -o wide",
				name, s.TaintKey, s.tolerations(), s.Namespace),
			"service %s has no ready endpoint (%d not ready)", name, unready)
	}
	return s.connect(ctx, name, s.choose(ready))
}

func (s Service) tolerations() string {
	if s.FailedTaintKey == "" {
		return fmt.Sprintf("toleration {key: %s, operator: Exists}", s.TaintKey)
	}
	return fmt.Sprintf("tolerations {key: %s, operator: Exists} and {key: %s, operator: Exists}", s.TaintKey, s.FailedTaintKey)
}

func (s Service) isLocal(e endpoint) bool { return e.node != "" && e.node == s.Node }

// choose returns the endpoints to connect to: all of a few, else a random few; remote ones first.
func (s Service) choose(ready []endpoint) []endpoint {
	rank := func(e endpoint) int {
		if s.isLocal(e) {
			return 1
		}
		return 0
	}
	rand.Shuffle(len(ready), func(i, j int) { ready[i], ready[j] = ready[j], ready[i] })
	slices.SortStableFunc(ready, func(a, b endpoint) int { return cmp.Compare(rank(a), rank(b)) })
	return ready[:min(len(ready), maxDials)]
}

func (s Service) connect(ctx context.Context, name string, chosen []endpoint) (Report, error) {
	type result struct {
		endpoint
		outcome
	}
	results := make(chan result, len(chosen))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the connections still in progress
	for _, e := range chosen {
		go func() { results <- result{e, s.probe(ctx, e)} }()
	}

	needRemote := !s.isLocal(chosen[0]) // remote ones come first: if this one is local, all are
	var (
		answered int
		failures []error
		warnings []string
		graceEnd <-chan time.Time // set when the check has passed
	)
	for waiting := slices.Clone(chosen); len(waiting) > 0; {
		select {
		case r := <-results:
			waiting = slices.DeleteFunc(waiting, func(e endpoint) bool { return e == r.endpoint })
			if r.err != nil {
				failures = append(failures, r.err)
				continue
			}
			warnings = append(warnings, r.warnings...)
			answered++
			if graceEnd == nil && (!needRemote || !s.isLocal(r.endpoint)) {
				graceEnd = time.After(stragglerGrace)
			}
		case <-graceEnd:
			for _, e := range waiting {
				failures = append(failures, fmt.Errorf("%s: no answer within %s of the first", e, stragglerGrace))
			}
			waiting = nil
		}
	}

	if passed := graceEnd != nil; !passed {
		which := "none of its ready endpoints"
		if needRemote && s.Node != "" {
			which += " on other nodes"
		}
		return Report{}, fail(serviceRemedy(failures), "service %s: %s answers: %w", name, which, oneLine(failures))
	}
	for _, failure := range failures {
		if !noRoute(failure) { // the other address family on a single-stack node is no fault
			warnings = append(warnings, failure.Error())
		}
	}
	slices.Sort(warnings)
	detail := fmt.Sprintf("%d of %d ready endpoints of %s answer", answered, len(chosen), name)
	return Report{Detail: detail, Warnings: warnings}, nil
}

// probe connects to e and, if it is a DNS endpoint, sends it a large query, and a smaller one if it may refuse the size.
func (s Service) probe(ctx context.Context, e endpoint) outcome {
	err := s.probeOnce(ctx, e, maxMessage)
	if !errors.Is(err, errTooLarge) {
		return outcome{err: err}
	}
	const warning = "%v; it answers one of %d bytes: this check does not prove that large packets come back from it"
	return outcome{warnings: []string{fmt.Sprintf(warning, err, minLargeQuery)}, err: s.probeOnce(ctx, e, minLargeQuery)}
}

func (s Service) probeOnce(ctx context.Context, e endpoint, limit int) error {
	conn, err := dialTCP(ctx, e.address)
	if err != nil {
		return fmt.Errorf("%s: %w", e, short(err))
	}
	defer func() { _ = conn.Close() }()
	if !e.isDNS {
		return nil
	}
	if err := exchangeLargeQuery(ctx, conn, s.Domain, limit); err != nil {
		return fmt.Errorf("%s connects, but %w", e, err)
	}
	return nil
}

func serviceRemedy(failures []error) string {
	switch {
	case errors.Is(oneLine(failures), errLargeQuery):
		return "small packets pass and large ones do not: compare the MTU of the pods' interface with that of the path " +
			"(overlay, VPN, jumbo frames), and let ICMP \"fragmentation needed\" through"
	case slices.ContainsFunc(failures, isTimeout):
		return "check the CNI on this node and on the nodes of these pods (tunnels, routes), " +
			"network policies and firewalls between nodes"
	default:
		return "check that the pods listen on TCP, and the CNI's routes to them"
	}
}
