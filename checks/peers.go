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
	Unready bool   // when it was listed: its node may have failed, or its pod has never started
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
	// Redraw returns a new sample, for an attempt that has reached fewer than half of its peers: a rolling update replaces the
	// pods and their addresses. nil: there is none.
	Redraw func(ctx context.Context) ([]Peer, error)
	// MustAnswer is for a node whose peers did not answer already: only one that answers is a pass, unless there is none. When the
	// network of all nodes is down, soon no agent is ready, and each node would recover and fail in turn.
	MustAnswer bool
	// FewMayWarn limits MustAnswer to three peers or more, for a node that may have failed for another reason than its peers.
	FewMayWarn bool
	// Found receives the results of an attempt, none if it is skipped; nil: nobody does.
	Found func([]PeerResult)
}

// Name implements Check.
func (Peers) Name() string { return PeersName }

// Try implements Check. It fails if no peer answers, and at least three of them should: those that were ready when they were
// listed; but see MustAnswer. Warnings name those that do not. Peers that cannot be listed are no fault of the pod network.
func (p Peers) Try(ctx context.Context) (Report, error) {
	results, err := p.find(ctx)
	if p.Found != nil {
		p.Found(results)
	}
	if err != nil {
		err = fmt.Errorf("the agents on other nodes cannot be listed: %w", err)
	}
	switch {
	case err != nil && p.MustAnswer:
		return Report{}, err
	case err != nil:
		return Report{Skipped: err.Error()}, nil
	case len(results) == 0:
		return Report{Skipped: "there is no agent on another node"}, nil
	}
	failures := failuresOf(results)
	should := slices.DeleteFunc(slices.Clone(results), func(r PeerResult) bool { return r.Unready && !p.MustAnswer })
	isEnough := len(should) >= fewPeers || p.MustAnswer && !p.FewMayWarn
	if len(failures) == len(results) && isEnough {
		return Report{}, fail("check the CNI on this node (tunnels, routes), network policies and firewalls between nodes",
			"none of %d agents on other nodes answers: %w", len(results), join(failures, "; "))
	}
	report := Report{Detail: fmt.Sprintf("%d of %d agents on other nodes answer", len(results)-len(failures), len(results))}
	for _, failure := range failures {
		report.Warnings = append(report.Warnings, failure.Error())
	}
	slices.Sort(report.Warnings)
	return report, nil
}

// find connects to peers of the sample, and of a new one if few of those answer. A new one that cannot be drawn, or of which
// fewer answer, changes nothing.
func (p Peers) find(ctx context.Context) ([]PeerResult, error) {
	if p.Redraw == nil {
		return connect(ctx, p.Sample)
	}
	// At 3s more than the second after which TCP repeats a lost SYN (RFC 6298, 2).
	first, cancel := context.WithTimeout(ctx, share(ctx, 2))
	results, err := connect(first, p.Sample)
	cancel()
	if err == nil && 2*len(failuresOf(results)) > len(results) {
		redrawn, err := connect(ctx, p.Redraw)
		if err == nil && countAnswers(redrawn) >= countAnswers(results) {
			return redrawn, nil
		}
	}
	return results, err
}

// connect connects to some of a sample. The sample takes at most half of the time.
func connect(ctx context.Context, sample func(context.Context) ([]Peer, error)) ([]PeerResult, error) {
	listing, cancel := context.WithTimeout(ctx, share(ctx, 2))
	defer cancel()
	peers, err := sample(listing)
	if err != nil {
		return nil, err
	}
	draw := PeerSample{Size: peerDials}
	for _, peer := range peers {
		draw.add(peer)
	}
	return inParallel(draw.Drawn(), func(peer Peer) PeerResult {
		start := time.Now()
		err := healthz(ctx, peer)
		return PeerResult{peer, time.Since(start), err}
	}), nil
}

func countAnswers(results []PeerResult) int { return len(results) - len(failuresOf(results)) }

func failuresOf(results []PeerResult) (failures []error) {
	for _, result := range results {
		if result.Err != nil {
			failures = append(failures, result.Err)
		}
	}
	return failures
}

// healthz requests /healthz of a peer over a connection of its own.
func healthz(ctx context.Context, peer Peer) error {
	conn, err := dial(ctx, peer.Address)
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
		return fmt.Errorf("%s connects, but /healthz answers %s", peer, statusOf(response))
	}
	return nil
}

// PeerSample is a random sample of agents, as large for each zone. It keeps no more of them while it is drawn from thousands.
type PeerSample struct {
	Node string // none of this one
	Size int
	Seen int // endpoints, ready or not

	kept   map[string][]Peer // by zone
	inZone map[string]int    // how many were seen
}

// Add draws from the endpoints of a slice that are ready, or said to be (publishNotReadyAddresses).
func (s *PeerSample) Add(slice EndpointSlice) {
	s.Seen += len(slice.Endpoints)
	port, _, ok := tcpPort(slice.Ports)
	for _, e := range slice.Endpoints {
		isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
		if ok && isReady && e.NodeName != s.Node && len(e.Addresses) > 0 {
			isServing := (e.Conditions.Serving == nil || *e.Conditions.Serving) &&
				(e.Conditions.Terminating == nil || !*e.Conditions.Terminating)
			s.add(Peer{net.JoinHostPort(e.Addresses[0], port), e.NodeName, e.Zone, !isServing})
		}
	}
}

// add keeps each peer of a zone with the same probability (reservoir sampling).
func (s *PeerSample) add(peer Peer) {
	if s.kept == nil {
		s.kept, s.inZone = make(map[string][]Peer), make(map[string]int)
	}
	s.inZone[peer.Zone]++
	if kept := s.kept[peer.Zone]; len(kept) < s.Size {
		s.kept[peer.Zone] = append(kept, peer)
	} else if i := rand.N(s.inZone[peer.Zone]); i < s.Size {
		kept[i] = peer
	}
}

// Drawn returns the sample.
func (s *PeerSample) Drawn() (peers []Peer) {
	for turn := range s.Size {
		for _, kept := range s.kept {
			if turn == 0 {
				rand.Shuffle(len(kept), func(i, j int) { kept[i], kept[j] = kept[j], kept[i] })
			}
			if turn < len(kept) && len(peers) < s.Size {
				peers = append(peers, kept[turn])
			}
		}
	}
	return peers
}
