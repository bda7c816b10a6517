package breaker

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const failedTaint = "node-ready/failed"

func settings() Settings {
	return Settings{NodeName: "controller", ControlGroupFor: 10 * time.Minute,
		Fleet: fleet.Settings{Keys: nodepatch.Keys{TaintKey: "node-ready/unverified", FailedTaintKey: failedTaint}}}
}

func node(name string, state fleet.State) fleet.Status {
	return fleet.Status{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, Finding: fleet.Finding{State: state}}
}

// Where that many verified nodes fail, the fault is not the nodes'.
func TestTooManyFail(t *testing.T) {
	for nodes, enough := range map[int]int{3: 3, 10: 3, 39: 3, 40: 4, 200: 20} {
		for failed := range nodes + 1 {
			var statuses []fleet.Status
			for i := range nodes {
				status := node(fmt.Sprint(i), fleet.Verified)
				switch {
				case i >= failed: // a drained node that fails says nothing new
					status.Recheck.Failed, status.Untouchable = i%2 == 0, "it is cordoned"
				case i%2 == 0:
					status.Recheck.Failed = true
				default: // a re-tainted node that is drained does: it is drained because of the taint
					status.Retainted, status.Untouchable = true, "it is cordoned"
				}
				statuses = append(statuses, status)
			}
			text := TooManyFail(statuses)
			assert.Equal(t, failed >= enough, text != "", "%d of %d nodes", failed, nodes)
			if text != "" {
				assert.Contains(t, text, fmt.Sprintf("%d of %d nodes fail their rechecks now or are re-tainted (0, 1, 2, ...): there must be "+
					"fewer than %d", failed, nodes, enough))
			}
		}
	}
}

func TestControlNode(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*fleet.Status)
		text   string
	}{
		"verified":              {func(s *fleet.Status) { s.State = fleet.Verified }, ""},
		"never gated":           {func(*fleet.Status) {}, ""},
		"waits for its agent":   {func(s *fleet.Status) { s.Gated = true }, "is not verified (InProgress)"},
		"failed":                {func(s *fleet.Status) { s.State = fleet.Failed }, "is not verified (Failed)"},
		"with the failed taint": {func(s *fleet.Status) { s.Node.Spec.Taints = []corev1.Taint{{Key: failedTaint}} }, "is not verified (InProgress)"},
		"fails its rechecks":    {func(s *fleet.Status) { s.State, s.Recheck.Failed = fleet.Verified, true }, "fails its rechecks"},
	} {
		own := node("controller", fleet.InProgress)
		test.change(&own)
		want := ""
		if test.text != "" {
			want = "the controller's own node controller " + test.text
		}
		assert.Equal(t, want, settings().OwnNode([]fleet.Status{own}), name)
	}
}

// A control group that has not passed for long enough has not failed: the controller has just started.
func TestControlGroup(t *testing.T) {
	start := time.Now()
	now, began := clock.At(start, start), clock.At(start.Add(-10*time.Minute+time.Second), start).Mark()
	group := baseline.State{PassedSince: began, Ended: now.Mark()}
	assert.Equal(t, "the checks have passed in the controller's pod for 9m59s, but must pass there for 10m0s first", settings().NotProvenFor(0, group, now))
	assert.Empty(t, settings().FailingLately(group, now))
	group.Failure = "dns: timeout"
	assert.Contains(t, settings().FailingLately(group, now), "; the last failure: dns: timeout")
	group.PassedSince = clock.At(start.Add(-10*time.Minute), start).Mark()
	assert.Empty(t, settings().FailingLately(group, now))
	assert.NotEmpty(t, settings().NotProvenFor(time.Second, group, now))
}
