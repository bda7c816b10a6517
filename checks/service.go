package checks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"
)

const (
	// maxDials bounds what one node asks of a large DNS service.
	maxDials = 8
	// straggle is how long, once the verdict is known, the other endpoints may still answer
	// before they are named in a warning. It bounds what a dead endpoint costs a healthy node.
	straggle = 500 * time.Millisecond
)

// Service finds the ready endpoints of a service by its EndpointSlices and connects to them by pod
// address: service discovery, and the pod network between nodes.
type Service struct {
	Namespace, Service string
	// Node is this node's name: an endpoint here proves nothing about the network between nodes.
	Node string
	// TaintKey is what pods of the service have to tolerate on a cluster where every node starts
	// with the taint.
	TaintKey string
	// Domain is the cluster's DNS domain, for a question that a DNS endpoint can answer itself.
	Domain string
	// List returns the EndpointSlices of the service.
	List func(ctx context.Context) ([]EndpointSlice, error)
}

// EndpointSlice is what is read of an EndpointSlice (discovery.k8s.io/v1). The type in k8s.io/api
// brings every type of core/v1 into the binary, a fifth of the whole.
type EndpointSlice struct {
	AddressType string         `json:"addressType"`
	Ports       []EndpointPort `json:"ports"`
	Endpoints   []Endpoint     `json:"endpoints"`
}

// EndpointPort is a port of every endpoint in a slice.
type EndpointPort struct {
	Name     *string `json:"name"`
	Protocol *string `json:"protocol"`
	Port     *int32  `json:"port"`
}

// Endpoint is one backend of a service.
type Endpoint struct {
	Addresses  []string           `json:"addresses"`
	Conditions EndpointConditions `json:"conditions"`
	NodeName   *string            `json:"nodeName"`
}

// EndpointConditions says what state an endpoint is in.
type EndpointConditions struct {
	Ready *bool `json:"ready"`
}

// endpoint is one address of a ready endpoint.
type endpoint struct {
	address string // host:port
	node    string // "" where the slice does not say
	dns     bool
}

func (e endpoint) String() string {
	if e.node == "" {
		return "TCP " + e.address
	}
	return "TCP " + e.address + " on node " + e.node
}

// Name implements Check.
func (Service) Name() string { return ServiceName }

// Try implements Check. At least one ready endpoint must answer, and where there are any on other
// nodes, at least one of those. Warnings name the endpoints that did not.
func (s Service) Try(ctx context.Context) (Report, error) {
	name := s.Namespace + "/" + s.Service
	traced, way := traced(ctx)
	found, err := s.List(traced)
	if err != nil {
		return Report{}, fmt.Errorf("EndpointSlices of %s: %w", name, apiFailure(ctx, way.explain(err),
			"apply the Role and its binding from the chart in namespace "+s.Namespace+": endpointslices, list"))
	}
	ready, unready, portless := endpoints(found)
	if len(ready) == 0 && portless > 0 {
		return Report{}, fail("name a service in DNS_SERVICE whose pods listen on TCP",
			"service %s has no TCP port", name)
	}
	if len(ready) == 0 {
		return Report{}, fail(
			fmt.Sprintf("most likely the pods of %s are Pending because they do not tolerate the taint %s: add the toleration {key: %s, operator: Exists} to them, or run them on nodes that are never gated; "+
				"see: kubectl -n %s get pods -o wide", name, s.TaintKey, s.TaintKey, s.Namespace),
			"service %s has no ready endpoint (%d not ready)", name, unready)
	}
	return s.connect(ctx, name, s.choose(ready))
}

// endpoints lists the addresses of ready endpoints, and counts the endpoints that are not ready
// and those without a TCP port.
func endpoints(found []EndpointSlice) (ready []endpoint, unready, portless int) {
	for _, slice := range found {
		port, dns, ok := tcpPort(slice.Ports)
		if slice.AddressType == "FQDN" {
			continue
		}
		if !ok {
			portless += len(slice.Endpoints)
			continue
		}
		for _, e := range slice.Endpoints {
			// "nil should be interpreted as ready" (discovery.k8s.io/v1, EndpointConditions)
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				unready++
				continue
			}
			node := ""
			if e.NodeName != nil {
				node = *e.NodeName
			}
			// All addresses of an endpoint are fungible, so the first stands for it.
			if len(e.Addresses) == 0 {
				continue
			}
			one := endpoint{net.JoinHostPort(e.Addresses[0], port), node, dns}
			if !slices.Contains(ready, one) { // an endpoint may be in two slices while it moves
				ready = append(ready, one)
			}
		}
	}
	return ready, unready, portless
}

// tcpPort picks the port to connect to: DNS over TCP where there is one, else the first TCP port.
func tcpPort(ports []EndpointPort) (port string, dns, ok bool) {
	for _, p := range ports {
		if p.Port == nil || (p.Protocol != nil && *p.Protocol != "TCP") {
			continue
		}
		isDNS := *p.Port == 53 || (p.Name != nil && *p.Name == "dns-tcp")
		if !ok || (isDNS && !dns) {
			port, dns, ok = strconv.Itoa(int(*p.Port)), isDNS, true
		}
	}
	return port, dns, ok
}

// choose picks which endpoints to ask: all of a few, else a random few, those elsewhere first.
func (s Service) choose(ready []endpoint) []endpoint {
	rand.Shuffle(len(ready), func(i, j int) { ready[i], ready[j] = ready[j], ready[i] })
	slices.SortStableFunc(ready, func(a, b endpoint) int {
		switch here, there := s.here(a), s.here(b); {
		case here == there:
			return 0
		case here:
			return 1
		default:
			return -1
		}
	})
	return ready[:min(len(ready), maxDials)]
}

func (s Service) here(e endpoint) bool { return e.node != "" && e.node == s.Node }

func (s Service) connect(ctx context.Context, name string, chosen []endpoint) (Report, error) {
	type outcome struct {
		endpoint
		err error
	}
	outcomes := make(chan outcome, len(chosen))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // those that are still under way when the verdict is known
	for _, e := range chosen {
		go func() { outcomes <- outcome{e, s.answers(ctx, e)} }()
	}

	// Those elsewhere come first in chosen: if the first is here, all are.
	needElsewhere := !s.here(chosen[0])
	waiting := make(map[endpoint]bool)
	for _, e := range chosen {
		waiting[e] = true
	}
	var (
		answered int
		passed   bool
		failures []error
		enough   <-chan time.Time
	)
	for len(waiting) > 0 {
		select {
		case o := <-outcomes:
			delete(waiting, o.endpoint)
			switch {
			case o.err != nil:
				failures = append(failures, o.err)
			default:
				answered++
				if !passed && (!needElsewhere || !s.here(o.endpoint)) {
					passed = true
					enough = time.After(straggle)
				}
			}
			continue
		case <-enough:
		}
		for e := range waiting {
			failures = append(failures, fmt.Errorf("%s: no answer within %s of the first", e, straggle))
		}
		break
	}

	where := ""
	if needElsewhere && s.Node != "" {
		where = " on other nodes"
	}
	if !passed {
		return Report{}, fail(serviceRemedy(failures),
			"service %s: none of its ready endpoints%s answers: %w", name, where, oneLine(failures))
	}
	report := Report{Detail: fmt.Sprintf("%d of %d ready endpoints of %s answer", answered, len(chosen), name)}
	for _, failure := range failures {
		// A slice of the other address family on a single-stack node is nobody's fault.
		if !noRoute(failure) {
			report.Warnings = append(report.Warnings, failure.Error())
		}
	}
	slices.Sort(report.Warnings)
	return report, nil
}

// answers connects to e, and asks a DNS endpoint a question as well.
func (s Service) answers(ctx context.Context, e endpoint) error {
	conn, err := dialTCP(ctx, e.address)
	if err != nil {
		return fmt.Errorf("%s: %w", e, short(err))
	}
	defer func() { _ = conn.Close() }()
	if !e.dns {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	switch err := askPadded(conn, s.Domain); {
	case err == nil:
		return nil
	case isTimeout(err):
		return &largeError{fmt.Errorf("%s connects, but a question of %d bytes got no answer: %w", e, paddedSize, short(err))}
	default:
		return fmt.Errorf("%s connects, but does not answer as a DNS server: %w", e, short(err))
	}
}

// largeError marks an endpoint that takes connections and no large packets.
type largeError struct{ error }

func (l *largeError) Unwrap() error { return l.error }

func serviceRemedy(failures []error) string {
	for _, failure := range failures {
		if _, ok := errors.AsType[*largeError](failure); ok {
			return "small packets pass and large ones do not: compare the MTU of the pods' interface with that of the path (overlay, VPN, jumbo frames), and let ICMP \"fragmentation needed\" through"
		}
	}
	if slices.ContainsFunc(failures, isTimeout) {
		return "check the CNI on this node and on the nodes of these pods (tunnels, routes), network policies and firewalls between nodes"
	}
	return "check that the pods listen on TCP, and the CNI's routes to them"
}
