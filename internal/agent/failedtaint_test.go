package agent

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
