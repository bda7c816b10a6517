package agent

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const getPeers = "GET /apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkube-node-ready-peers&resourceVersion=0"

// others are the agents of other nodes, behind one switch.
type others struct {
	api  *fakeAPI
	down atomic.Bool
	list discoveryv1.EndpointSliceList
}

// newOthers adds n agents to the cluster, one in each of the zones a and b in turn.
func newOthers(t *testing.T, api *fakeAPI, n int) *others {
	o := &others{api: api}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if o.down.Load() {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(server.Close)
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	number, err := strconv.ParseInt(port, 10, 32)
	require.NoError(t, err)
	o.list.TypeMeta = metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}
	slice := discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(number))}}}
	for i := range n {
		node, zone := "other"+strconv.Itoa(i), []string{"a", "b"}[i%2]
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{host}, NodeName: &node, Zone: &zone})
	}
	o.list.Items = []discoveryv1.EndpointSlice{slice}
	api.node.Labels["topology.kubernetes.io/zone"] = "a"
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if request == getPeers {
			answer(w, http.StatusOK, o.list)
		}
		return request == getPeers
	}
	return o
}

// setUnready says that no agent is ready, as a Service with publishNotReadyAddresses does.
func (o *others) setUnready() {
	for i := range o.list.Items[0].Endpoints {
		o.list.Items[0].Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(false)}
	}
}

func (o *others) listed() (n int) {
	for _, request := range o.api.seen() {
		if request == getPeers {
			n++
		}
	}
	return n
}

func startNeighbours(t *testing.T, api *fakeAPI) *rounds {
	r := prepareRechecks(t, api)
	r.agent.cfg.EnableConnectivityMatrix = true
	api.edit(setReleased)
	r.start()
	return r
}

// Nobody on another node answers: the rounds fail, with a reason of their own.
func TestNeighbours(t *testing.T) {
	api := newFakeAPI(t)
	o := newOthers(t, api, 10)
	r := startNeighbours(t, api)
	r.round(nil, nil, nil)
	assert.Equal(t, []string{"True Verified"}, api.written())
	assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="reached",zone="a"} 4`+"\n")
	assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="failed",zone="b"} 0`+"\n")
	assert.Contains(t, r.metrics(), `node_check_peer_duration_seconds{node="node1",own_zone="a",zone="b"} `)
	before := strings.Count(r.metrics(), "\n")

	o.down.Store(true)
	r.round(nil, nil, nil)
	assert.Equal(t, []string{"True Verified", "False PeersFailed"}, api.written())
	assert.Contains(t, api.conditions[1].Message, "rechecks fail: peers: none of 8 agents on other nodes answers: ")
	assert.Contains(t, api.conditions[1].Message, " on node other")
	assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="failed",zone="b"} 4`+"\n")
	assert.Contains(t, r.metrics(), `node_check_failures_total{check="peers",node="node1"} 3`+"\n")

	o.down.Store(false)
	r.round(nil, nil, nil)
	assert.Equal(t, "True Verified", api.written()[2])
	assert.LessOrEqual(t, strings.Count(r.metrics(), "\n"), before+2, "no series but those of the check's own counters")
	assert.Equal(t, 2, o.listed(), "at first, and once in the outage")
}

// Two agents that do not answer prove little: a warning names them.
func TestFewNeighbours(t *testing.T) {
	api := newFakeAPI(t)
	o := newOthers(t, api, 2)
	o.down.Store(true)
	r := startNeighbours(t, api)
	r.round(nil, nil, nil, nil)
	assert.Equal(t, []string{"True Verified"}, api.written())
	log, _ := r.log.read()
	assert.Equal(t, 1, strings.Count(log, "check passed with a warning"), log)
	assert.Contains(t, log, "on node other0")
	assert.Contains(t, log, "on node other1")
}

// The agents of dead nodes do not fail the only healthy one.
func TestNeighboursOnDeadNodes(t *testing.T) {
	api := newFakeAPI(t)
	o := newOthers(t, api, 5)
	o.setUnready()
	o.down.Store(true)
	r := startNeighbours(t, api)
	r.round(nil, nil, nil)
	r.round(errBroken, nil, nil, nil, nil)
	r.round(errBroken, errBroken, errBroken)
	r.round(nil, nil, nil)
	assert.Equal(t, []string{"True Verified", "False NetworkFailed", "True Verified"}, api.written(), "whatever else fails until then")
	log, _ := r.log.read()
	assert.Contains(t, log, "on node other0")
}

// All nodes fail, and so no agent is ready: nobody recovers from that, not after a restart either. One that answers is enough.
func TestNeighboursWhenAllFail(t *testing.T) {
	api := newFakeAPI(t)
	o := newOthers(t, api, 5)
	o.setUnready()
	o.down.Store(true)
	setFalse("DNSFailed,PeersFailed")(api.node)
	r := startNeighbours(t, api)
	r.round(nil, nil, nil, nil)
	assert.Equal(t, []string{"False PeersFailed"}, api.written())
	o.down.Store(false)
	r.round(nil, nil, nil)
	assert.Equal(t, []string{"False PeersFailed", "True Verified"}, api.written())
	o.down.Store(true)
	r.round(nil, nil, nil, nil)
	assert.Len(t, api.written(), 2, "to begin with, it takes agents that are ready")
}

// A node that has failed because of its peers stays closed until one answers, after a restart too: it does not do to be unable to list them,
// or that only two are left. Where there is none any more it opens.
func TestNeighboursThatCloseTheNode(t *testing.T) {
	for name, test := range map[string]struct {
		left     int
		unlisted bool
		written  []string
	}{
		"cannot be listed": {left: 10, unlisted: true, written: []string{"False PeersFailed"}},
		"two are left":     {left: 2, written: []string{"False PeersFailed"}},
		"none is left":     {written: []string{"True Verified"}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			o := newOthers(t, api, test.left)
			o.down.Store(true)
			setFalse("PeersFailed")(api.node)
			addFailedTaint(api.node)
			list := api.before
			api.before = func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
				if request == getPeers && test.unlisted {
					return answerStatus(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "not now")
				}
				return list(request, n, w, r)
			}
			r := startNeighbours(t, api)
			r.round(nil, nil, nil, nil)
			assert.Equal(t, test.written, api.written())
			assert.Equal(t, test.left > 0, slices.Contains(api.taints(), "node-ready/failed"))
			assert.LessOrEqual(t, o.listed(), 2, "not in each round")
		})
	}
}

// The pod network of all nodes is down, and so no agent is ready. The agent of a node that the controller has called silent, or that was
// not rechecked, restarts: it opens nothing before somebody answers. An open node does not fail because of that.
func TestNeighboursAfterTheControllersVerdict(t *testing.T) {
	unknown := func(node *corev1.Node) {
		node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionUnknown, Reason: "NotRechecked"}}
	}
	for name, test := range map[string]struct {
		condition func(*corev1.Node)
		closed    bool
		written   []string // while nobody answers
	}{
		"Silent":                {setFalse("Silent"), true, []string{"False PeersFailed"}},
		"NotRechecked":          {unknown, true, []string{"False PeersFailed"}},
		"Silent, not closed":    {setFalse("Silent"), false, []string{"False PeersFailed"}},
		"NotRechecked and open": {unknown, false, []string{"True Verified"}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			o := newOthers(t, api, 10)
			o.setUnready()
			o.down.Store(true)
			test.condition(api.node)
			if test.closed {
				addFailedTaint(api.node)
			}
			r := startNeighbours(t, api)
			r.round(nil, nil, nil, nil)
			assert.Equal(t, test.written, api.written())
			assert.Equal(t, test.closed, slices.Contains(api.taints(), "node-ready/failed"))
			o.down.Store(false)
			r.round(nil, nil, nil)
			assert.Equal(t, untainted, api.taints())
			assert.Contains(t, api.written(), "True Verified")
		})
	}
}

// The same process: of three peers that do not answer, one goes away.
func TestNeighboursThatBecomeFew(t *testing.T) {
	api := newFakeAPI(t)
	o := newOthers(t, api, 3)
	o.down.Store(true)
	few := newOthers(t, newFakeAPI(t), 2)
	few.down.Store(true)
	var list atomic.Pointer[others]
	list.Store(o)
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if request == getPeers {
			answer(w, http.StatusOK, list.Load().list)
		}
		return request == getPeers
	}
	r := startNeighbours(t, api)
	r.round(nil)
	list.Store(few) // for the second sample
	r.round(nil, nil)
	assert.Equal(t, []string{"False PeersFailed"}, api.written())
	api.edit(addFailedTaint)
	r.round(nil, nil, nil, nil)
	assert.Contains(t, api.taints(), "node-ready/failed")
	few.down.Store(false)
	r.round(nil, nil, nil)
	assert.Equal(t, untainted, api.taints())
}

// One has to answer after a round in which peers failed, until this node recovers.
func TestNeighboursMustAnswerFromTheFirstFailure(t *testing.T) {
	a, _ := inCluster(t, newFakeAPI(t))
	r := &recheck{Agent: a, node: &nodepatch.Node{}, status: statusTrue, written: true}
	r.neighbours.r = r
	round := func(failed ...string) bool {
		var results []checks.Result
		for _, check := range failed {
			results = append(results, checks.Result{Attempt: checks.Attempt{Check: check, Err: errBroken}})
		}
		r.conclude(results, time.Now())
		return r.neighbours.check().MustAnswer
	}
	assert.False(t, round())
	assert.False(t, round("dns"))
	assert.True(t, round("dns", "peers"))
	assert.False(t, round())
	assert.True(t, round("peers"))
	assert.True(t, round("peers"))
	assert.True(t, round("peers"))
	assert.True(t, round(), "the condition is False")
	assert.True(t, round())
	assert.False(t, round(), "recovered")
}

// In a cluster of one node there is nobody to connect to, which the log says once.
func TestNoNeighbours(t *testing.T) {
	api := newFakeAPI(t)
	newOthers(t, api, 0)
	r := startNeighbours(t, api)
	r.round(nil, nil, nil, nil)
	assert.Equal(t, []string{"True Verified"}, api.written())
	log, _ := r.log.read()
	assert.Equal(t, 1, strings.Count(log, "there is no agent on another node"), log)
}

// The sample is drawn hourly; sooner where it is small, or nobody in it answers. A list that fails leaves the last one.
func TestSampleOfNeighbours(t *testing.T) {
	api := newFakeAPI(t)
	o := newOthers(t, api, 100)
	api.node.Labels["node-ready/verified"] = "true"
	a, _ := inCluster(t, api)
	v := a.newVerification()
	require.False(t, v.readFirst(t.Context()))
	due := func(n *neighbours) time.Duration { return time.Until(n.due).Round(time.Minute) }
	draw := func() *neighbours {
		n := &v.newRecheck().neighbours
		peers, err := n.sample(t.Context())
		require.NoError(t, err)
		assert.Len(t, peers, min(sampleSize, len(o.list.Items[0].Endpoints)))
		return n
	}
	n := draw()
	assert.GreaterOrEqual(t, due(n), 48*time.Minute)
	assert.LessOrEqual(t, due(n), 72*time.Minute)
	redraw := n.check().Redraw
	require.NotNil(t, redraw, "the pods may have been replaced at once")
	before := n.peers
	peers, err := redraw(t.Context())
	require.NoError(t, err)
	assert.NotEqual(t, before, peers)
	assert.Nil(t, n.check().Redraw, "not again in the next round")
	assert.GreaterOrEqual(t, time.Until(n.redrawAt).Round(time.Minute), 4*time.Minute)
	assert.LessOrEqual(t, time.Until(n.redrawAt), 6*time.Minute)
	assert.GreaterOrEqual(t, due(n), 48*time.Minute)

	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		return request == getPeers && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no right")
	}
	n.due = time.Now()
	peers, err = n.sample(t.Context())
	require.NoError(t, err)
	assert.Len(t, peers, sampleSize)
	assert.LessOrEqual(t, due(n), 6*time.Minute)
	_, err = (&v.newRecheck().neighbours).sample(t.Context())
	require.ErrorContains(t, err, "no right")

	o = newOthers(t, api, 500)
	for i := range o.list.Items[0].Endpoints {
		o.list.Items[0].Endpoints[i].Conditions.Ready = new(i < 20)
	}
	n = &v.newRecheck().neighbours
	peers, err = n.sample(t.Context())
	require.NoError(t, err)
	assert.Len(t, peers, 20)
	assert.LessOrEqual(t, due(n), 6*time.Minute, "the others are starting")

	o = newOthers(t, api, 500)
	o.setUnready()
	assert.LessOrEqual(t, due(draw()), 6*time.Minute, "the same with publishNotReadyAddresses")

	o = newOthers(t, api, 5)
	n = draw()
	for _, minutes := range []time.Duration{1, 2, 4, 5, 5} { // a small cluster
		assert.InDelta(t, minutes*time.Minute, time.Until(n.due), float64(minutes*time.Minute/4))
		n.due = time.Now()
		_, err = n.sample(t.Context())
		require.NoError(t, err)
	}
}

// A rolling update replaces every agent of the sample: a new one is drawn before a round fails. It is drawn once, and no more when
// those do not answer either.
func TestNeighboursAreReplaced(t *testing.T) {
	api := newFakeAPI(t)
	old := newOthers(t, api, 70)
	update := newOthers(t, newFakeAPI(t), 70)
	var list atomic.Pointer[others]
	list.Store(old)
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if request == getPeers {
			answer(w, http.StatusOK, list.Load().list)
		}
		return request == getPeers
	}
	r := startNeighbours(t, api)
	r.round(nil, nil, nil)
	list.Store(update)
	old.down.Store(true)
	r.round(nil, nil, nil, nil)
	assert.Equal(t, []string{"True Verified"}, api.written())
	assert.NotContains(t, r.metrics(), `node_check_failures_total{check="peers"`, "no round has failed")
	assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="reached",zone="b"} 4`+"\n")
	assert.Contains(t, r.metrics(), `node_check_peers{node="node1",own_zone="a",result="failed",zone="b"} 0`+"\n")
	assert.Equal(t, 2, old.listed())

	update.down.Store(true)
	r.round(nil, nil, nil, nil)
	assert.Equal(t, []string{"True Verified", "False PeersFailed"}, api.written())
	assert.Equal(t, 2, old.listed(), "an outage")
}

// A list that fails is not tried again in each round.
func TestNeighboursThatCannotBeListed(t *testing.T) {
	for _, n := range []int{4, 70} {
		api := newFakeAPI(t)
		o := newOthers(t, api, n)
		api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			return request == getPeers && answerStatus(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "not now")
		}
		r := startNeighbours(t, api)
		r.round(nil, nil, nil, nil, nil, nil)
		assert.Equal(t, 1, o.listed())
		log, _ := r.log.read()
		assert.Equal(t, 1, strings.Count(log, "the agents on other nodes cannot be listed: "), log)
		assert.Equal(t, []string{"True Verified"}, api.written())
	}
}

// Each round connects to 8 of the sample: one of them that is dead is a warning once, not whenever a round meets it.
func TestDeadNeighbourIsSaidOnce(t *testing.T) {
	api := newFakeAPI(t)
	o := newOthers(t, api, 20)
	o.list.Items[0].Endpoints[7].Addresses = []string{"127.0.0.2"} // nobody listens there
	r := startNeighbours(t, api)
	dead := `result="failed",zone="b"} 1` + "\n"
	met := 0
	for range 200 {
		r.round(nil)
		if strings.Contains(r.metrics(), dead) {
			met++
		}
		if met > 3 {
			break
		}
	}
	assert.Greater(t, met, 3)
	log, _ := r.log.read()
	assert.Equal(t, 1, strings.Count(log, "on node other7"), log)
	assert.Equal(t, 1, strings.Count(log, "check passed with a warning"), log)
}

// What an earlier round has found is no longer there when the others are gone, or the node is verified again.
func TestNeighboursThatAreGone(t *testing.T) {
	api := newFakeAPI(t)
	newOthers(t, api, 4)
	r := startNeighbours(t, api)
	r.round(nil)
	assert.Contains(t, r.metrics(), "node_check_peers{")
	n := neighbours{r: &recheck{Agent: r.agent, node: &nodepatch.Node{}}, due: time.Now().Add(time.Hour)}
	report, err := n.check().Try(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "there is no agent on another node", report.Skipped)
	assert.NotContains(t, r.metrics(), "node_check_peer")

	r.round(nil)
	assert.Contains(t, r.metrics(), "node_check_peers{")
	api.edit(func(node *corev1.Node) { delete(node.Labels, "node-ready/verified") })
	r.round(nil, nil)
	assert.NotContains(t, r.metrics(), "node_check_peer")
}

func TestCheckNames(t *testing.T) {
	assert.Equal(t, checks.Names(), CheckNames(config.Config{}))
	names := CheckNames(config.Config{EnableConnectivityMatrix: true})
	assert.True(t, slices.Equal(append(checks.Names(), "peers"), names))
}
