package checks

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// agentAt is an agent on another node that answers /healthz with a status.
func agentAt(t *testing.T, status int, node, zone string) Peer {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/healthz", r.URL.Path)
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	return Peer{Address: server.Listener.Addr().String(), Node: node, Zone: zone}
}

// deadAgent is one whose port refuses connections.
func deadAgent(t *testing.T, node, zone string) Peer {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return Peer{Address: listener.Addr().String(), Node: node, Zone: zone}
}

func peersOf(sample ...Peer) Peers {
	return Peers{Sample: func(context.Context) ([]Peer, error) { return sample, nil }}
}

func TestPeers(t *testing.T) {
	good, bad := agentAt(t, http.StatusOK, "good", "a"), agentAt(t, http.StatusNotFound, "bad", "a")
	dead := []Peer{deadAgent(t, "dead1", "a"), deadAgent(t, "dead2", "b"), deadAgent(t, "dead3", "")}
	refused := func(p Peer) string { return "TCP " + p.Address + " on node " + p.Node + ": connection refused" }
	for name, test := range map[string]struct {
		sample   []Peer
		detail   string
		skipped  string
		warnings int
		failure  string
	}{
		"all answer":                       {sample: []Peer{good}, detail: "1 of 1 agents on other nodes answer"},
		"one of four":                      {sample: append(dead, good), detail: "1 of 4 agents on other nodes answer", warnings: 3},
		"another answer":                   {sample: []Peer{good, bad}, detail: "1 of 2 agents on other nodes answer", warnings: 1},
		"none of three":                    {sample: dead, failure: "none of 3 agents on other nodes answers: "},
		"none of two, which proves little": {sample: dead[:2], detail: "0 of 2 agents on other nodes answer", warnings: 2},
		"one node":                         {skipped: "there is no agent on another node"},
	} {
		t.Run(name, func(t *testing.T) {
			check := peersOf(test.sample...)
			var results []PeerResult
			check.Found = func(found []PeerResult) { results = found }
			report, err := check.Try(t.Context())
			assert.Equal(t, test.detail, report.Detail)
			assert.Equal(t, test.skipped, report.Skipped)
			assert.Len(t, report.Warnings, test.warnings)
			assert.Len(t, results, len(test.sample))
			for _, result := range results {
				assert.Equal(t, result.Peer == good, result.Err == nil)
				assert.Positive(t, result.Took)
			}
			if test.failure == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.failure)
			for _, peer := range dead {
				assert.Contains(t, err.Error(), refused(peer))
			}
			assert.Equal(t, "check the CNI on this node (tunnels, routes), network policies and firewalls between nodes", Remedy(err))
		})
	}
	report, err := peersOf(good, bad, dead[0]).Try(t.Context())
	require.NoError(t, err)
	text := strings.Join(report.Warnings, "\n")
	assert.Contains(t, text, refused(dead[0]))
	assert.Contains(t, text, "TCP "+bad.Address+" on node bad connects, but /healthz answers 404 Not Found")
}

// Agents of dead nodes, and those that have never started, prove nothing about this node when they do not answer, however many they
// are. While it fails already they count.
func TestPeersThatAreNotReady(t *testing.T) {
	unready := func(n int) (list []Peer) {
		for i := range n {
			peer := deadAgent(t, "unready"+strconv.Itoa(i), "a")
			peer.Unready = true
			list = append(list, peer)
		}
		return list
	}
	ready := []Peer{deadAgent(t, "ready1", "a"), deadAgent(t, "ready2", "a"), deadAgent(t, "ready3", "a")}
	for name, test := range map[string]struct {
		sample  []Peer
		must    bool
		few     bool
		failure string
	}{
		"none is":                  {sample: unready(5)},
		"none is, few may warn":    {sample: unready(3), must: true, few: true, failure: "none of 3 agents on other nodes answers: "},
		"two, and few may warn":    {sample: append(unready(1), ready[0]), must: true, few: true},
		"two are":                  {sample: append(unready(3), ready[:2]...)},
		"three are":                {sample: append(unready(3), ready...), failure: "none of 6 agents on other nodes answers: "},
		"none is, one must answer": {sample: unready(3), must: true, failure: "none of 3 agents on other nodes answers: "},
		"few are, one must answer": {sample: append(unready(1), ready[0]), must: true, failure: "none of 2 agents on other nodes answers: "},
		"one is, which must":       {sample: ready[:1], must: true, failure: "none of 1 agents on other nodes answers: "},
	} {
		t.Run(name, func(t *testing.T) {
			check := peersOf(test.sample...)
			check.MustAnswer, check.FewMayWarn = test.must, test.few
			report, err := check.Try(t.Context())
			if test.failure != "" {
				require.ErrorContains(t, err, test.failure)
				return
			}
			require.NoError(t, err)
			assert.Len(t, report.Warnings, len(test.sample))
		})
	}
	answering := agentAt(t, http.StatusOK, "unready", "a")
	answering.Unready = true
	for _, must := range []bool{false, true} {
		check := peersOf(append(ready, answering)...)
		check.MustAnswer = must
		_, err := check.Try(t.Context())
		require.NoError(t, err, "one that answers proves that pods of other nodes can be reached")
	}
}

// An agent that accepts and does not answer costs the attempt its time and no more.
func TestPeerThatIsSilent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	report, err := peersOf(Peer{Address: listener.Addr().String(), Node: "silent"}).Try(ctx)
	require.NoError(t, err)
	assert.Equal(t, []string{"TCP " + listener.Addr().String() + " on node silent connects, but /healthz does not answer: timeout"}, report.Warnings)
}

func TestPeersThatCannotBeListed(t *testing.T) {
	check := Peers{Sample: func(context.Context) ([]Peer, error) { return nil, errors.New("no right") }}
	report, err := check.Try(t.Context())
	require.NoError(t, err, "the api check and the rights are others'")
	assert.Equal(t, "the agents on other nodes cannot be listed: no right", report.Skipped)
	check.MustAnswer = true
	_, err = check.Try(t.Context())
	require.EqualError(t, err, "the agents on other nodes cannot be listed: no right", "nobody has answered")
	check = peersOf()
	check.MustAnswer = true
	report, err = check.Try(t.Context())
	require.NoError(t, err, "the last other node is gone")
	assert.Equal(t, "there is no agent on another node", report.Skipped)
}

// A new sample is drawn if fewer than half answer, within the time of the attempt: the peers of the old one may be silent.
func TestPeersAreDrawnAgain(t *testing.T) {
	good := agentAt(t, http.StatusOK, "good", "a")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	silent := Peer{Address: listener.Addr().String(), Node: "silent", Zone: "a"}
	dead := deadAgent(t, "dead", "a")
	three := []Peer{good, agentAt(t, http.StatusOK, "good2", "b"), agentAt(t, http.StatusOK, "good3", "b")}
	for name, test := range map[string]struct {
		sample, again []Peer
		err           error
		drawn         bool
		detail        string
		skipped       string
		failure       string
	}{
		"half answer":           {sample: []Peer{good, silent}, detail: "1 of 2 agents on other nodes answer"},
		"few answer":            {sample: []Peer{good, silent, silent}, again: []Peer{good}, drawn: true, detail: "1 of 1 agents on other nodes answer"},
		"fewer of the new ones": {sample: append(three, silent, silent, silent, silent), again: []Peer{dead, dead, dead, good}, drawn: true, detail: "3 of 7 agents on other nodes answer"},
		"none of the new ones":  {sample: append(three, silent, silent, silent, silent), again: []Peer{dead, dead, dead}, drawn: true, detail: "3 of 7 agents on other nodes answer"},
		"the new ones neither":  {sample: []Peer{silent, silent, silent}, again: []Peer{silent, silent, silent, silent}, drawn: true, failure: "none of 4 agents"},
		"there are none":        {sample: []Peer{silent, silent, silent}, drawn: true, skipped: "there is no agent on another node"},
		"cannot be listed":      {sample: []Peer{silent, silent, silent}, drawn: true, err: errors.New("no"), failure: "none of 3 agents"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			check, drawn, found := peersOf(test.sample...), false, -1
			check.Redraw = func(ctx context.Context) ([]Peer, error) {
				drawn = true
				require.NoError(t, ctx.Err(), "there is time left")
				return test.again, test.err
			}
			check.Found = func(results []PeerResult) {
				require.Equal(t, -1, found, "once for each attempt")
				found = len(results)
			}
			report, err := check.Try(ctx)
			assert.Equal(t, test.drawn, drawn)
			assert.Equal(t, test.detail, report.Detail)
			assert.Equal(t, test.skipped, report.Skipped)
			if test.failure == "" {
				require.NoError(t, err)
				require.NoError(t, ctx.Err())
			} else {
				require.ErrorContains(t, err, test.failure)
			}
			assert.Equal(t, test.skipped != "", found == 0)
		})
	}
}

// fleet is n ready agents of each zone, in slices of 100 as Kubernetes makes them.
func fleet(n int, zones ...string) (found []EndpointSlice) {
	var all []Endpoint
	for _, zone := range zones {
		for i := range n {
			all = append(all, Endpoint{Addresses: []string{"10.0.0." + strconv.Itoa(i)}, NodeName: zone + strconv.Itoa(i), Zone: zone})
		}
	}
	for len(all) > 0 {
		k := min(100, len(all))
		found = append(found, EndpointSlice{Ports: []EndpointPort{{Port: new(int32(8080))}}, Endpoints: all[:k]})
		all = all[k:]
	}
	return found
}

func TestSamplePeers(t *testing.T) {
	samplePeers := func(found []EndpointSlice, node string, n int) []Peer {
		sample := PeerSample{Node: node, Size: n}
		for _, slice := range found {
			sample.Add(slice)
		}
		return sample.Drawn()
	}
	count := func(peers []Peer) map[string]int {
		zones := make(map[string]int)
		for _, peer := range peers {
			zones[peer.Zone]++
		}
		return zones
	}
	big := fleet(1000, "a", "b", "c", "d")
	sample := samplePeers(big, "a1", 64)
	assert.Equal(t, map[string]int{"a": 16, "b": 16, "c": 16, "d": 16}, count(sample))
	assert.NotEqual(t, sample, samplePeers(big, "a1", 64), "random")
	var dialled []PeerResult
	check := peersOf(sample...)
	check.Found = func(results []PeerResult) { dialled = results }
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = check.Try(gone)
	zones := make(map[string]int)
	for _, result := range dialled {
		zones[result.Zone]++
	}
	assert.Equal(t, map[string]int{"a": 2, "b": 2, "c": 2, "d": 2}, zones)
	assert.Equal(t, map[string]int{"a": 1, "b": 3}, count(samplePeers(append(fleet(1, "a"), fleet(9, "b")...), "", 4)), "a small zone")

	few := fleet(3, "a")
	few[0].Endpoints[1].Conditions.Ready = new(false)
	assert.Equal(t, []Peer{{Address: "10.0.0.2:8080", Node: "a2", Zone: "a"}}, samplePeers(few, "a0", 64), "not the own node, and not one that is not ready")
	few = fleet(5, "a")
	few[0].Endpoints[1].Conditions.Serving = new(false)
	few[0].Endpoints[2].Conditions.Terminating = new(true)
	few[0].Endpoints[3].Conditions.Serving, few[0].Endpoints[3].Conditions.Terminating = new(true), new(false)
	for _, peer := range samplePeers(few, "a0", 64) {
		assert.Equal(t, peer.Node == "a1" || peer.Node == "a2", peer.Unready, peer.Node)
	}
	assert.Len(t, samplePeers(few, "a0", 64), 4, "the agents of all nodes may fail at once")
	few[0].Ports = nil
	assert.Empty(t, samplePeers(few, "a0", 64))
}

// Every peer of a zone is drawn as often as any other, and is as often the first one, wherever the API server lists it.
func TestSampleIsUniform(t *testing.T) {
	for _, size := range []int{4, 64} { // smaller and larger than the zone
		drawn, first := make(map[string]int), make(map[string]int)
		for range 1000 {
			sample := PeerSample{Size: size}
			sample.Add(fleet(20, "a")[0])
			peers := sample.Drawn()
			assert.Len(t, peers, min(size, 20))
			for _, peer := range peers {
				drawn[peer.Node]++
			}
			first[peers[0].Node]++
		}
		for i := range 20 {
			node := "a" + strconv.Itoa(i)
			assert.InDelta(t, 1000*min(size, 20)/20, drawn[node], 100, "how often %s is drawn, of size %d", node, size)
			assert.InDelta(t, 1000/20, first[node], 45, "how often %s is the first one, of size %d", node, size)
		}
	}
}

// An agent lists the peers of 5,000 nodes hourly. Its memory must not grow with them.
func TestSampleOfALargeFleetIsSmall(t *testing.T) {
	inUse := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	sample := PeerSample{Size: 64}
	before := inUse()
	for range 40 {
		for _, slice := range fleet(1000, "a", "b", "c", "d") {
			sample.Add(slice)
		}
	}
	assert.Less(t, int64(inUse()-before), int64(1<<20), "bytes, after 160,000 peers")
	assert.Equal(t, 160_000, sample.Seen)
	assert.Len(t, sample.Drawn(), 64)
}
