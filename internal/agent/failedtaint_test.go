package agent

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The failed taint of a container that has ended is removed by the next one, with the startup taint.
func TestFailedTaintOfAnEarlierContainer(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(addTaint(corev1.Taint{Key: "example.com/bad", Value: "dns", Effect: corev1.TaintEffectNoSchedule}))
		p := simulate(t, api, nil, nil, "--once", "--on-timeout=taint", "--failed-taint-key=example.com/bad")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Equal(t, untainted, api.taints())
		assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
	})
}

// Somebody removes the startup taint by hand while the checks fail: the failed taint is removed too.
func TestFailedTaintGoesWithTheStartupTaint(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, _ := simulateFailing(t, api, "--on-timeout=taint")
		after(initialTimeout)
		p.entry("node marked as failed")
		api.edit(removeTaint("node-ready/unverified"))
		p.logged("failed taint removed: the node has no startup taint")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		assert.Equal(t, untainted, api.taints())
		assert.NotContains(t, api.node.Labels, "node-ready/verified")
	})
}

// No check has failed where the patch is refused, and the taint says so.
func TestFailedTaintWhileThePatchIsRefused(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.intercept(func(request string, _ int, w http.ResponseWriter, r *http.Request) bool {
			if request != patchNode {
				return false
			}
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			r.Body = io.NopCloser(bytes.NewReader(body))
			return bytes.Contains(body, []byte("/metadata/labels/")) && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "denied by policy")
		})
		p := simulate(t, api, nil, nil, "--on-timeout=taint")
		after(initialTimeout)
		p.entry("node marked as failed")
		p.stop()
		p.wait()
		assert.Equal(t, append(tainted, "node-ready/failed"), api.taints())
		assert.Equal(t, "unverified", api.node.Spec.Taints[3].Value)
	})
}
