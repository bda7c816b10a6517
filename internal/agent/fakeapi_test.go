package agent

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/apitest"
)

const (
	getNode   = "GET /api/v1/nodes/node1"
	getCached = "GET /api/v1/nodes/node1?resourceVersion=0"
	patchNode = "PATCH /api/v1/nodes/node1"
	patchStat = "PATCH /api/v1/nodes/node1/status"
	postEvent = "POST /api/v1/namespaces/default/events"
	getSlices = "GET /apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkube-dns&resourceVersion=0"
	getPods   = "GET /api/v1/namespaces/gpu/pods?fieldSelector=spec.nodeName%3Dnode1&resourceVersion=0"
	getAPI    = "GET /api"
)

var answerStatus = apitest.AnswerStatus

// fakeAPI is an API server of one node, over TLS, that answers what the agent asks and nothing else.
type fakeAPI struct {
	t          *testing.T
	server     *httptest.Server
	kubeconfig string

	mu       sync.Mutex
	node     *corev1.Node
	slices   []discoveryv1.EndpointSlice
	pods     []corev1.Pod // of the node, in the namespace gpu
	requests []string
	events   []corev1.Event
	// conditions are those that were written, in order: package nodepatch and the end-to-end tests prove what becomes of them.
	conditions []corev1.NodeCondition
	before     interceptor // see intercept
}

// An interceptor sees the nth request of its kind (from 1) and may answer it: then it returns true.
type interceptor func(request string, n int, w http.ResponseWriter, r *http.Request) bool

// intercept shows every request from now on to before, also while an agent runs.
func (a *fakeAPI) intercept(before interceptor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.before = before
}

// intercepted returns what sees the requests now: nil for none.
func (a *fakeAPI) intercepted() interceptor {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.before
}

// newSimulatedAPI returns one without a socket: see simulation_test.go.
func newSimulatedAPI(t *testing.T) *fakeAPI {
	return &fakeAPI{t: t, node: &corev1.Node{
		TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "node1", UID: "uid-1", ResourceVersion: "1", CreationTimestamp: metav1.Now(),
			Labels: map[string]string{"kubernetes.io/os": "linux"},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "foreign/front", Effect: corev1.TaintEffectNoExecute},
			{Key: "node-ready/unverified", Value: "true", Effect: corev1.TaintEffectNoSchedule},
			{Key: "foreign/behind", Effect: corev1.TaintEffectNoSchedule},
		}},
	}}
}

func newFakeAPI(t *testing.T) *fakeAPI {
	a := newSimulatedAPI(t)
	a.server = httptest.NewUnstartedServer(a)
	a.server.Config.ErrorLog = log.New(io.Discard, "", 0) // the network check hangs up on TLS
	a.server.StartTLS()
	t.Cleanup(a.server.Close)

	ca, err := json.Marshal(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw}))
	require.NoError(t, err)
	a.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(a.kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %s}}],
		"users": [{"name": "u", "user": {"token": "secret"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, a.server.URL, ca), 0o600))
	return a
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	assert.NoError(a.t, err)
	assert.Equal(a.t, "Bearer secret", r.Header.Get("Authorization"))
	assert.Equal(a.t, "kube-node-ready/dev", r.Header.Get("User-Agent"))
	r.Body = io.NopCloser(bytes.NewReader(body)) // for before
	request := r.Method + " " + r.URL.RequestURI()

	a.mu.Lock()
	a.requests = append(a.requests, request)
	n := 0
	for _, other := range a.requests {
		if other == request {
			n++
		}
	}
	before := a.before
	a.mu.Unlock()
	if before != nil && before(request, n, w, r) {
		return
	}
	a.answer(w, request, body)
}

// answer answers a request as the API server does.
func (a *fakeAPI) answer(w http.ResponseWriter, request string, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch request {
	case getNode, getCached:
		apitest.Answer(w, http.StatusOK, a.node)
	case patchNode:
		patched, err := apitest.Patch(a.node, body)
		if err != nil {
			answerStatus(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, err.Error())
			return
		}
		patched.ResourceVersion += "+"
		a.node = patched
		apitest.Answer(w, http.StatusOK, a.node)
	case patchStat:
		var patch corev1.Node
		assert.NoError(a.t, json.Unmarshal(body, &patch))
		if a.node.UID != patch.UID {
			answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict, "uid")
			return
		}
		if patch.ResourceVersion != "" && a.node.ResourceVersion != patch.ResourceVersion {
			answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
			return
		}
		a.conditions = append(a.conditions, patch.Status.Conditions...)
		node := a.node.DeepCopy()
		node.ResourceVersion += "+"
		for key, value := range patch.Annotations {
			node.Annotations[key] = value
		}
		for _, condition := range patch.Status.Conditions {
			node.Status.Conditions = append(slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == condition.Type }), condition)
		}
		a.node = node
		apitest.Answer(w, http.StatusOK, a.node)
	case postEvent:
		var event corev1.Event
		assert.NoError(a.t, json.Unmarshal(body, &event))
		a.events = append(a.events, event)
		apitest.Answer(w, http.StatusCreated, event)
	case getSlices:
		apitest.Answer(w, http.StatusOK, discoveryv1.EndpointSliceList{
			TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}, Items: a.slices})
	case getPods:
		apitest.Answer(w, http.StatusOK, corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: a.pods})
	case getAPI:
		apitest.Answer(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	default:
		a.t.Errorf("unexpected request: %s", request)
		answerStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such path")
	}
}

// edit is what another client does to the Node.
func (a *fakeAPI) edit(change func(*corev1.Node)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := a.node.DeepCopy()
	node.ResourceVersion += "+"
	change(node)
	a.node = node
}

// addTaint is a change for edit.
func addTaint(taint corev1.Taint) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Spec.Taints = append(node.Spec.Taints, taint) }
}

// removeTaint is a change for edit.
func removeTaint(key string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
	}
}

// reads is how often the node has been read, from etcd or from the cache.
func (a *fakeAPI) reads() (n int) {
	for _, request := range a.seen() {
		if isRead(request) {
			n++
		}
	}
	return n
}

func isRead(request string) bool { return request == getNode || request == getCached }

func (a *fakeAPI) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

func (a *fakeAPI) reasons() (list []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, event := range a.events {
		list = append(list, event.Reason)
	}
	return list
}

// written lists the conditions that were written, each as its status and reason.
func (a *fakeAPI) written() (list []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, condition := range a.conditions {
		list = append(list, string(condition.Status)+" "+condition.Reason)
	}
	return list
}

func (a *fakeAPI) taints() (keys []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, taint := range a.node.Spec.Taints {
		keys = append(keys, taint.Key)
	}
	return keys
}
