package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
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
)

var errBroken = errors.New("pods cannot reach one another")

// rounds is the network check of an agent that rechecks its node, round by round, as a test says.
type rounds struct {
	t        *testing.T
	api      *fakeAPI
	agent    *Agent
	log      *output
	begun    chan struct{}
	outcomes chan error
	stop     context.CancelFunc
	done     chan struct{}
	others   []checks.Check // behind it in each round
}

func (*rounds) Name() string { return checks.NetworkName }

func (r *rounds) Try(ctx context.Context) (checks.Report, error) {
	select {
	case r.begun <- struct{}{}:
	case <-ctx.Done():
		return checks.Report{}, ctx.Err()
	}
	select {
	case err := <-r.outcomes:
		return checks.Report{}, err
	case <-ctx.Done():
		return checks.Report{}, ctx.Err()
	}
}

// round ends the round that has begun, and waits until its verdict is written and the next one has begun.
func (r *rounds) round(outcome ...error) {
	for _, err := range outcome {
		r.outcomes <- err
		<-r.begun
	}
}

func (r *rounds) ready() bool {
	answer := httptest.NewRecorder()
	r.agent.metrics.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	return answer.Code == http.StatusOK
}

func (r *rounds) metrics() string {
	answer := httptest.NewRecorder()
	r.agent.metrics.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return answer.Body.String()
}

func (r *rounds) end() {
	r.stop()
	<-r.done
}

// startRechecks runs an agent on a node that is verified, until its first recheck begins.
func startRechecks(t *testing.T, api *fakeAPI, args ...string) *rounds {
	r := prepareRechecks(t, api, args...)
	api.edit(setReleased)
	r.start()
	return r
}

// record is the annotation of a node whose release has removed the startup taint.
const record = `{"time":"2026-01-02T03:04:05Z","duration":"1s","removed":["node-ready/unverified=true:NoSchedule"],"version":"1.0.0"}`

// setReleased edits a node as its release does.
func setReleased(node *corev1.Node) {
	node.Labels["node-ready/verified"] = "true"
	node.Annotations = map[string]string{annotation: record}
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == "node-ready/unverified" })
}

func prepareRechecks(t *testing.T, api *fakeAPI, args ...string) *rounds {
	r := &rounds{t: t, api: api, begun: make(chan struct{}), outcomes: make(chan error), done: make(chan struct{})}
	api.slices = []discoveryv1.EndpointSlice{dnsSlice(listen(t))}
	r.agent, r.log = inCluster(t, api, append([]string{"--check-timeout=1m"}, args...)...)
	r.agent.cfg.Once, r.agent.cfg.RecheckInterval = false, 10*time.Millisecond
	list := r.agent.checks
	r.agent.checks = func(api checks.API) []checks.Check {
		all := list(api) // api, network, service
		all[1] = r
		return append(all, r.others...)
	}
	return r
}

func (r *rounds) start() {
	ctx, stop := context.WithCancel(r.t.Context())
	r.stop = stop
	r.t.Cleanup(r.end)
	go func() {
		defer close(r.done)
		r.agent.Run(ctx, nil)
	}()
	<-r.begun
}

// edit changes the node as another client does.
func (a *fakeAPI) edit(change func(*corev1.Node)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := a.node.DeepCopy()
	change(node)
	a.node = node
}

func setFalse(reason string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse, Reason: reason}}
	}
}

func addFailedTaint(node *corev1.Node) {
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "node-ready/failed", Value: "kube-node-ready", Effect: corev1.TaintEffectNoSchedule})
}

func isWrite(request string) bool { return !strings.HasPrefix(request, "GET ") }

// In steady state a round is two reads from the API server's cache, and nothing grows.
func TestRecheckSteadyState(t *testing.T) {
	r := startRechecks(t, newFakeAPI(t))
	r.agent.look = r.agent.cfg.RecheckInterval // or more: no read between two rounds
	r.round(nil, nil)
	assert.Empty(t, r.api.written())
	r.round(nil)
	assert.Equal(t, []string{"True Verified"}, r.api.written(), "the node had no condition yet")
	before, goroutines, series := len(r.api.seen()), runtime.NumGoroutine(), strings.Count(r.metrics(), "\n")
	const n = 50
	for range n {
		r.round(nil)
	}
	seen := r.api.seen()[before:]
	reads, lists := 0, 0
	for _, request := range seen {
		assert.False(t, isWrite(request), request)
		switch request {
		case getCached:
			reads++
		case getSlices:
			lists++
		}
	}
	assert.Equal(t, []int{n, n, 2 * n}, []int{reads, lists, len(seen)}, "%v", seen)
	assert.InDelta(t, goroutines, runtime.NumGoroutine(), 5)
	assert.Equal(t, series, strings.Count(r.metrics(), "\n"))
	assert.True(t, r.ready())
	assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 1`+"\n")
	log, _ := r.log.read()
	assert.LessOrEqual(t, strings.Count(log, "\n"), 3, "a round that passes is not logged: %s", log)
}

// The requests of all rounds use one connection: no TLS handshake with each node and round.
func TestRecheckKeepsItsConnection(t *testing.T) {
	api := newFakeAPI(t)
	var connections atomic.Value
	connections.Store("")
	changes := atomic.Int32{}
	api.before = func(request string, _ int, _ http.ResponseWriter, request2 *http.Request) bool {
		if request == getCached && connections.Swap(request2.RemoteAddr) != request2.RemoteAddr {
			changes.Add(1)
		}
		return false
	}
	r := startRechecks(t, api)
	r.round(nil, nil, nil, nil)
	assert.Equal(t, int32(1), changes.Load())
	r.round(errBroken)
	r.round(nil)
	assert.Equal(t, int32(2), changes.Load(), "after a failure it makes a new connection")
}

// A single failure is a warning and a counter, and a round that passes begins the count again.
func TestRecheckSingleFailure(t *testing.T) {
	r := startRechecks(t, newFakeAPI(t))
	r.round(nil, nil, nil)
	before := len(r.api.seen())
	r.round(errBroken, errBroken, nil, errBroken, errBroken)
	for _, request := range r.api.seen()[before:] {
		assert.False(t, isWrite(request), request)
	}
	assert.True(t, r.ready())
	assert.Contains(t, r.metrics(), `node_check_failures_total{check="network",node="node1"} 4`+"\n")
	log, _ := r.log.read()
	assert.Equal(t, 4, strings.Count(log, `"level":"warning","msg":"recheck failed"`))
	assert.Equal(t, 4, strings.Count(log, `"level":"warning","msg":"check failed"`))
}

// FAILURE_THRESHOLD failed rounds close /readyz and write the condition; RECOVERY_THRESHOLD passed ones take both back, and the
// failed taint of the controller in the same round.
func TestRecheckFailsAndRecovers(t *testing.T) {
	api := newFakeAPI(t)
	r := startRechecks(t, api, "--failure-threshold=2", "--recovery-threshold=3")
	r.round(nil, nil, nil)
	r.round(errBroken)
	assert.True(t, r.ready())
	r.round(errBroken)
	assert.False(t, r.ready())
	assert.Contains(t, r.metrics(), `node_check_status{node="node1"} 0`+"\n")
	assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 0`+"\n")
	assert.Equal(t, []string{"True Verified", "False NetworkFailed"}, api.written())
	assert.Equal(t, []string{"NodeRecheckFailed"}, api.reasons())
	message := "rechecks fail: network: pods cannot reach one another"
	assert.Equal(t, message, api.conditions[1].Message)
	assert.Equal(t, message, api.events[0].Message)
	assert.Equal(t, corev1.EventTypeWarning, api.events[0].Type)

	r.round(errBroken, errBroken)
	assert.Len(t, api.written(), 2, "not yet to be refreshed")
	api.edit(addFailedTaint)
	r.round(nil, nil)
	assert.False(t, r.ready())
	assert.Contains(t, api.taints(), "node-ready/failed", "not after fewer rounds than RECOVERY_THRESHOLD")
	before := len(api.seen())
	r.round(nil)
	assert.True(t, r.ready())
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{"True Verified", "False NetworkFailed", "True Verified"}, api.written())
	assert.Equal(t, []string{"NodeRecheckFailed", "NodeRecovered"}, api.reasons())
	writes := slices.DeleteFunc(api.seen()[before:], func(request string) bool { return !isWrite(request) })
	assert.Equal(t, []string{patchStat, patchNode, postEvent}, writes, "True first: the controller closes on False")
	assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 1`+"\n")
}

// A round that passes and one that does not, in turn, change nothing in either state.
func TestRecheckFlapping(t *testing.T) {
	r := startRechecks(t, newFakeAPI(t))
	r.round(nil, nil, nil)
	r.round(errBroken, nil, errBroken, nil, errBroken, nil)
	assert.True(t, r.ready())
	r.round(errBroken, errBroken, errBroken)
	r.round(nil, errBroken, nil, nil, errBroken, nil)
	assert.False(t, r.ready())
	assert.Equal(t, []string{"True Verified", "False NetworkFailed"}, r.api.written())
}

// A condition that stays False is refreshed, also while no round ends; one that is True is not.
func TestRecheckRefreshesFalse(t *testing.T) {
	r := startRechecks(t, newFakeAPI(t))
	r.agent.refresh = time.Millisecond
	r.agent.cfg.RecheckInterval = 200 * time.Millisecond
	r.round(errBroken, errBroken, errBroken)
	written := r.api.written()
	assert.Greater(t, len(written), 2)
	for _, condition := range written {
		assert.Equal(t, "False NetworkFailed", condition)
	}
	r.round(nil, nil, nil)
	n := len(r.api.written())
	assert.Equal(t, "True Verified", r.api.written()[n-1])
	r.round(nil, nil)
	assert.Len(t, r.api.written(), n)
}

// The API server is away: the verdict is at /readyz, and on the node as soon as it is back.
func TestRecheckWithoutAPI(t *testing.T) {
	api := newFakeAPI(t)
	var away atomic.Bool
	api.before = func(_ string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		return away.Load() && answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "away")
	}
	r := startRechecks(t, api)
	r.agent.reportInterval = time.Millisecond
	r.round(nil, nil, nil)
	away.Store(true)
	r.round(nil, nil, nil, nil) // the api check of the round that has begun has passed
	assert.False(t, r.ready())
	assert.Equal(t, []string{"True Verified"}, api.written())
	assert.Empty(t, api.reasons())
	away.Store(false)
	r.round(nil, nil)
	assert.Equal(t, []string{"True Verified", "False APIFailed"}, api.written())
	assert.Equal(t, []string{"NodeRecheckFailed"}, api.reasons())
}

// The API server is away for some rounds and nothing else. As soon as it is back, no agent writes that it cannot reach it.
func TestRecheckWhenTheAPIIsBack(t *testing.T) {
	api := newFakeAPI(t)
	var away atomic.Bool
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if !away.Load() {
			return false
		}
		if request == patchStat {
			away.Store(false)
		}
		return answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "away")
	}
	r := startRechecks(t, api)
	r.agent.reportInterval, r.agent.cfg.RecheckInterval = time.Millisecond, 100*time.Millisecond
	r.round(nil, nil, nil)
	away.Store(true)
	r.round(nil, nil, nil)
	assert.False(t, away.Load(), "the last of them was to be written")
	r.round(nil, nil)
	assert.Equal(t, []string{"True Verified"}, api.written())
	r.round(nil)
	assert.Equal(t, []string{"True Verified", "True Verified"}, api.written())
	assert.Equal(t, []string{"NodeRecheckFailed", "NodeRecovered"}, api.reasons())
}

// Whatever becomes of the condition, the node is opened.
func TestRecheckOpensWithoutCondition(t *testing.T) {
	api := newFakeAPI(t)
	setFalse("NetworkFailed")(api.node)
	addFailedTaint(api.node)
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		return request == patchStat && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no right to nodes/status")
	}
	r := startRechecks(t, api)
	r.round(nil, nil)
	assert.Contains(t, api.taints(), "node-ready/failed")
	r.round(nil)
	assert.Equal(t, untainted, api.taints())
	assert.True(t, r.ready())
}

// A DNS pod on one other node that does not answer proves nothing about this node, which may be the healthy one of two. Two do.
func TestRecheckOfDNSPodsThatDoNotAnswer(t *testing.T) {
	for n, want := range map[int][]string{1: {"True Verified"}, 2: {"False ServiceFailed"}} {
		api := newFakeAPI(t)
		r := prepareRechecks(t, api)
		api.slices[0].Endpoints = nil
		for i := range n {
			node := "other" + strconv.Itoa(i)
			api.slices[0].Endpoints = append(api.slices[0].Endpoints, discoveryv1.Endpoint{Addresses: []string{"127.0.0.2"}, NodeName: &node})
		}
		api.edit(setReleased)
		r.start()
		r.round(nil, nil, nil)
		assert.Equal(t, want, api.written())
		log, _ := r.log.read()
		assert.Contains(t, log, "on node other0: connection refused")
	}
}

// A node that is closed because DNS pods on two other nodes did not answer stays closed when they are on one only and that does not answer
// either, after a restart too.
func TestRecheckOfFewerDNSPodsOpensNothing(t *testing.T) {
	for name, restarted := range map[string]bool{"the same agent": false, "the next agent": true} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			r := prepareRechecks(t, api)
			answers := api.slices
			dead := func(nodes ...string) []discoveryv1.EndpointSlice {
				slice := *answers[0].DeepCopy()
				slice.Endpoints = nil
				for _, node := range nodes {
					slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"127.0.0.2"}, NodeName: &node})
				}
				return []discoveryv1.EndpointSlice{slice}
			}
			setSlices := func(list []discoveryv1.EndpointSlice) {
				api.mu.Lock()
				defer api.mu.Unlock()
				api.slices = list
			}
			api.edit(setReleased)
			if restarted {
				setSlices(dead("other1"))
				api.edit(setFalse("DNSFailed,ServiceFailed"))
				r.start()
			} else {
				setSlices(dead("other0", "other1"))
				r.start()
				r.round(nil, nil, nil)
				setSlices(dead("other1"))
			}
			api.edit(addFailedTaint)
			r.round(nil, nil, nil, nil)
			assert.Equal(t, []string{"False ServiceFailed"}, api.written())
			assert.Contains(t, api.taints(), "node-ready/failed")
			setSlices(answers)
			r.round(nil, nil, nil)
			assert.Equal(t, untainted, api.taints())
			setSlices(dead("other1"))
			r.round(nil, nil, nil, nil)
			assert.Equal(t, []string{"False ServiceFailed", "True Verified"}, api.written(), "to begin with, one proves nothing")
		})
	}
}

// A False whose rounds pass again is not refreshed: it goes stale, and the controller does not close the node.
func TestRecheckDoesNotRefreshWhilePassing(t *testing.T) {
	r := startRechecks(t, newFakeAPI(t), "--recovery-threshold=100")
	r.agent.refresh = time.Nanosecond
	r.round(errBroken, errBroken, errBroken, nil)
	written := len(r.api.written())
	assert.Positive(t, written)
	r.round(nil, nil, nil, nil, nil)
	assert.Len(t, r.api.written(), written)
	r.round(errBroken)
	assert.Greater(t, len(r.api.written()), written, "it fails")
}

// Events that cannot be sent are tried again, and nothing else with them.
func TestRecheckWithoutEvents(t *testing.T) {
	api := newFakeAPI(t)
	var away atomic.Bool
	away.Store(true)
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		return request == postEvent && away.Load() && answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "no")
	}
	r := startRechecks(t, api)
	r.agent.reportInterval = time.Millisecond
	r.round(nil, nil, nil)
	for range 6 {
		r.round(errBroken)
	}
	assert.Equal(t, []string{"True Verified", "False NetworkFailed"}, api.written())
	tries := func() (n int) {
		for _, request := range api.seen() {
			if request == postEvent {
				n++
			}
		}
		return n
	}
	assert.Greater(t, tries(), 3)
	away.Store(false)
	r.round(errBroken)
	assert.Equal(t, []string{"NodeRecheckFailed"}, api.reasons())
	n := tries()
	r.round(errBroken, errBroken)
	assert.Equal(t, n, tries())
}

// A node that never had a startup taint, an old one or a control plane, gets no condition: nobody is to close it. The rest of the
// verdict is there.
func TestRecheckOfANodeThatWasNeverGated(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"released without a taint": func(node *corev1.Node) { node.Spec.Taints = nil },
		"released from a leftover": func(node *corev1.Node) {
			node.Spec.Taints = nil
			addFailedTaint(node)
		},
		"labelled by hand": func(node *corev1.Node) {
			setReleased(node)
			node.Annotations = nil
		},
		"released before, without a taint": func(node *corev1.Node) {
			setReleased(node)
			node.Annotations[annotation] = `{"time":"2026-01-02T03:04:05Z","duration":"1s","removed":[],"version":"1.0.0"}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			r := prepareRechecks(t, api)
			r.agent.refresh, r.agent.reportInterval = time.Millisecond, time.Millisecond
			api.edit(edit)
			r.start()
			if api.node.Labels["node-ready/verified"] == "" {
				r.round(nil)
			}
			r.round(nil, nil, nil, nil)
			assert.True(t, r.ready())
			events := len(api.reasons())
			r.round(errBroken, errBroken, errBroken, errBroken)
			assert.False(t, r.ready())
			assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 0`+"\n")
			assert.Equal(t, []string{"NodeRecheckFailed"}, api.reasons()[events:])
			r.round(nil, nil, nil, nil)
			assert.True(t, r.ready())
			assert.Equal(t, []string{"NodeRecheckFailed", "NodeRecovered"}, api.reasons()[events:])
			assert.Empty(t, api.written())
			assert.Empty(t, api.node.Status.Conditions)
		})
	}
}

// The agent loses its path to the API server together with its network. The controller says Silent and closes the node. Back
// again, the agent gives its own reasons while its rounds fail, and opens the node once they pass.
func TestRecheckOfASilentAgent(t *testing.T) {
	api := newFakeAPI(t)
	var away atomic.Bool
	api.before = func(_ string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		return away.Load() && answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "away")
	}
	r := startRechecks(t, api)
	r.agent.reportInterval = time.Millisecond
	r.round(nil, nil, nil)
	away.Store(true)
	r.round(errBroken, errBroken, errBroken)
	assert.False(t, r.ready())
	api.edit(setFalse("Silent"))
	api.edit(addFailedTaint)
	away.Store(false)
	r.round(errBroken) // has not read the node
	r.round(errBroken)
	assert.Equal(t, []string{"True Verified", "False APIFailed,NetworkFailed"}, api.written())
	written := len(api.written())
	r.round(nil, nil)
	assert.Contains(t, api.taints(), "node-ready/failed")
	r.round(nil)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{"True Verified"}, api.written()[written:])
	assert.True(t, r.ready())
	before := len(api.seen())
	r.round(nil, nil, nil, nil)
	for _, request := range api.seen()[before:] {
		assert.False(t, isWrite(request), request)
	}
}

// The first round after a release has not read the node: that the release is not in what was read before is no reason to verify
// the node again.
func TestRecheckThatCannotReadAfterTheRelease(t *testing.T) {
	api := newFakeAPI(t)
	var away atomic.Bool
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if request == postEvent {
			away.Store(true)
		}
		return request != postEvent && away.Load() && answerStatus(w, http.StatusServiceUnavailable, "", "away")
	}
	setFalse("NetworkFailed")(api.node)
	addFailedTaint(api.node)
	r := prepareRechecks(t, api, "--failure-threshold=4")
	r.start()
	r.round(nil)
	r.round(nil, nil)
	assert.True(t, r.ready())
	away.Store(false)
	r.round(nil, nil, nil, nil, nil)
	assert.Equal(t, []string{"True Verified"}, api.written(), "nor to prove it once more")
	log, _ := r.log.read()
	assert.NotContains(t, log, "node is no longer verified")
}

// The node is closed while something else is to be written: Events, or a condition that is refused. The agent does not open it before
// its rounds have proven once more that they pass.
func TestRecheckOpensNothingUnproven(t *testing.T) {
	for name, test := range map[string]struct {
		refused string
		silent  bool // says the controller
		first   error
		written []string
	}{
		"silent, Events refused":    {postEvent, true, nil, []string{"True Verified"}},
		"silent, condition refused": {patchStat, true, nil, nil},
		"a leftover":                {postEvent, false, errBroken, nil},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
				return request == test.refused && answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "no")
			}
			r := startRechecks(t, api, "--failure-threshold=4")
			r.agent.reportInterval = time.Millisecond
			r.round(nil, nil, nil)
			r.round(errBroken, errBroken, errBroken, errBroken)
			r.round(nil, nil, nil)
			n := len(api.written())
			if test.silent {
				api.edit(setFalse("Silent"))
			}
			api.edit(addFailedTaint)
			r.round(test.first) // has read the node before
			r.round(test.first)
			assert.Contains(t, api.taints(), "node-ready/failed")
			r.round(errBroken, nil, nil)
			assert.Contains(t, api.taints(), "node-ready/failed")
			r.round(nil)
			assert.Equal(t, untainted, api.taints())
			assert.ElementsMatch(t, test.written, api.written()[n:])
		})
	}
}

// Rounds that are far apart do not find a removed label late: the node is read between them, from the API server's cache.
func TestRecheckLooksAtTheNodeBetweenRounds(t *testing.T) {
	api := newFakeAPI(t)
	r := startRechecks(t, api)
	r.agent.cfg.RecheckInterval, r.agent.look = time.Hour, time.Millisecond
	before := len(api.seen())
	r.outcomes <- nil
	looked := func() bool { return len(api.seen()) > before+5 }
	require.Eventually(t, looked, time.Minute, time.Millisecond)
	for _, request := range slices.DeleteFunc(api.seen()[before:], func(request string) bool { return request == getSlices }) {
		assert.Equal(t, getCached, request)
	}
	api.edit(func(node *corev1.Node) { delete(node.Labels, "node-ready/verified") })
	<-r.begun // of a verification
	r.outcomes <- nil
	labelled := func() bool { return slices.Contains(api.reasons(), "NodeVerified") }
	require.Eventually(t, labelled, time.Minute, time.Millisecond)
}

// The controller closes the node between the read of the last round and the agent's True, or behind that, and is killed: the agent opens
// it before the next round, which may be an hour away.
func TestRecheckOpensBetweenRounds(t *testing.T) {
	for name, behind := range map[string]bool{"before the True": false, "behind the True": true} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			setFalse("NetworkFailed")(api.node)
			r := startRechecks(t, api)
			r.round(errBroken, nil, nil)
			r.agent.cfg.RecheckInterval, r.agent.look = time.Hour, time.Hour
			if behind {
				r.agent.look = time.Millisecond
			} else {
				api.edit(addFailedTaint)
			}
			r.outcomes <- nil
			if behind {
				require.Eventually(t, func() bool { return slices.Contains(api.written(), "True Verified") }, time.Minute, time.Millisecond)
				api.edit(addFailedTaint)
			}
			require.Eventually(t, func() bool { return slices.Contains(api.seen(), patchNode) }, 20*time.Second, time.Millisecond)
			require.Eventually(t, func() bool { return slices.Equal(untainted, api.taints()) }, 20*time.Second, time.Millisecond)
			assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
		})
	}
}

// Rounds are an hour apart. Between two of them the controller says Silent and closes the node: rounds that were before that do not open it,
// whether the agent looks at the node or has something to write.
func TestRecheckOpensNothingBetweenRounds(t *testing.T) {
	closing := func(node *corev1.Node) {
		setFalse("Silent")(node)
		addFailedTaint(node)
	}
	t.Run("looks", func(t *testing.T) {
		api := newFakeAPI(t)
		r := startRechecks(t, api)
		r.round(nil, nil, nil)
		require.Equal(t, []string{"True Verified"}, api.written())
		r.agent.cfg.RecheckInterval, r.agent.look = time.Hour, time.Millisecond
		look := func() {
			before := len(api.seen())
			require.Eventually(t, func() bool { return len(api.seen()) > before+5 }, time.Minute, time.Millisecond)
		}
		r.outcomes <- nil
		look()
		api.edit(closing)
		look()
		assert.Contains(t, api.taints(), "node-ready/failed")
		assert.Equal(t, []string{"True Verified"}, api.written())
	})
	t.Run("writes", func(t *testing.T) {
		api := newFakeAPI(t)
		setReleased(api.node)
		api.node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionTrue, Reason: "Verified"}}
		a, _ := inCluster(t, api)
		v := a.newVerification()
		require.True(t, v.readFirst(t.Context()))
		r := v.newRecheck()
		prove := func() {
			for range a.cfg.RecoveryThreshold {
				r.conclude(nil, time.Now())
			}
			r.readAt = time.Now().Add(-time.Hour)
			r.write(t.Context())
		}
		prove()
		api.edit(closing)
		r.readAt = time.Now().Add(-time.Hour)
		r.write(t.Context())
		assert.Contains(t, api.taints(), "node-ready/failed")
		assert.Empty(t, api.written())
		assert.True(t, r.due.IsZero(), "nothing to write before the next round")
		assert.True(t, r.thoroughAt.IsZero(), "which sends large packets")
		prove()
		assert.Equal(t, untainted, api.taints())
		assert.Equal(t, []string{"True Verified"}, api.written())
	})
}

// The agent starts on a verified node whose condition is False: what a former container, or the controller, has found holds until
// RECOVERY_THRESHOLD rounds pass. The failed taint begins no verification.
func TestRecheckStartsOnAFailedNode(t *testing.T) {
	for _, reason := range []string{"NetworkFailed", "Silent"} {
		t.Run(reason, func(t *testing.T) {
			api := newFakeAPI(t)
			setFalse(reason)(api.node)
			addFailedTaint(api.node)
			r := startRechecks(t, api)
			assert.False(t, r.ready())
			r.round(errBroken)
			assert.Equal(t, []string{"False NetworkFailed"}, api.written(), "its own reason, at once")
			r.round(nil, nil)
			assert.Contains(t, api.taints(), "node-ready/failed")
			r.round(nil)
			assert.Equal(t, untainted, api.taints())
			assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
			assert.Equal(t, record, api.node.Annotations[annotation], "no verification")
		})
	}
}

// The condition is Unknown where no agent was there for long. Both the controller and the agent count a node that has it, whatever the
// record of its last release: the agent writes what it proves.
func TestRecheckOfAnUnknownCondition(t *testing.T) {
	setUnknown := func(node *corev1.Node) {
		node.Annotations[annotation] = `{"removed":[]}`
		node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionUnknown, Reason: "NotRechecked"}}
	}
	api := newFakeAPI(t)
	r := prepareRechecks(t, api)
	api.edit(setReleased)
	api.edit(setUnknown)
	r.start()
	assert.True(t, r.ready())
	r.round(nil, nil)
	assert.Empty(t, api.written())
	r.round(nil)
	assert.Equal(t, []string{"True Verified"}, api.written())
	api.edit(setUnknown)
	r.round(nil) // has read the node before
	r.round(nil, nil, nil)
	assert.Equal(t, []string{"True Verified", "True Verified"}, api.written())
}

// A failed taint on a node that passes is a leftover: the agent removes it after RECOVERY_THRESHOLD rounds, whatever the condition.
func TestRecheckRemovesALeftover(t *testing.T) {
	api := newFakeAPI(t)
	r := startRechecks(t, api)
	r.round(nil, nil, nil, nil)
	api.edit(addFailedTaint)
	r.round(nil, nil)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{"True Verified"}, api.written())
}

// The API server's cache is behind the release, because another API server has answered that: nothing is verified again.
func TestRecheckWithACacheBehindTheRelease(t *testing.T) {
	api := newFakeAPI(t)
	before := api.node.DeepCopy()
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		if request == getCached && n <= 2 {
			answer(w, http.StatusOK, before)
			return true
		}
		return false
	}
	r := prepareRechecks(t, api)
	r.start()
	r.round(nil) // of the verification
	r.round(nil, nil, nil, nil)
	log, _ := r.log.read()
	assert.NotContains(t, log, "node is no longer verified")
	reads := slices.DeleteFunc(api.seen(), func(request string) bool { return request != getNode })
	assert.Len(t, reads, 3, "before the release, and for each of the two")
}

// The controller finds the agent silent while its rounds pass: the agent proves once more that they do.
func TestRecheckAnswersTheController(t *testing.T) {
	api := newFakeAPI(t)
	r := startRechecks(t, api)
	r.round(nil, nil, nil, nil)
	api.edit(setFalse("Silent"))
	api.edit(addFailedTaint)
	r.round(nil) // has read the node before
	r.round(nil, nil)
	assert.Contains(t, api.taints(), "node-ready/failed", "not in fewer rounds than RECOVERY_THRESHOLD")
	assert.Equal(t, []string{"True Verified"}, api.written())
	r.round(nil)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{"True Verified", "True Verified"}, api.written())
	assert.True(t, r.ready())
	r.round(nil, nil, nil, nil)
	assert.Len(t, api.written(), 2)
}

// The first read of a restarted agent fails, on a node that is verified and closed: one round that passes does not open it.
func TestRecheckAfterAFailedFirstRead(t *testing.T) {
	api := newFakeAPI(t)
	setFalse("NetworkFailed")(api.node)
	addFailedTaint(api.node)
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		return request == getNode && n == 1 && answerStatus(w, http.StatusServiceUnavailable, "", "not now")
	}
	r := startRechecks(t, api)
	r.round(nil) // of the verification
	assert.NotContains(t, api.seen(), patchNode)
	assert.False(t, r.ready())
	r.round(nil, nil)
	assert.Contains(t, api.taints(), "node-ready/failed")
	r.round(nil)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, record, api.node.Annotations[annotation])
}

// A label that was removed, or the startup taint that was put back, begins a verification.
func TestRecheckBeginsAVerification(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"label removed": func(node *corev1.Node) { delete(node.Labels, "node-ready/verified") },
		"taint back": func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "node-ready/unverified", Effect: corev1.TaintEffectNoSchedule})
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			setFalse("NetworkFailed")(api.node)
			r := startRechecks(t, api)
			api.edit(edit)
			r.round(nil)
			r.round(nil)
			assert.NotContains(t, r.metrics(), "node_check_recheck_status", "a verification")
			assert.False(t, r.ready())
			r.round(nil)
			assert.Equal(t, untainted, api.taints())
			assert.Equal(t, "true", api.node.Labels["node-ready/verified"])
			assert.Equal(t, []string{"True Verified"}, api.written())
			assert.Equal(t, []string{"NodeVerified"}, api.reasons())
			assert.True(t, r.ready())
			assert.Contains(t, r.metrics(), `node_check_recheck_status{node="node1"} 1`+"\n")
		})
	}
}

// While somebody drains the node or takes it away there is no verdict, and what was counted before does not count.
func TestRecheckOfANodeThatGoesAway(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"cordoned": func(node *corev1.Node) { node.Spec.Unschedulable = true },
		"deleted":  func(node *corev1.Node) { node.DeletionTimestamp = new(metav1.Now()) },
		"disrupted": func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "karpenter.sh/disrupted"})
		},
		"autoscaler": func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			r := startRechecks(t, api)
			r.round(nil, nil, nil)
			before := api.node
			r.round(errBroken, errBroken)
			api.edit(edit)
			r.round(nil) // has read the node before the change
			r.round(errBroken, errBroken, errBroken, errBroken)
			assert.True(t, r.ready())
			api.edit(func(node *corev1.Node) { *node = *before })
			r.round(errBroken)
			r.round(errBroken, errBroken)
			assert.Equal(t, []string{"True Verified"}, api.written())
			r.round(errBroken)
			assert.Equal(t, []string{"True Verified", "False NetworkFailed"}, api.written())
			api.edit(edit)
			r.round(errBroken)
			r.agent.refresh = time.Millisecond
			n := len(api.written())
			r.round(nil, nil, nil, nil, nil)
			assert.Len(t, api.written(), n)
			assert.False(t, r.ready(), "the last verdict stays")
		})
	}
}

// SIGTERM in a round that would be the last one to fail ends it without a verdict.
func TestRecheckStopsWithoutAVerdict(t *testing.T) {
	api := newFakeAPI(t)
	r := startRechecks(t, api)
	r.round(nil, nil, nil, errBroken, errBroken)
	before := len(api.seen())
	r.end()
	assert.Len(t, api.seen(), before)
	assert.True(t, r.ready())
	assert.Equal(t, []string{"True Verified"}, api.written())
}

// The condition of a node that was released just now is written again where that failed, and the release makes it True in any case.
func TestRecheckAfterTheRelease(t *testing.T) {
	for name, lost := range map[string]int{"written by the release": 0, "written by the recheck": 3} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
				return request == patchStat && n <= lost && answerStatus(w, http.StatusServiceUnavailable, "", "not now")
			}
			r := prepareRechecks(t, api)
			r.agent.reportInterval = time.Millisecond
			r.start()
			r.round(nil)
			assert.True(t, r.ready())
			assert.Equal(t, []string{"True Verified"}, api.written())
			assert.Equal(t, untainted, api.taints())
			r.round(nil)
			before := len(api.seen())
			r.end()
			assert.Len(t, api.seen(), before, "the next agent of this node looks for the startup taint")
		})
	}
}

// A failed taint without the startup taint whose value is the name of a release is the controller's: a verification does not remove
// it before it has passed. One of ON_TIMEOUT=taint, of this agent or of the one before a restart, closes nothing any more.
func TestLoneFailedTaintInAVerification(t *testing.T) {
	for value, stays := range map[string]bool{
		"kube-node-ready": true, "": true, "network": false, "dns": false, "taints": false, "unverified": false,
	} {
		t.Run(value, func(t *testing.T) {
			api := newFakeAPI(t)
			api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			api.node.Spec.Taints = []corev1.Taint{{Key: "node-ready/failed", Value: value, Effect: corev1.TaintEffectNoSchedule}}
			r := prepareRechecks(t, api, "--max-retries=0")
			r.start()
			r.round(errBroken)
			assert.Equal(t, stays, len(api.taints()) == 1)
			r.round(nil)
			assert.Empty(t, api.taints())
		})
	}
}

// No release has a name that is the value of an agent's failed taint: its taints would be taken for those of an agent.
func TestReleaseNamedAsAMarker(t *testing.T) {
	parse := func(name string) error {
		_, err := config.ParseController([]string{"--agent-name=" + name}, func(string) (string, bool) { return "", false }, io.Discard)
		return err
	}
	require.NoError(t, parse("network-checks"))
	require.ErrorContains(t, parse("Network"), "lower-case letters")
	for _, value := range append(checks.Names(), checks.PeersName, foreignTaints, notChecked) {
		require.ErrorContains(t, parse(value), `--agent-name "`+value+`": must not be a value that an agent gives the failed taint`)
	}
}

// The settings alone make the agent stay: it writes the condition with the release, and is shut down without a linger or a request.
func TestRecheckInterval(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "RECHECK_INTERVAL": "1h"})
	p.logged("node verified")
	require.Eventually(t, func() bool { return len(api.reasons()) == 1 }, time.Minute, time.Millisecond)
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, []string{getNode, patchNode, patchStat, postEvent}, api.seen())
	assert.Equal(t, []string{"True Verified"}, api.written())
}

// With --once there is nothing after the verdict.
func TestOnceDoesNotRecheck(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "RECHECK_INTERVAL": "10s"}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
}

// Rounds that last longer than the interval: what they find is written all the same.
func TestRecheckThatTakesLong(t *testing.T) {
	api := newFakeAPI(t)
	r := prepareRechecks(t, api)
	r.agent.cfg.RecheckInterval = time.Microsecond
	api.edit(setReleased)
	r.start()
	r.round(nil, nil, nil)
	assert.Equal(t, []string{"True Verified"}, api.written())
}

// A warning that stays is logged once.
func TestRecheckWarnsOnce(t *testing.T) {
	r := prepareRechecks(t, newFakeAPI(t))
	r.others = []checks.Check{warning("192.0.2.1 does not answer")}
	r.start()
	r.round(nil, nil, nil, nil)
	log, _ := r.log.read()
	assert.Equal(t, 2, strings.Count(log, "192.0.2.1 does not answer"), "by the verification and by the rechecks: %s", log)
}

type warning string

func (warning) Name() string { return "dns" }
func (w warning) Try(context.Context) (checks.Report, error) {
	return checks.Report{Warnings: []string{string(w)}}, nil
}

// Large packets are sent once an hour, and in every round after a failure of such a round.
func TestRecheckSendsLargePacketsHourly(t *testing.T) {
	api := newFakeAPI(t)
	var large atomic.Int32
	api.before = func(request string, _ int, _ http.ResponseWriter, r *http.Request) bool {
		if request == getCached && r.Header.Get("X-Kube-Node-Ready-Padding") != "" {
			large.Add(1)
		}
		return false
	}
	r := prepareRechecks(t, api)
	api.edit(setReleased)
	api.edit(func(node *corev1.Node) {
		node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionTrue, Reason: "Verified"}}
	})
	r.start()
	r.round(nil, nil)
	assert.Zero(t, large.Load())

	recheck := &recheck{Agent: r.agent, thoroughAt: time.Now().Add(-time.Second), said: make(map[string]time.Time)}
	service := func() checks.Service {
		for _, check := range recheck.list() {
			if service, ok := check.(checks.Service); ok {
				return service
			}
		}
		return checks.Service{}
	}
	assert.False(t, service().SmallPackets)
	assert.Equal(t, 2, service().MaxDials)
	_, err := recheck.readNode(t.Context())
	require.NoError(t, err)
	assert.Equal(t, int32(1), large.Load())
	failed := []checks.Result{{Attempt: checks.Attempt{Check: "service", Err: errBroken}}}
	recheck.conclude(failed, time.Now())
	assert.False(t, service().SmallPackets, "the next round, too")
	recheck.conclude(nil, time.Now())
	assert.True(t, service().SmallPackets)
	at := recheck.thoroughAt
	assert.Greater(t, time.Until(at), 40*time.Minute)
	recheck.conclude(nil, time.Now())
	assert.Equal(t, at, recheck.thoroughAt, "a round without them puts them off no further")

	api.edit(func(node *corev1.Node) { node.Spec.Unschedulable = true })
	recheck.thoroughAt = time.Now()
	began := time.Now()
	assert.False(t, service().SmallPackets)
	_, err = recheck.readNode(t.Context())
	require.NoError(t, err)
	recheck.conclude(nil, began)
	assert.True(t, service().SmallPackets, "nor in each round while the node is cordoned")
}

// A node may have failed because of large packets alone: its next agent does not open it without one, and neither does this agent
// when the controller has closed it.
func TestRecheckOpensAfterLargePackets(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		api := newFakeAPI(t)
		var lost atomic.Bool
		api.before = func(request string, _ int, w http.ResponseWriter, r *http.Request) bool {
			return lost.Load() && request == getCached && r.Header.Get("X-Kube-Node-Ready-Padding") != "" &&
				answerStatus(w, http.StatusServiceUnavailable, "", "too large")
		}
		closing := func(node *corev1.Node) {
			setFalse("Silent")(node)
			addFailedTaint(node)
		}
		if restarted {
			closing(api.node)
			lost.Store(true)
		}
		r := startRechecks(t, api)
		if !restarted {
			r.round(nil, nil, nil)
			api.edit(closing)
			lost.Store(true)
			r.round(nil) // has read the node before
		}
		r.round(nil, nil, nil, nil)
		assert.Contains(t, api.taints(), "node-ready/failed")
		lost.Store(false)
		r.round(nil, nil, nil, nil)
		assert.Equal(t, untainted, api.taints())
	}
}

// A node that was cordoned when it was last read may have been open for long: without a path to the API server nobody knows.
func TestCordonedThenCutOff(t *testing.T) {
	api := newFakeAPI(t)
	cut := false
	api.before = func(_ string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if cut {
			answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "no")
		}
		return cut
	}
	r := startRechecks(t, api)
	r.round(nil, nil, nil)
	api.edit(func(n *corev1.Node) { n.Spec.Unschedulable = true })
	r.round(nil, nil, errBroken, errBroken, errBroken)
	assert.True(t, r.ready(), "no verdict while it is known to be cordoned")
	cut = true
	r.round(errBroken, errBroken, errBroken, errBroken)
	assert.False(t, r.ready())
}
