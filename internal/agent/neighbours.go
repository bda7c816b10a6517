package agent

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
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

// CheckNames returns the names of the checks that cfg asks for.
func CheckNames(cfg config.Config) []string {
	names := checks.Names()
	if cfg.EnableConnectivityMatrix {
		names = append(names, checks.PeersName)
	}
	return names
}

// neighbours is what a recheck knows of the agents on other nodes.
type neighbours struct {
	r        *recheck
	peers    []checks.Peer
	err      error     // of the last list
	due      time.Time // of the next list; zero before the first
	doubled  int       // how often the minute until the next list of a few agents, or after an error, was doubled
	redrawAt time.Time // from when on the sample may be drawn before that
}

// check returns the check of one round. It draws a new sample if few of the old one answer, but not twice within some minutes:
// when the network of 5,000 nodes is down, each of them would list all agents in each round.
func (n *neighbours) check() checks.Peers {
	check := checks.Peers{Sample: n.sample, Found: n.found}
	check.MustAnswer = strings.Contains(n.r.reasons, verdict.PeersFailed) && (n.r.failed > 0 || n.r.status != statusTrue)
	if now := time.Now(); now.Before(n.due) && now.After(n.redrawAt) {
		check.Redraw = func(ctx context.Context) ([]checks.Peer, error) {
			n.redrawAt = time.Now().Add(spread(resampleAfter))
			n.draw(ctx)
			return n.peers, n.err
		}
	}
	return check
}

// sample returns up to 64 other agents, spread over the zones. It lists them hourly; a list that fails leaves the last one.
func (n *neighbours) sample(ctx context.Context) ([]checks.Peer, error) {
	if !time.Now().Before(n.due) {
		n.draw(ctx)
	}
	if len(n.peers) > 0 {
		return n.peers, nil
	}
	return nil, n.err
}

// draw lists the agents and draws a sample of them.
func (n *neighbours) draw(ctx context.Context) {
	namespace, service, _ := strings.Cut(n.r.cfg.PeersService, "/")
	drawn := checks.PeerSample{Node: n.r.cfg.NodeName, Size: sampleSize}
	n.err = kube.EachEndpointSlice(ctx, n.r.client, namespace, service, drawn.Add)
	if n.err == nil {
		n.peers = drawn.Peers()
	}
	ready := slices.DeleteFunc(slices.Clone(n.peers), func(peer checks.Peer) bool { return peer.Unready })
	pause := sampleInterval
	switch {
	case n.err != nil || drawn.Seen <= sampleSize: // the list of a few is small
		pause = min(time.Minute<<n.doubled, resampleAfter)
		n.doubled = min(n.doubled+1, 3)
	case len(ready) < sampleSize/2:
		pause = resampleAfter
	default:
		n.doubled = 0
	}
	n.due = time.Now().Add(spread(pause))
}

// found records the connections of a round by zone.
func (n *neighbours) found(results []checks.PeerResult) {
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
	n.r.metrics.Peers(cmp.Or(n.r.node.Labels["topology.kubernetes.io/zone"], "unknown"), zones)
}
