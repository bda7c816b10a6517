package checks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"time"
)

const (
	peerDials = 8 // how many other agents one attempt connects to
	fewPeers  = 3 // fewer than these prove nothing about this node when none of them answers
)

// Peer is an agent on another node.
type Peer struct {
	Address string // host:port of its metrics
	Node    string
	Zone    string // "" if its EndpointSlice does not name it
}

func (p Peer) String() string { return endpoint{address: p.Address, node: p.Node}.String() }

// PeerResult is what one connection to a peer found.
type PeerResult struct {
	Peer
	Took time.Duration
	Err  error
}

// Peers connects to agents on other nodes by pod address, and requests their /healthz: pods of other nodes can be reached from
// this one.
type Peers struct {
	// Sample returns the agents to choose from.
	Sample func(ctx context.Context) ([]Peer, error)
	// Found receives the results of an attempt; nil: nobody does.
	Found func([]PeerResult)
}

// Name implements Check.
func (Peers) Name() string { return PeersName }

// Try implements Check. It fails if none of at least three peers answers; warnings name those that do not. Peers that cannot
// be listed are no fault of the pod network.
func (p Peers) Try(ctx context.Context) (Report, error) {
	sample, err := p.Sample(ctx)
	switch {
	case err != nil:
		return Report{Skipped: fmt.Sprintf("the agents on other nodes cannot be listed: %v", err)}, nil
	case len(sample) == 0:
		return Report{Skipped: "no agent on another node is ready"}, nil
	}
	chosen := spreadOverZones(sample, peerDials)
	outcomes := inParallel(chosen, func(peer Peer) outcome {
		start := time.Now()
		err := healthz(ctx, peer)
		return outcome{err: err, took: time.Since(start)}
	})
	var failures []error
	results := make([]PeerResult, len(chosen))
	for i, o := range outcomes {
		results[i] = PeerResult{chosen[i], o.took, o.err}
		if o.err != nil {
			failures = append(failures, o.err)
		}
	}
	if p.Found != nil {
		p.Found(results)
	}
	if len(failures) == len(chosen) && len(chosen) >= fewPeers {
		return Report{}, fail("check the CNI on this node (tunnels, routes), network policies and firewalls between nodes",
			"none of %d agents on other nodes answers: %w", len(chosen), join(failures, "; "))
	}
	report := Report{Detail: fmt.Sprintf("%d of %d agents on other nodes answer", len(chosen)-len(failures), len(chosen))}
	for _, failure := range failures {
		report.Warnings = append(report.Warnings, failure.Error())
	}
	slices.Sort(report.Warnings)
	return report, nil
}

// healthz requests /healthz of a peer over a connection of its own.
func healthz(ctx context.Context, peer Peer) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", peer.Address)
	if err != nil {
		return fmt.Errorf("%s: %w", peer, short(err))
	}
	defer func() { _ = conn.Close() }()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+peer.Address+"/healthz", nil)
	if err != nil {
		return fmt.Errorf("%s: %w", peer, err)
	}
	response, err := transportOver(conn).RoundTrip(request)
	if err != nil {
		return fmt.Errorf("%s connects, but /healthz does not answer: %w", peer, short(err))
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s connects, but /healthz answers %s", peer, response.Status)
	}
	return nil
}

// SamplePeers returns up to n random ready endpoints of these slices on other nodes than node, spread over the zones.
func SamplePeers(found []EndpointSlice, node string, n int) []Peer {
	var peers []Peer
	for _, slice := range found {
		port, _, ok := tcpPort(slice.Ports)
		if !ok {
			continue
		}
		for _, e := range slice.Endpoints {
			isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
			if isReady && e.NodeName != node && len(e.Addresses) > 0 {
				peers = append(peers, Peer{net.JoinHostPort(e.Addresses[0], port), e.NodeName, e.Zone})
			}
		}
	}
	return spreadOverZones(peers, n)
}

// spreadOverZones returns up to n random peers, as many of each zone as of the others where there are enough.
func spreadOverZones(peers []Peer, n int) []Peer {
	peers = slices.Clone(peers)
	rand.Shuffle(len(peers), func(i, j int) { peers[i], peers[j] = peers[j], peers[i] })
	seen := make(map[string]int)
	turn := make(map[Peer]int, len(peers)) // of each peer in its zone
	for _, peer := range peers {
		turn[peer] = seen[peer.Zone]
		seen[peer.Zone]++
	}
	slices.SortStableFunc(peers, func(a, b Peer) int { return turn[a] - turn[b] })
	return slices.Clone(peers[:min(n, len(peers))]) // and not the rest of thousands
}
