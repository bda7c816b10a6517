package nodepatch

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/imunhatep/kube-node-ready/hack/apitest"
)

var answerStatus = apitest.AnswerStatus

// asRead is what the agent knows of a Node.
func asRead(node *corev1.Node) *Node {
	text, err := json.Marshal(node)
	if err != nil {
		panic(err)
	}
	read := new(Node)
	if err := json.Unmarshal(text, read); err != nil {
		panic(err)
	}
	return read
}

// server answers GET and PATCH of one Node as the API server does.
type server struct {
	t      *testing.T
	client Client

	mu       sync.Mutex
	node     *corev1.Node
	requests []string      // the methods, in order
	paths    []string      // of the same
	headers  []http.Header // of the same
	bodies   []string      // of the patches
	// patching and getting see the nth request (from 1) of their kind before it is answered, and
	// may answer it themselves: then they return true.
	patching, getting func(n int, w http.ResponseWriter) bool
	// patched edits the Node after each patch, as an admission webhook does.
	patched func(*corev1.Node)
}

func newServer(t *testing.T, node *corev1.Node) *server {
	s := &server{t: t, node: node}
	http := httptest.NewServer(s)
	t.Cleanup(http.Close)

	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	client, err := rest.RESTClientFor(&rest.Config{
		Host: http.URL, APIPath: "/api",
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &corev1.SchemeGroupVersion,
			NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
		},
	})
	require.NoError(t, err)
	s.client = Client{REST: client, Name: node.Name}
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	assert.NoError(s.t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests, s.headers = append(s.requests, r.Method), append(s.headers, r.Header)
	s.paths = append(s.paths, r.URL.String())
	if want := "/api/v1/nodes/" + s.node.Name; strings.TrimSuffix(r.URL.Path, "/status") != want {
		answerStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such path: "+r.URL.String())
		return
	}
	hook := s.getting
	if r.Method == http.MethodPatch {
		s.bodies = append(s.bodies, string(body))
		hook = s.patching
	}
	if hook != nil && hook(s.count(r.Method), w) {
		return
	}
	if r.Method == http.MethodPatch && !strings.HasSuffix(r.URL.Path, "/status") {
		if err := s.apply(body); err != nil {
			answerStatus(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, err.Error())
			return
		}
	}
	apitest.Answer(w, http.StatusOK, s.node)
}

func (s *server) count(method string) (n int) {
	for _, m := range s.requests {
		if m == method {
			n++
		}
	}
	return n
}

// change is what another client does to the Node.
func (s *server) change(edit func(*corev1.Node)) {
	edit(s.node)
	version, _ := strconv.Atoi(s.node.ResourceVersion)
	s.node.ResourceVersion = strconv.Itoa(version + 1)
}

// apply patches the Node.
func (s *server) apply(patch []byte) error {
	patched, err := apitest.Patch(s.node, patch)
	if err != nil {
		return err
	}
	s.change(func(*corev1.Node) {})
	patched.ResourceVersion = s.node.ResourceVersion
	if s.patched != nil {
		s.patched(patched)
	}
	s.node = patched
	return nil
}

// askToWait is a 429, said twice: in the header for the client, in the body for who reads the error.
func askToWait(w http.ResponseWriter, seconds int32) bool {
	w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
	apitest.Answer(w, http.StatusTooManyRequests, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: "the server's message", Details: &metav1.StatusDetails{RetryAfterSeconds: seconds},
	})
	return true
}

// hangUp closes the connection in place of an answer.
func hangUp(w http.ResponseWriter) bool {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
	return true
}
