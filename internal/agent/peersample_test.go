package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/metrics"
)

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
			s := &peerSample{cfg: a.cfg, metrics: a.metrics, access: a.own.access}
			peers, err := s.sample(t.Context())
			require.NoError(t, err)
			assert.Len(t, peers, want)
			return s
		}

		s := draw(many, sampleSize)
		isDue(s, 48*time.Minute, 72*time.Minute)
		redraw := s.check(false, zone).Redraw
		require.NotNil(t, redraw, "the pods may have been replaced at once")
		before := s.peers
		peers, err := redraw(t.Context())
		require.NoError(t, err)
		assert.NotEqual(t, before, peers)
		assert.Nil(t, s.check(false, zone).Redraw, "not again in the next round")
		assert.GreaterOrEqual(t, time.Until(s.redrawAt), 4*time.Minute)
		assert.LessOrEqual(t, time.Until(s.redrawAt), 6*time.Minute)
		isDue(s, 48*time.Minute, 72*time.Minute)
		time.Sleep(6*time.Minute + time.Second)
		assert.NotNil(t, s.check(false, zone).Redraw, "again after some minutes")

		list.Store(nil)
		time.Sleep(time.Until(s.due))
		assert.Nil(t, s.check(false, zone).Redraw, "it is due in any case")
		peers, err = s.sample(t.Context())
		require.NoError(t, err)
		assert.Len(t, peers, sampleSize)
		isDue(s, 0, 6*time.Minute)
		_, err = (&peerSample{cfg: a.cfg, metrics: a.metrics, access: a.own.access}).sample(t.Context())
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
