package report

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// start returns a reporter and the patches that its API server gets. The server answers with status for a node.
func start(t *testing.T, status func(node string) int) (r *Reporter, patches func() []string, recorder *events.FakeRecorder) {
	var mu sync.Mutex
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		node := strings.Split(request.URL.Path, "/")[4]
		body, _ := io.ReadAll(request.Body)
		mu.Lock()
		got = append(got, node+" "+string(body))
		mu.Unlock()
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(status(node))
		answer := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","code":%d}`, status(node))
		if status(node) == http.StatusOK {
			answer = fmt.Sprintf(`{"kind":"Node","apiVersion":"v1","metadata":{"name":%q,"uid":"uid-%s"}}`, node, node)
		}
		_, _ = out.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	recorder = events.NewFakeRecorder(100)
	r = &Reporter{REST: client.CoreV1().RESTClient(), ConditionType: "NodeVerified", Events: recorder,
		ServerTime: func() time.Time { return time.Unix(1, 0) }, Timeout: time.Second, Limit: NewLimit(), Log: slog.New(slog.DiscardHandler)}
	return r, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return got
	}, recorder
}

func failed(nodes ...string) (plan fleet.Plan) {
	for _, name := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
		plan.Conditions = append(plan.Conditions, fleet.Condition{Node: node, Status: corev1.ConditionFalse, Reason: condition.ImagePull,
			Message: "no image", Event: true})
	}
	return plan
}

func TestFiveConditionsASecond(t *testing.T) {
	r, patches, recorder := start(t, func(string) int { return http.StatusOK })
	plan := failed("a", "b", "c", "d", "e", "f", "g", "h")
	again, err := r.Act(t.Context(), plan)
	require.NoError(t, err)
	assert.Positive(t, again)
	assert.Len(t, patches(), 5)
	require.Len(t, recorder.Events, 5)
	_, err = r.Act(t.Context(), plan) // at once
	require.NoError(t, err)
	assert.LessOrEqual(t, len(patches()), 6)
	assert.Contains(t, patches()[0], `"uid":"uid-`+patches()[0][:1]+`"`, "of no other node of that name")
	assert.Contains(t, patches()[0], `"status":"False"`)
	assert.Contains(t, <-recorder.Events, "NodeNotStarted ImagePull: no image")
}

// A node whose condition the API server refuses keeps no other waiting.
func TestRefusedCondition(t *testing.T) {
	r, patches, recorder := start(t, func(node string) int {
		if node == "good" {
			return http.StatusOK
		}
		return map[string]int{"gone": http.StatusNotFound, "another": http.StatusConflict}[node]
	})
	r.Limit = rate.NewLimiter(rate.Inf, 1)
	again, err := r.Act(t.Context(), failed("gone", "another", "good"))
	require.NoError(t, err)
	assert.Positive(t, again, "a 409 may be a heartbeat, which no decision follows")
	assert.Len(t, patches(), 3)
	assert.Len(t, recorder.Events, 1)

	r, patches, _ = start(t, func(node string) int {
		if node == "good" {
			return http.StatusOK
		}
		return http.StatusForbidden
	})
	r.Limit = rate.NewLimiter(rate.Inf, 1)
	_, err = r.Act(t.Context(), failed("bad", "good", "bad2"))
	require.Error(t, err)
	assert.Len(t, patches(), 3)
	again, err = r.Act(t.Context(), failed("good"))
	require.NoError(t, err)
	assert.Zero(t, again)
}

// cache has one node, with a False that is not so any more.
type cache struct{ client.Reader }

func (cache) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if list, isNodes := list.(*corev1.NodeList); isNodes {
		list.Items = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", Labels: map[string]string{"verified": "true"}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse, Reason: condition.NoPod.String()}}}}}
	}
	return nil
}

// server answers without a socket.
type server func(*http.Request) (*http.Response, error)

func (s server) RoundTrip(request *http.Request) (*http.Response, error) { return s(request) }

// A heartbeat of kubelet comes between the cache and the write. The fleet is quiet: nothing else changes.
func TestConflictInAQuietCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := 0
		core, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: server(func(*http.Request) (*http.Response, error) {
			code, body := http.StatusConflict, `{"kind":"Status","apiVersion":"v1","code":409,"reason":"Conflict"}`
			if written++; written > 1 {
				code, body = http.StatusOK, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"a","uid":"a"}}`
			}
			return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
		})})
		require.NoError(t, err)
		keys := nodepatch.Keys{TaintKey: "startup", Label: "verified", LabelValue: "true"}
		log := slog.New(slog.DiscardHandler)
		l := &loop.Loop{Cache: cache{}, Live: cache{}, Now: (&clock.Clock{Server: time.Now}).Now, Log: log,
			Settings: fleet.Settings{Rules: fleet.NewRules(&corev1.PodTemplateSpec{}, keys), Keys: keys, ConditionType: "NodeVerified",
				NotStartedAfter: 3 * time.Minute},
			Steps: []loop.Step{&Reporter{REST: core.CoreV1().RESTClient(), ConditionType: "NodeVerified", Events: new(events.FakeRecorder),
				ServerTime: time.Now, Timeout: 10 * time.Second, Limit: NewLimit(), Log: log}}}
		for again := time.Nanosecond; again > 0 && written < 2; time.Sleep(again) { // zero: until something changes
			result, err := l.Reconcile(t.Context(), reconcile.Request{})
			require.NoError(t, err)
			again = result.RequeueAfter
		}
		assert.Equal(t, 2, written, "a False that is not so any more is corrected")
	})
}
