package nodecheck

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/hack/apitest"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/requirement"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// server answers lists of pods: the namespace system has a ready pod of the DaemonSet cni, other namespaces are forbidden.
type server struct {
	client   *kube.Client
	requests []string
}

func newServer(t *testing.T) *server {
	s := new(server)
	http := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests = append(s.requests, r.URL.Path+" "+r.URL.Query().Get("fieldSelector"))
		if r.URL.Path != "/api/v1/namespaces/system/pods" {
			apitest.AnswerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no Role")
			return
		}
		apitest.Answer(w, http.StatusOK, corev1.PodList{Items: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "cni-1", OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "cni"}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}}})
	}))
	t.Cleanup(http.Close)
	var err error
	s.client, err = kube.NewClient(&rest.Config{Host: http.URL})
	require.NoError(t, err)
	return s
}

func (s *server) check(t *testing.T, require string) Requirements {
	r := Requirements{Client: s.client, Timeout: time.Minute}
	assert.NoError(t, r.List.Parse(require))
	node := &nodepatch.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{"zone": "a"}}}
	r.Node = func(context.Context) (*nodepatch.Node, error) { return node, nil }
	return r
}

func TestNamesEachUnmetRequirement(t *testing.T) {
	s := newServer(t)
	r := s.check(t, `[{"daemonSet":"system/cni"},{"daemonSet":"system/csi"},{"label":"zone"},{"label":"pool"},{"label":"gpu","on":{"zone":"b"}}]`)
	_, err := r.Try(t.Context())
	require.EqualError(t, err, "daemonSet system/csi: the node has none; label pool: the node has none")
	assert.NotEmpty(t, checks.Remedy(err))
	assert.Equal(t, []string{"/api/v1/namespaces/system/pods spec.nodeName=node1"}, s.requests, "one list of each namespace")
	node, _ := r.Node(t.Context())
	assert.Contains(t, r.Unmet(t.Context(), node), "node: daemonSet system/csi: the node has none; label pool: the node has none (check ")
}

func TestNothingIsProvenWithoutANode(t *testing.T) {
	r := newServer(t).check(t, `[{"label":"zone"}]`)
	report, err := r.Try(t.Context())
	require.NoError(t, err)
	assert.Equal(t, checks.Report{Detail: "label zone"}, report)
	r.Node = func(context.Context) (*nodepatch.Node, error) { return nil, nil }
	report, err = r.Try(t.Context())
	require.NoError(t, err)
	assert.Equal(t, checks.Report{Skipped: "the node was not read"}, report)
}

// A recheck counts only what the node has met, and learns what it meets. A list that is forbidden since proves nothing.
func TestRecheckCountsWhatWasMet(t *testing.T) {
	r := newServer(t).check(t, `[{"label":"zone"},{"label":"pool"},{"label":"never"},{"csiDriver":"d"},{"daemonSet":"other/cni"}]`)
	r.Met = map[string]bool{"label pool": true, "csiDriver d": true, "daemonSet other/cni": true}
	_, err := r.Try(t.Context())
	require.EqualError(t, err, "label pool: the node has none")
	assert.Equal(t, map[string]bool{"label zone": true, "label pool": false, "csiDriver d": true, "daemonSet other/cni": true}, r.Met)
	delete(r.Met, "label pool")
	report, err := r.Try(t.Context())
	require.NoError(t, err)
	assert.True(t, report.IsUnknown)
	require.Len(t, report.Warnings, 1)
	assert.Contains(t, report.Warnings[0], "daemonSet other/cni: cannot list the node's pods: ")
}

func TestAndAddsTheCheckIfAnythingIsRequired(t *testing.T) {
	assert.Empty(t, Requirements{}.And(nil))
	assert.Len(t, Requirements{List: requirement.List{{}}}.And(nil), 1)
}
