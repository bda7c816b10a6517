package agent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

var errBroken = errors.New("pods cannot reach one another")

// rechecked is an agent in a simulation that rechecks its node every minute. Its network check answers what the test says.
type rechecked struct {
	*process
	api   *fakeAPI
	ended chan struct{} // an attempt of the network check
	mu    sync.Mutex
	try   func(context.Context) (checks.Report, error)
}

// startRechecks runs an agent on a node that was released before.
func startRechecks(t *testing.T, api *fakeAPI, args ...string) *rechecked {
	api.edit(setReleased)
	return startVerification(t, api, args...)
}

// startVerification runs an agent that verifies the node first: the first round is the verification's.
func startVerification(t *testing.T, api *fakeAPI, args ...string) *rechecked {
	before := api.intercepted()
	api.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
		time.Sleep(time.Millisecond) // what a round reads is read after it began
		return before != nil && before(request, n, w, r)
	})
	r := &rechecked{api: api, ended: make(chan struct{}, 1), try: passing}
	r.process = simulate(t, api, r.network, map[string]string{"RECHECK_INTERVAL": "1m"}, args...)
	return r
}

func (r *rechecked) network(ctx context.Context) (checks.Report, error) {
	r.mu.Lock()
	try := r.try
	r.mu.Unlock()
	report, err := try(ctx)
	select {
	case r.ended <- struct{}{}:
	default: // the test waits for no round
	}
	return report, err
}

// answer says what the network check does from now on.
func (r *rechecked) answer(try func(context.Context) (checks.Report, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.try = try
}

// round waits for one round for each outcome of the network check, and until all that follows it at once is done.
func (r *rechecked) round(outcomes ...error) {
	for _, err := range outcomes {
		r.answer(func(context.Context) (checks.Report, error) { return checks.Report{}, err })
		select {
		case <-r.ended: // of a round that nobody has waited for
		default:
		}
		select {
		case <-r.ended:
		case <-time.After(3 * time.Hour):
			require.Fail(r.t, "no round is made")
		}
		after(100 * time.Millisecond)
	}
}

func (r *rechecked) ready() bool { return r.get("/readyz").Code == http.StatusOK }

func (r *rechecked) metrics() string { return r.get("/metrics").Body.String() }

func (r *rechecked) get(path string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	r.agent.metrics.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer
}

// end shuts the agent down.
func (r *rechecked) end() {
	r.terminate()
	r.wait()
}

// releaseRecord is the annotation of a node whose release has removed the startup taint.
const releaseRecord = `{"time":"2026-01-02T03:04:05Z","duration":"1s","removed":["node-ready/unverified=true:NoSchedule"],"version":"1.0.0"}`

// setReleased edits a node as its release does.
func setReleased(node *corev1.Node) {
	node.Labels["node-ready/verified"] = "true"
	node.Annotations = map[string]string{nodepatch.Annotation: releaseRecord}
	removeTaint("node-ready/unverified")(node)
}

// setOld edits a node so that no startup taint is waited for.
func setOld(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)) }

func setCondition(status corev1.ConditionStatus, reason string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: status, Reason: reason}}
	}
}

func setFalse(reason string) func(*corev1.Node) { return setCondition(corev1.ConditionFalse, reason) }

// addFailedTaint edits a node as the controller re-taints it.
func addFailedTaint(node *corev1.Node) {
	addTaint(corev1.Taint{Key: "node-ready/failed", Value: "kube-node-ready", Effect: corev1.TaintEffectNoSchedule})(node)
}

// count is how often a request was seen.
func (a *fakeAPI) count(request string) (n int) {
	for _, other := range a.seen() {
		if other == request {
			n++
		}
	}
	return n
}
