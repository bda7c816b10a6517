package agent

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// replace deletes the node and creates it again with these taints.
func (a *fakeAPI) replace(taints []corev1.Taint) {
	a.edit(func(node *corev1.Node) {
		*node = *newSimulatedAPI(a.t).node
		node.UID, node.Spec.Taints = "uid-2", taints
	})
}

// The node is deleted and created again between the checks and the release: the new one has to pass by itself.
func TestNodeThatIsReplacedBeforeTheRelease(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			if request != patchNode || n != 1 {
				return false
			}
			api.edit(func(node *corev1.Node) { node.UID = "uid-2" })
			return answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict, "changed")
		})
		p := simulate(t, api, nil, nil, "--once")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Contains(t, api.node.Annotations[nodepatch.Annotation], `"attempts":{"api":3,"dns":3,"network":3,"service":3}`)
	})
}

// The same while the checks run: a read before the release finds it.
func TestNodeThatIsReplacedDuringTheChecks(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		network := func(ctx context.Context) (checks.Report, error) {
			time.Sleep(10 * time.Second)
			return passing(ctx)
		}
		p := simulate(t, api, network, nil, "--once")
		after(5 * time.Second)
		api.replace(api.node.Spec.Taints)
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		p.entry("node was deleted and created again: restarting the checks")
		assert.Equal(t, 2, attempts(t, api, "dns"))
	})
}

// The old Node has timed out. The new one waits for a foreign taint that stays, so that no round ends: it is reported and marked all
// the same, after its own INITIAL_TIMEOUT.
func TestReplacedNodeThatWaitsTimesOut(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(addTaint(corev1.Taint{Key: "cni.example/not-ready", Effect: corev1.TaintEffectNoSchedule}))
		taints := api.node.Spec.Taints
		p := simulate(t, api, nil, nil, "--on-timeout=taint,condition", "--wait-for-taints=cni.example/")
		after(initialTimeout + time.Minute)
		assert.Equal(t, []string{"False TaintsOfOthers"}, api.written())
		api.replace(taints)
		after(initialTimeout)
		assert.Len(t, api.written(), 1, "the new one has an INITIAL_TIMEOUT of its own")
		after(time.Minute)
		assert.Equal(t, []string{"False TaintsOfOthers", "False TaintsOfOthers"}, api.written())
		assert.Contains(t, api.taints(), "node-ready/failed")
		assert.Equal(t, []string{"NodeVerificationTimedOut", "NodeVerificationTimedOut"}, api.reasons())
		p.stop()
		p.wait()
	})
}
