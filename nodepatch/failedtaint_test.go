package nodepatch

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const failedKey = "node-ready/failed"

var failing = Keys{
	TaintKey: ourKey, FailedTaintKey: failedKey, Label: keys.Label, LabelValue: "true",
}

func taintsOf(node *corev1.Node) (list []string) {
	for _, taint := range node.Spec.Taints {
		list = append(list, taint.ToString())
	}
	return list
}

func newPatcher(s *server) *Patcher {
	return &Patcher{Node: s.client, Timeout: 3 * time.Second, Deadline: time.Minute}
}

func addFailedTaint(ctx context.Context, p *Patcher, r Keys, value string) error {
	_, err := p.AddFailedTaint(ctx, r, value)
	return err
}

func TestBuildFailedTaint(t *testing.T) {
	const (
		uid = `{"op":"test","path":"/metadata/uid","value":"uid-1"},{"op":"test","path":"/metadata/annotations","value":null}`
		add = `{"op":"add","path":"/spec/taints/-","value":{"key":"node-ready/failed","value":"dns","effect":"NoSchedule"}}`
	)
	at := func(i string) string {
		return `,{"op":"test","path":"/spec/taints/` + i + `/key","value":"node-ready/unverified"},{"op":"test","path":"/spec/taints/` + i + `/effect","value":"NoSchedule"},`
	}
	startup := ours(corev1.TaintEffectNoSchedule)
	for name, test := range map[string]struct {
		taints []corev1.Taint
		want   string
	}{
		"no list":           {want: "null"},
		"foreign ones only": {taints: []corev1.Taint{foreign("a"), foreign("b")}, want: "null"},
		"startup taint":     {taints: []corev1.Taint{startup}, want: "[" + uid + at("0") + add + "]"},
		"behind another":    {taints: []corev1.Taint{foreign("a"), startup, foreign("b")}, want: "[" + uid + at("1") + add + "]"},
	} {
		t.Run(name, func(t *testing.T) {
			node := asRead(&corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "uid-1"}, Spec: corev1.NodeSpec{Taints: test.taints}})
			text, err := json.Marshal(BuildFailedTaint(node, failing, "dns"))
			require.NoError(t, err)
			assert.Equal(t, test.want, string(text))
		})
	}
}

// Put on behind what others have put there, once, and taken off in the same patch that releases the node.
func TestFailThenOpen(t *testing.T) {
	node := newNode()
	node.Spec.Taints = []corev1.Taint{foreign("a"), ours(corev1.TaintEffectNoSchedule), foreign("b")}
	s := newServer(t, node)
	p := newPatcher(s)
	require.NoError(t, addFailedTaint(t.Context(), p, failing, "dns"))
	assert.Equal(t, []string{"a:NoSchedule", ourKey + "=true:NoSchedule", "b:NoSchedule", failedKey + "=dns:NoSchedule"}, taintsOf(s.node))
	require.NoError(t, addFailedTaint(t.Context(), p, failing, "api"))
	assert.Equal(t, []string{"GET", "PATCH", "GET"}, s.requests, "it is there already")
	assert.False(t, failing.IsVerified(s.node.Labels, asRead(s.node).Spec.Taints))

	require.NoError(t, release(t.Context(), p, asRead(s.node), failing))
	assert.Equal(t, []string{"GET", "PATCH", "GET", "PATCH"}, s.requests)
	assert.Equal(t, []string{"a:NoSchedule", "b:NoSchedule"}, taintsOf(s.node))
}

// A patch that is on its way when its time limit ends may arrive behind the one that releases the node: no agent would be left there to take
// that taint off.
func TestFailThatArrivesLate(t *testing.T) {
	for name, annotations := range map[string]map[string]string{"no annotations": nil, "foreign ones": {"a": "b"}, "released before": {Annotation: "{\"time\":0}"}} {
		t.Run(name, func(t *testing.T) {
			node := newNode()
			node.Annotations = annotations
			s := newServer(t, node)
			base := asRead(s.node)
			late, err := json.Marshal(BuildFailedTaint(base, failing, "dns"))
			require.NoError(t, err)
			require.NoError(t, release(t.Context(), newPatcher(s), base, failing))
			_, err = s.client.Patch(t.Context(), late)
			require.Error(t, err)
			assert.True(t, failing.IsVerified(s.node.Labels, asRead(s.node).Spec.Taints))

			base = asRead(s.node) // found unverified again, somehow
			late, err = json.Marshal(BuildFailedTaint(base, failing, "dns"))
			require.NoError(t, err)
			_, err = s.client.Patch(t.Context(), late)
			require.NoError(t, err)
		})
	}
}

// Where nobody has asked for it, a taint with that key is somebody else's.
func TestFailedTaintIsForeignWithoutPolicy(t *testing.T) {
	node := newNode()
	node.Spec.Taints = []corev1.Taint{ours(corev1.TaintEffectNoSchedule), foreign(failedKey)}
	s := newServer(t, node)
	require.NoError(t, release(t.Context(), newPatcher(s), asRead(s.node), keys))
	assert.Equal(t, []string{failedKey + ":NoSchedule"}, taintsOf(s.node))
	assert.True(t, keys.IsVerified(s.node.Labels, asRead(s.node).Spec.Taints))
}

// Only a node with the startup taint is ours to taint, at the moment of the patch.
func TestFailedTaintNeedsTheStartupTaint(t *testing.T) {
	node := newNode()
	drop(ourKey)(node)
	s := newServer(t, node)
	added, err := newPatcher(s).AddFailedTaint(t.Context(), failing, "dns")
	require.NoError(t, err)
	assert.False(t, added)
	assert.Equal(t, []string{"GET"}, s.requests)

	s = newServer(t, newNode())
	s.patching = func(n int, _ http.ResponseWriter) bool {
		if n == 1 { // removed between read and patch
			s.change(drop(ourKey))
		}
		return false
	}
	added, err = newPatcher(s).AddFailedTaint(t.Context(), failing, "dns")
	require.NoError(t, err)
	assert.False(t, added)
	assert.Equal(t, []string{"front:NoSchedule", "behind:NoSchedule"}, taintsOf(s.node))
	assert.Equal(t, []string{"GET", "PATCH", "GET"}, s.requests)
}

func TestRemoveFailedTaint(t *testing.T) {
	node := newNode()
	node.Spec.Taints = []corev1.Taint{foreign("a"), foreign(failedKey), foreign("b")}
	s := newServer(t, node)
	require.NoError(t, newPatcher(s).RemoveFailedTaint(t.Context(), asRead(s.node), failing))
	assert.Equal(t, []string{"a:NoSchedule", "b:NoSchedule"}, taintsOf(s.node))
	assert.NotContains(t, s.node.Labels, failing.Label)
}

// The Node was read before the failed taint came: the patch leaves it, and the next takes it off.
func TestFailedTaintThatCameMeanwhile(t *testing.T) {
	node := newNode()
	node.Spec.Taints = []corev1.Taint{ours(corev1.TaintEffectNoSchedule)}
	s := newServer(t, node)
	base := asRead(s.node)
	require.NoError(t, addFailedTaint(t.Context(), newPatcher(s), failing, "dns"))
	require.NoError(t, release(t.Context(), newPatcher(s), base, failing))
	assert.Empty(t, s.node.Spec.Taints)
}

func TestFailOnAnotherNode(t *testing.T) {
	s := newServer(t, newNode())
	s.patching = func(int, http.ResponseWriter) bool {
		s.change(func(node *corev1.Node) { node.UID = "uid-2" })
		return false
	}
	require.ErrorIs(t, addFailedTaint(t.Context(), newPatcher(s), failing, "dns"), ErrReplaced)
	assert.NotContains(t, taintsOf(s.node), failedKey+"=dns:NoSchedule")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, addFailedTaint(ctx, newPatcher(s), failing, "dns"), context.Canceled)
}

func TestSetCondition(t *testing.T) {
	before := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	node := newNode()
	node.UID = "uid-1"
	node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: "False", LastTransitionTime: before}}
	s := newServer(t, node)
	for _, test := range []struct {
		status string
		stays  bool // the time of the last transition
	}{{"False", true}, {"True", false}} {
		patched, err := s.client.SetCondition(t.Context(), asRead(s.node), Condition{Type: "NodeVerified", Status: test.status, Reason: "R", Message: "m"}, time.Time{})
		require.NoError(t, err)
		assert.Equal(t, asRead(s.node), patched, "as the API server answers")
		var sent struct {
			Metadata struct{ UID string }
			Status   struct{ Conditions []corev1.NodeCondition }
		}
		require.NoError(t, json.Unmarshal([]byte(s.bodies[len(s.bodies)-1]), &sent))
		assert.Equal(t, "uid-1", sent.Metadata.UID)
		require.Len(t, sent.Status.Conditions, 1)
		condition := sent.Status.Conditions[0]
		assert.Equal(t, corev1.NodeConditionType("NodeVerified"), condition.Type)
		assert.Equal(t, corev1.ConditionStatus(test.status), condition.Status)
		assert.Equal(t, "R", condition.Reason)
		assert.Equal(t, "m", condition.Message)
		assert.Equal(t, test.stays, condition.LastTransitionTime.Equal(&before), "%v", condition.LastTransitionTime)
		assert.WithinDuration(t, time.Now(), condition.LastHeartbeatTime.Time, time.Minute)
	}
	assert.NotContains(t, s.bodies[0], "annotations")
	assert.NotContains(t, s.bodies[0], "resourceVersion")
	s.client.Record, s.client.IfUnchanged = "a record", true
	_, err := s.client.SetCondition(t.Context(), asRead(s.node), Condition{Type: "NodeVerified", Status: "False"}, time.Time{})
	require.NoError(t, err)
	assert.Contains(t, s.bodies[2], `"annotations":{"node-ready/verification":"a record"},"resourceVersion":"`+s.node.ResourceVersion+`"`)
	assert.Equal(t, "/api/v1/nodes/"+node.Name+"/status", s.paths[0])
	assert.Equal(t, string(types.StrategicMergePatchType), s.headers[0].Get("Content-Type"))
}
