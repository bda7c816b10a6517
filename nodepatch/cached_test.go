package nodepatch

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// The Node changes after it came into the cache.
func TestReleaseCached(t *testing.T) {
	append1 := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, foreign(key)) }
	}
	label := func(n *corev1.Node) { n.Labels[keys.Label] = keys.LabelValue }
	unlabel := func(n *corev1.Node) { delete(n.Labels, keys.Label) }
	again := func(n *corev1.Node) { n.Annotations = map[string]string{Annotation: `{"by":"another"}`} }
	for name, test := range map[string]struct {
		base     func(*corev1.Node)
		change   func(*corev1.Node)
		lost     bool // the answer to the first patch
		requests string
		err      error
		taints   string
	}{
		"unchanged":                            {requests: "PATCH", taints: "front behind"},
		"a heartbeat":                          {change: heartbeat, requests: "PATCH GET PATCH", taints: "front behind"},
		"a foreign taint at the end":           {change: append1("cni/off"), requests: "PATCH GET", err: ErrBlocked, taints: "front node-ready/unverified behind cni/off"},
		"a taint that is not waited for":       {change: append1("other"), requests: "PATCH GET PATCH", taints: "front behind other"},
		"started again":                        {change: func(n *corev1.Node) { n.Status.NodeInfo.BootID = "second" }, requests: "PATCH GET", err: ErrOutdated, taints: "front node-ready/unverified behind"},
		"released, and to be verified again":   {change: again, requests: "PATCH GET", err: ErrOutdated, taints: "front node-ready/unverified behind"},
		"released, and the taint was put back": {change: func(n *corev1.Node) { again(n); label(n) }, requests: "PATCH GET PATCH", taints: "front behind"},
		"put back, and the label is removed":   {base: label, change: unlabel, requests: "PATCH GET", err: ErrOutdated, taints: "front node-ready/unverified behind"},
		"deleted and created again":            {change: func(n *corev1.Node) { n.UID = "uid-2" }, requests: "PATCH GET", err: ErrReplaced, taints: "front node-ready/unverified behind"},
		"the answer was lost":                  {lost: true, requests: "PATCH", taints: "front behind"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, newNode())
			s.node.Status.NodeInfo.BootID = "first"
			if test.base != nil {
				s.change(test.base)
			}
			base := asRead(s.node)
			if test.change != nil {
				s.change(test.change)
			}
			s.patching = func(n int, w http.ResponseWriter) bool {
				if !test.lost || n > 1 {
					return false
				}
				assert.NoError(t, s.apply([]byte(s.bodies[0])))
				return answerStatus(w, http.StatusInternalServerError, "", "lost")
			}
			r := Release{Keys: keys, Value: fixed("{}")}
			r.Keys.WaitFor = []string{"cni/"}
			p := &Patcher{Node: s.client, Timeout: time.Minute, Deadline: time.Hour}
			released, removed, err := p.ReleaseCached(t.Context(), base, r)
			if test.lost {
				require.ErrorContains(t, err, "lost", "the caller tries again")
			} else {
				require.ErrorIs(t, err, test.err)
			}
			if err == nil {
				assert.Equal(t, s.node.ResourceVersion, released.ResourceVersion)
				assert.Len(t, removed, 1)
			}
			assert.Equal(t, test.requests, strings.Join(s.requests, " "))
			var keys []string
			for _, taint := range s.node.Spec.Taints {
				keys = append(keys, taint.Key)
			}
			assert.Equal(t, test.taints, strings.Join(keys, " "))
		})
	}
}
