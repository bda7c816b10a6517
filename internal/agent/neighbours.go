package agent

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/metrics"
)

const (
	// sampleSize is how many agents a recheck knows of. It connects to some of them in each round.
	sampleSize = 64
	// sampleInterval is the time between two samples: the EndpointSlices of 5,000 agents are 1.5 MB.
	sampleInterval = time.Hour
	// resampleAfter is that time for a sample that may be out of date, or incomplete because the agents are starting.
	resampleAfter = 5 * time.Minute
	// smallInterval is that time where all agents fit into a sample: their list is small.
	smallInterval = time.Minute
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
	r       *recheck
	peers   []checks.Peer
	due     time.Time // the next sample; zero before the first
	suspect time.Time // the next one if few of them answer
}

// sample returns up to 64 other agents, spread over the zones. It lists them hourly; a list that fails leaves the last one.
func (n *neighbours) sample(ctx context.Context) ([]checks.Peer, error) {
	now := time.Now()
	if now.Before(n.due) {
		return n.peers, nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.r.cfg.CheckTimeout/2) // the rest is for the connections
	defer cancel()
	namespace, service, _ := strings.Cut(n.r.cfg.PeersService, "/")
	drawn := checks.PeerSample{Node: n.r.cfg.NodeName, Size: sampleSize}
	err := kube.EachEndpointSlice(ctx, n.r.client, namespace, service, drawn.Add)
	if err != nil {
		n.due = now.Add(spread(resampleAfter))
		if n.peers == nil {
			n.due = time.Time{}
			return nil, err
		}
		return n.peers, nil
	}
	n.peers = drawn.Peers()
	n.suspect = now.Add(spread(resampleAfter))
	n.due = now.Add(spread(sampleInterval))
	switch {
	case drawn.Seen <= sampleSize:
		n.due = now.Add(spread(smallInterval))
	case len(n.peers) < sampleSize/2:
		n.due = n.suspect
	}
	return n.peers, nil
}

// found records the connections of a round by zone. If most of them fail, the sample may be out of date: a rolling update
// replaces the pods and their addresses.
func (n *neighbours) found(results []checks.PeerResult) {
	zones := make(map[string]metrics.Zone)
	reached := 0
	for _, result := range results {
		name := cmp.Or(result.Zone, "unknown")
		zone := zones[name]
		if result.Err == nil {
			reached++
			zone.Reached++
			zone.Took += result.Took
		} else {
			zone.Failed++
		}
		zones[name] = zone
	}
	if 2*reached < len(results) && n.suspect.Before(n.due) {
		n.due = n.suspect
	}
	n.r.metrics.Peers(cmp.Or(n.r.node.Labels["topology.kubernetes.io/zone"], "unknown"), zones)
}
