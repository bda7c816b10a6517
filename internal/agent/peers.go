package agent

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
	"github.com/imunhatep/kube-node-ready/metrics"
)

const (
	// sampleSize is how many agents a recheck knows of. It connects to some of them in each round.
	sampleSize = 64
	// sampleInterval is the time between two samples: the EndpointSlices of 5,000 agents are 1.5 MB.
	sampleInterval = time.Hour
	// resampleAfter is that time for a sample that few agents are in, because they are starting, and between two that are drawn
	// because few of them answer.
	resampleAfter = 5 * time.Minute
)

// peerSample is what rechecks know of the agents on other nodes.
type peerSample struct {
	*common
	peers    []checks.Peer
	err      error     // of the last list
	due      time.Time // of the next list; zero before the first
	doubled  int       // how often the minute until the next list of a few agents, or after an error, was doubled
	redrawAt time.Time // from when on the sample may be drawn before that
}

// check returns the check of one round on a node of a zone. It draws a new sample if few of the old one answer, but of many
// not twice within some minutes: when the network of 5,000 nodes is down, each of them would list all agents in each round.
func (s *peerSample) check(options checklist.Options, zone func() string) checks.Peers {
	found := func(results []checks.PeerResult) { s.metrics.Peers(cmp.Or(zone(), "unknown"), byZone(results)) }
	check := checks.Peers{Sample: s.sample, Found: found, MustAnswer: options.PeersMustAnswer, FewMayWarn: options.FewPeersMayWarn}
	if now := time.Now(); now.Before(s.due) && now.After(s.redrawAt) {
		check.Redraw = func(ctx context.Context) ([]checks.Peer, error) {
			s.redrawAt = time.Now().Add(recheck.Spread(resampleAfter, rand.Float64()))
			s.draw(ctx)
			return s.peers, s.err
		}
	}
	return check
}

// sample returns up to 64 other agents, spread over the zones. It lists them hourly; a list that fails leaves the last one.
func (s *peerSample) sample(ctx context.Context) ([]checks.Peer, error) {
	if !time.Now().Before(s.due) {
		s.draw(ctx)
	}
	if len(s.peers) > 0 {
		return s.peers, nil
	}
	return nil, s.err
}

// draw lists the agents and draws a sample of them.
func (s *peerSample) draw(ctx context.Context) {
	namespace, service, _ := strings.Cut(s.cfg.PeersService, "/")
	drawn := checks.PeerSample{Node: s.cfg.NodeName, Size: sampleSize}
	s.err = kube.EachEndpointSlice(ctx, s.access.Kube, namespace, service, drawn.Add)
	if s.err == nil {
		s.peers = drawn.Drawn()
		if drawn.Seen <= sampleSize { // those that are left may be the ones that were replaced since
			s.redrawAt = time.Time{}
		}
	}
	ready := slices.DeleteFunc(slices.Clone(s.peers), func(peer checks.Peer) bool { return peer.Unready })
	pause := sampleInterval
	switch {
	case s.err != nil || drawn.Seen <= sampleSize: // the list of a few is small
		pause = min(time.Minute<<s.doubled, resampleAfter)
		s.doubled = min(s.doubled+1, 3)
	case len(ready) < sampleSize/2:
		pause = resampleAfter
	default:
		s.doubled = 0
	}
	s.due = time.Now().Add(recheck.Spread(pause, rand.Float64()))
}

// byZone counts the connections of a round.
func byZone(results []checks.PeerResult) map[string]metrics.Zone {
	zones := make(map[string]metrics.Zone)
	for _, result := range results {
		name := cmp.Or(result.Zone, "unknown")
		zone := zones[name]
		if result.Err == nil {
			zone.Reached++
			zone.Took += result.Took
		} else {
			zone.Failed++
		}
		zones[name] = zone
	}
	return zones
}
