package agent

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStopBeforeVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		at   int // which read of the node
		args []string
		want []string
		code int
	}{
		"at the first request":      {at: 1, want: []string{getNode}},
		"in a check":                {at: 2, want: []string{getNode, getNode}},
		"in a check, with a linger": {at: 2, args: []string{"--metrics-linger=1h"}, want: []string{getNode, getNode}},
		"in a check, with --once":   {at: 2, args: []string{"--once"}, want: []string{getNode, getNode}, code: exitNotVerified},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.intercept(func(_ string, n int, w http.ResponseWriter, r *http.Request) bool {
					if n < test.at { // so that the api check reads the node itself
						return answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "not now")
					}
					<-r.Context().Done() // the agent gives up
					return true
				})
				start := time.Now()
				p := simulate(t, api, nil, nil, test.args...)
				synctest.Wait()
				p.stop()
				assert.Equal(t, test.code, p.wait())
				assert.Zero(t, time.Since(start))
				assert.Equal(t, test.want, api.seen())
				assert.Equal(t, tainted, api.taints())
				assert.NotContains(t, p.stderr.String(), "serving final metrics", "there are none to wait for")
			})
		})
	}
}

// A young node without the taint is not labelled yet, and SIGTERM ends the wait for it.
func TestStopWhileWaitingForTheStartupTaint(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.node.Spec.Taints = nil
		start := time.Now()
		p := simulate(t, api, nil, nil, "--log-level=debug")
		synctest.Wait()
		p.entry("waiting for the startup taint")
		p.stop()
		assert.Equal(t, exitOK, p.wait())
		assert.Zero(t, time.Since(start))
		assert.Equal(t, []string{getNode}, api.seen())
		assert.NotContains(t, p.stderr.String(), "node not verified", "nothing has failed")
	})
}

// addStartupTaint is what a client does that has read the node before the release and writes the whole list after it.
func (a *fakeAPI) addStartupTaint() {
	a.edit(addTaint(corev1.Taint{Key: "node-ready/unverified", Value: "true", Effect: corev1.TaintEffectNoSchedule}))
}

// What an earlier verification has proven still counts after the node was found verified again.
func TestTaintThatIsBackAfterAnotherVerification(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p := simulate(t, api, nil, nil)
		synctest.Wait()
		api.addStartupTaint()
		reads := 0
		api.intercept(func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
			if request == getNode {
				reads++
			}
			if reads == 2 { // the first one of the next verification
				api.edit(removeTaint("node-ready/unverified"))
			}
			return false
		})
		after(holdInterval + time.Second)
		p.entry("node is already verified")
		api.addStartupTaint()
		p.terminate()
		assert.Equal(t, exitOK, p.wait())
		assert.Equal(t, untainted, api.taints())
	})
}

// The startup taint is back when the pod shuts down, or at the end of the linger: no agent would be left to notice.
func TestTaintThatIsBackAtTheEnd(t *testing.T) {
	for name, test := range map[string]struct {
		args  []string
		late  bool // during the linger
		edit  func(*corev1.Node)
		stays bool
	}{
		"at SIGTERM":            {},
		"during the linger":     {args: []string{"--metrics-linger=10s"}, late: true},
		"the label is gone":     {edit: func(n *corev1.Node) { delete(n.Labels, "node-ready/verified") }, stays: true},
		"another node":          {edit: func(n *corev1.Node) { n.UID = "uid-2" }, stays: true},
		"it is being deleted":   {edit: func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.Now()) }, stays: true},
		"the label has another": {edit: func(n *corev1.Node) { n.Labels["node-ready/verified"] = "false" }, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				p := simulate(t, api, nil, nil, test.args...)
				synctest.Wait()
				p.entry("node verified")
				if test.late {
					p.terminate()
					after(time.Second)
					p.entry("shutting down: serving final metrics")
				}
				api.addStartupTaint()
				if test.edit != nil {
					api.edit(test.edit)
				}
				p.terminate()
				assert.Equal(t, exitOK, p.wait())
				if test.stays {
					assert.Contains(t, api.taints(), "node-ready/unverified")
					return
				}
				assert.Equal(t, untainted, api.taints())
				assert.Equal(t, []any{"node-ready/unverified=true:NoSchedule"}, p.entry("startup taint was added again after the release: removed it")["taints"])
			})
		})
	}
}

// lost applies a request, and loses its answer.
func (a *fakeAPI) lost(w http.ResponseWriter, r *http.Request) bool {
	before := a.intercepted()
	a.intercept(nil)
	a.ServeHTTP(httptest.NewRecorder(), r)
	a.intercept(before)
	return answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "not now")
}

// The answer to the release is lost, and the label brings SIGTERM before the node is read again: the condition, which a refused release
// has made False again, is corrected.
func TestConditionAfterAReleaseWhoseAnswerIsLost(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, network := simulateFailing(t, api, "--on-timeout=condition")
		after(initialTimeout)
		api.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
			switch {
			case request != patchNode:
				return false
			case n == 1:
				return answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "a webhook")
			}
			p.terminate()
			return api.lost(w, r)
		})
		network.recovered.Store(true)
		p.wait()
		assert.Equal(t, untainted, api.taints())
		assert.Equal(t, []string{"False NetworkFailed", "True Verified", "False NotVerified", "True Verified"}, api.written())
	})
}

// The answer to the release is lost, and a client that had read the node before puts all taints back: the label keeps the next agent
// away, so this one removes the startup taint again, although a foreign taint is back, too.
func TestAllTaintsAreBackAfterTheRelease(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		var p *process
		api.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
			if request != patchNode || n != 1 {
				return false
			}
			lost := api.lost(w, r)
			api.addStartupTaint()
			api.edit(addTaint(cilium))
			return lost
		})
		p = simulate(t, api, nil, nil, "--wait-for-taints=node.cilium.io/")
		after(time.Second)
		p.stop()
		p.wait()
		assert.Equal(t, append(untainted, cilium.Key), api.taints())
	})
}
