package agent

import (
	"context"
	"errors"
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
