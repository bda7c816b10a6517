package agent

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/hack/apitest"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/metrics"
)

const getPeers = "GET /apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkube-node-ready-peers&resourceVersion=0"

// peers are the agents of other nodes, behind one switch. They listen outside the simulation, whose clock stands still while its agent
// connects to them.
type peers struct {
	down atomic.Bool
	list discoveryv1.EndpointSliceList
}

// newPeers starts n agents, one in each of the zones a and b in turn.
func newPeers(t *testing.T, n int) *peers {
	p := new(peers)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if p.down.Load() {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(server.Close)
	address := server.Listener.Addr().(*net.TCPAddr)
	p.list.TypeMeta = metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}
	slice := discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(address.Port))}}}
	for i := range n {
		node, zone := "other"+strconv.Itoa(i), []string{"a", "b"}[i%2]
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address.IP.String()}, NodeName: &node, Zone: &zone})
	}
	p.list.Items = []discoveryv1.EndpointSlice{slice}
	return p
}

// setUnready has the EndpointSlices say so as those of a Service with publishNotReadyAddresses do.
func (p *peers) setUnready() {
	for i := range p.list.Items[0].Endpoints {
		p.list.Items[0].Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(false)}
	}
}

// listed makes the API server list peers, which the test may change. nil: it refuses to.
func listed(api *fakeAPI, p *peers) *atomic.Pointer[peers] {
	list := new(atomic.Pointer[peers])
	list.Store(p)
	api.node.Labels["topology.kubernetes.io/zone"] = "a"
	api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if request != getPeers {
			return false
		}
		if p := list.Load(); p != nil {
			apitest.Answer(w, http.StatusOK, p.list)
			return true
		}
		return answerStatus(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "not now")
	})
	return list
}

const enablePeers = "--enable-connectivity-matrix"

// No peer answers: the rounds fail, with a reason of their own.
func TestPeers(t *testing.T) {
	p := newPeers(t, 70)
	simulated(t, func(t *testing.T, api *fakeAPI) {
		listed(api, p)
		r := startRechecks(t, api, enablePeers)
		r.round(nil, nil, nil)
		assert.Equal(t, []string{"True Verified"}, api.written())
		assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="reached",zone="a"} 4`+"\n")
		assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="failed",zone="b"} 0`+"\n")
		assert.Contains(t, r.metrics(), `node_check_peer_duration_seconds{node="node1",own_zone="a",zone="b"} `)
		before := strings.Count(r.metrics(), "\n")

		p.down.Store(true)
		r.round(nil, nil, nil)
		assert.Equal(t, []string{"True Verified", "False PeersFailed"}, api.written())
		assert.Contains(t, api.conditions[1].Message, "rechecks fail: peers: none of 8 agents on other nodes answers: ")
		assert.Contains(t, api.conditions[1].Message, " on node other")
		assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="failed",zone="b"} 4`+"\n")
		assert.Contains(t, r.metrics(), `node_check_failures_total{check="peers",node="node1"} 3`+"\n")

		p.down.Store(false)
		r.round(nil, nil, nil)
		assert.Equal(t, "True Verified", api.written()[2])
		assert.LessOrEqual(t, strings.Count(r.metrics(), "\n"), before+2, "no series but those of the check's own counters")
		assert.Equal(t, 2, api.count(getPeers), "at first, and once in the outage")
	})
}

// Each round connects to 8 of the sample: one of them that is dead is a warning once an hour, not whenever a round meets it.
func TestDeadPeerIsNamedOnce(t *testing.T) {
	p := newPeers(t, 20)
	p.list.Items[0].Endpoints[7].Addresses = []string{"127.0.0.2"} // nothing listens there
	simulated(t, func(t *testing.T, api *fakeAPI) {
		listed(api, p)
		r := startRechecks(t, api, enablePeers)
		met := 0
		for began := time.Now(); met <= 3 && time.Since(began) < 50*time.Minute; r.round(nil) {
			if strings.Contains(r.metrics(), `result="failed",zone="b"} 1`+"\n") {
				met++
			}
		}
		assert.Greater(t, met, 3)
		log := r.stderr.String()
		assert.Equal(t, 1, strings.Count(log, "on node other7"), log)
		assert.Equal(t, 1, strings.Count(log, "check passed with a warning"), log)
	})
}

// The sample is drawn hourly; sooner where it is small, or where few peers in it answer. A list that fails leaves the last one.
func TestPeerSample(t *testing.T) {
	many, starting, unready, few := newPeers(t, 100), newPeers(t, 500), newPeers(t, 500), newPeers(t, 5)
	for i := range starting.list.Items[0].Endpoints {
		starting.list.Items[0].Endpoints[i].Conditions.Ready = new(i < 20)
	}
	unready.setUnready()
	simulated(t, func(t *testing.T, api *fakeAPI) {
		list := listed(api, many)
		cfg, e := simulatedSettings(t, api, map[string]string{"RECHECK_INTERVAL": "1m"}, enablePeers)
		a := New(cfg, e, metrics.New("node1", checks.Names(), "dev", ""), newLog(cfg, newOutput()), "dev")
		zone := func() string { return "a" }
		isDue := func(s *peerSample, soonest, latest time.Duration, because ...any) {
			t.Helper()
			assert.GreaterOrEqual(t, time.Until(s.due), soonest, because...)
			assert.LessOrEqual(t, time.Until(s.due), latest, because...)
		}
		draw := func(p *peers, want int) *peerSample {
			list.Store(p)
			s := &peerSample{common: a.common}
			peers, err := s.sample(t.Context())
			require.NoError(t, err)
			assert.Len(t, peers, want)
			return s
		}

		s := draw(many, sampleSize)
		isDue(s, 48*time.Minute, 72*time.Minute)
		redraw := s.check(checklist.Options{}, zone).Redraw
		require.NotNil(t, redraw, "the pods may have been replaced at once")
		before := s.peers
		peers, err := redraw(t.Context())
		require.NoError(t, err)
		assert.NotEqual(t, before, peers)
		assert.Nil(t, s.check(checklist.Options{}, zone).Redraw, "not again in the next round")
		assert.GreaterOrEqual(t, time.Until(s.redrawAt), 4*time.Minute)
		assert.LessOrEqual(t, time.Until(s.redrawAt), 6*time.Minute)
		isDue(s, 48*time.Minute, 72*time.Minute)
		time.Sleep(6*time.Minute + time.Second)
		assert.NotNil(t, s.check(checklist.Options{}, zone).Redraw, "again after some minutes")

		list.Store(nil)
		time.Sleep(time.Until(s.due))
		assert.Nil(t, s.check(checklist.Options{}, zone).Redraw, "it is due in any case")
		peers, err = s.sample(t.Context())
		require.NoError(t, err)
		assert.Len(t, peers, sampleSize)
		isDue(s, 0, 6*time.Minute)
		_, err = (&peerSample{common: a.common}).sample(t.Context())
		require.ErrorContains(t, err, "not now")

		isDue(draw(starting, 20), 4*time.Minute, 6*time.Minute, "the others are starting")
		isDue(draw(unready, sampleSize), 4*time.Minute, 6*time.Minute, "the same with publishNotReadyAddresses")

		s = draw(few, 5)
		for _, minutes := range []time.Duration{1, 2, 4, 5, 5} { // a small cluster
			isDue(s, minutes*time.Minute*8/10, minutes*time.Minute*12/10)
			time.Sleep(time.Until(s.due))
			_, err = s.sample(t.Context())
			require.NoError(t, err)
		}
	})
}

// A single dead peer is a warning, also on a node whose agent starts behind a reason of the controller's, which may hide that peers
// did not answer. Three are a failure there, although none of them is ready.
func TestDeadPeersBehindTheControllersReason(t *testing.T) {
	for _, test := range []struct {
		reason string
		peers  int
		want   string
	}{
		{"NetworkFailed", 1, "True Verified"}, {"Silent", 1, "True Verified"}, {"SandboxFailed", 2, "True Verified"},
		{"Silent", 3, "False PeersFailed"}, {"PeersFailed", 1, "False PeersFailed"},
	} {
		t.Run(fmt.Sprint(test.peers, " peers, ", test.reason), func(t *testing.T) {
			p := newPeers(t, test.peers)
			p.setUnready()
			p.down.Store(true)
			simulated(t, func(t *testing.T, api *fakeAPI) {
				listed(api, p)
				api.edit(setFalse(test.reason))
				r := startRechecks(t, api, enablePeers)
				r.round(nil, nil, nil)
				assert.Equal(t, []string{test.want}, api.written())
				r.end()
			})
		})
	}
}

// A rolling update replaces every agent of the sample: a new sample is drawn before a round fails. It is drawn once, and no more when
// the new peers do not answer either.
func TestPeersAreReplaced(t *testing.T) {
	old, update := newPeers(t, 70), newPeers(t, 70)
	simulated(t, func(t *testing.T, api *fakeAPI) {
		list := listed(api, old)
		r := startRechecks(t, api, enablePeers, "--recheck-interval=10s")
		r.round(nil, nil, nil)
		list.Store(update)
		old.down.Store(true)
		r.round(nil, nil, nil, nil)
		assert.Equal(t, []string{"True Verified"}, api.written())
		assert.NotContains(t, r.metrics(), `node_check_failures_total{check="peers"`, "no round has failed")
		assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="reached",zone="b"} 4`+"\n")
		assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="failed",zone="b"} 0`+"\n")
		assert.Equal(t, 2, api.count(getPeers))

		update.down.Store(true)
		r.round(nil, nil, nil, nil)
		assert.Equal(t, []string{"True Verified", "False PeersFailed"}, api.written())
		assert.Equal(t, 2, api.count(getPeers), "an outage")
		after(12 * time.Minute)
		assert.InDelta(t, 4.5, api.count(getPeers), 0.5, "once in five minutes while it goes on")
	})
}
