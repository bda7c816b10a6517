package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

var cilium = corev1.Taint{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}

// attempts is how often the annotation says that a check was tried.
func attempts(t *testing.T, api *fakeAPI, check string) int {
	var verification struct{ Attempts map[string]int }
	require.NoError(t, json.Unmarshal([]byte(api.node.Annotations[nodepatch.Annotation]), &verification))
	return verification.Attempts[check]
}

// onRead calls change before the nth read of the node is answered, which change may do itself: then it returns true.
func (a *fakeAPI) onRead(change func(n int, w http.ResponseWriter) bool) {
	a.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		return isRead(request) && change(a.reads(), w)
	})
}

// Nothing is checked before foreign taints are gone, and the wait costs etcd no read.
func TestWaitForTaints(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(addTaint(cilium))
		api.onRead(func(n int, _ http.ResponseWriter) bool {
			if n == 3 { // Cilium is done
				api.edit(removeTaint(cilium.Key))
			}
			return false
		})
		p := simulate(t, api, nil, nil, "--once", "--wait-for-taints=example.com/,node.cilium.io/")
		synctest.Wait()
		assert.Equal(t, "node.cilium.io/agent-not-ready:NoSchedule", p.entry("waiting for foreign taints")["taint"])
		assert.NotContains(t, p.stderr.String(), "check passed")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Equal(t, []string{getNode, getCached, getCached, getNode, getNode, patchNode, postEvent}, api.seen(),
			"waiting costs etcd nothing; the api check and the release do")
		assert.Equal(t, untainted, api.taints())
	})
}

// A foreign taint that is read in the middle of a round, and is gone before its end: what passed beside it proves nothing.
func TestForeignTaintInTheMiddleOfARound(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		rounds := 0
		network := func(ctx context.Context) (checks.Report, error) {
			switch rounds++; rounds {
			case 1:
				api.edit(addTaint(cilium))
				return checks.Report{}, errBroken
			case 2:
				api.edit(removeTaint(cilium.Key))
				time.Sleep(4 * time.Second)
			}
			return passing(ctx)
		}
		p := simulate(t, api, network, nil, "--once", "--max-retries=0", "--check-timeout=10s", "--wait-for-taints="+cilium.Key)
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Equal(t, 3, attempts(t, api, "dns"))
	})
}

// INITIAL_TIMEOUT also runs while the agent waits, and the report says what it waits for.
func TestWaitForTaintsTimesOut(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		start := time.Now()
		p := simulate(t, api, nil, nil, "--once", "--wait-for-taints=foreign/", "--on-timeout=condition")
		assert.Equal(t, exitNotVerified, p.wait())
		assert.Equal(t, initialTimeout, time.Since(start))
		const message = "not verified within 5m0s: taints: the taint foreign/front:NoExecute is still on the node (WAIT_FOR_TAINTS)"
		assert.Equal(t, message, p.entry("initial timeout exceeded")["reason"])
		require.Len(t, api.conditions, 1)
		assert.Equal(t, "TaintsOfOthers", api.conditions[0].Reason)
		assert.Equal(t, message, api.conditions[0].Message)
		assert.Equal(t, tainted, api.taints())
	})
}

// The node cannot be read while the agent waits: the checks say why, and the api check reads the node itself.
func TestReadThatFailsWhileWaiting(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(addTaint(cilium))
		api.onRead(func(n int, w http.ResponseWriter) bool {
			if n != 2 {
				return false
			}
			api.edit(removeTaint(cilium.Key))
			return answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "not now")
		})
		p := simulate(t, api, nil, nil, "--once", "--wait-for-taints=node.cilium.io/", "--check-timeout=1m")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Equal(t, []string{getNode, getCached, getNode, getNode, getNode, patchNode, postEvent}, api.seen())
		assert.Equal(t, untainted, api.taints())
	})
}

// INITIAL_TIMEOUT passes while the agent waits for a taint that may be added late: it reports that, and does not mark a node that
// passes, also where the taint was added a moment ago.
func TestNoMarkerWhileTheStartupTaintIsWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		comes  bool
		at     time.Duration // when the node is verified, at the latest
		taints []string      // then
	}{
		"and does not come": {comes: false, at: 10 * time.Minute},
		"and comes":         {true, initialTimeout + 10*time.Second, untainted},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				late := api.node.Spec.Taints
				api.node.Spec.Taints = nil
				p := simulate(t, api, nil, nil, "--on-timeout=taint,condition", "--late-taint-window=10m")
				after(initialTimeout - time.Millisecond)
				if test.comes {
					api.edit(func(node *corev1.Node) { node.Spec.Taints = late })
				}
				after(time.Millisecond)
				assert.Equal(t, "not verified within 5m0s: late taint: all checks pass, waiting for the startup taint until node age 10m0s (LATE_TAINT_WINDOW)",
					p.entry("initial timeout exceeded")["reason"])
				assert.NotContains(t, p.stderr.String(), "node verified")
				after(test.at - initialTimeout - time.Millisecond)
				assert.Equal(t, test.comes, strings.Contains(p.stderr.String(), "node verified"))
				after(time.Millisecond)
				p.entry("node verified")
				p.stop()
				assert.Equal(t, exitOK, p.wait())
				assert.NotContains(t, p.stderr.String(), "marked")
				assert.NotContains(t, api.written(), "False NotVerified")
				assert.Equal(t, test.taints, api.taints())
			})
		})
	}
}

// A condition that is True just before the release does not stay so while a foreign taint, which comes then, is waited for.
func TestConditionIsTakenBackForAForeignTaint(t *testing.T) {
	for name, at := range map[string]struct {
		request string
		n       int
	}{"with the condition": {patchStat, 2}, "with the release": {patchNode, 1}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				p, network := simulateFailing(t, api, "--on-timeout=condition", "--wait-for-taints=node.cilium.io/")
				api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
					if request != at.request || n != at.n {
						return false
					}
					api.edit(addTaint(cilium))
					network.recovered.Store(false) // until the CNI is up again
					return request == patchNode && answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict, "changed")
				})
				after(initialTimeout)
				network.recovered.Store(true)
				after(nextAttempt + time.Second)
				assert.Equal(t, []string{"False NetworkFailed", "True Verified", "False TaintsOfOthers"}, api.written())
				p.stop()
				p.wait()
			})
		})
	}
}

// refuseRelease refuses each release, with the first of which a foreign taint comes, and the second condition.
func refuseRelease(api *fakeAPI) {
	api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		if request == patchNode && n == 1 {
			api.edit(addTaint(cilium))
		}
		isSecond := request == patchStat && n == 2
		return (request == patchNode || isSecond) && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "a webhook")
	})
}

// With CONDITION=always a refused patch leaves the condition True, until a foreign taint is waited for. What cannot be written then is
// tried again, also before INITIAL_TIMEOUT.
func TestConditionOfARefusedReleaseIsTakenBack(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		refuseRelease(api)
		p := simulate(t, api, nil, nil, "--condition=always", "--wait-for-taints=node.cilium.io/")
		after(time.Second)
		assert.Equal(t, []string{"True Verified"}, api.written())
		after(time.Minute)
		assert.Equal(t, []string{"True Verified", "False TaintsOfOthers"}, api.written())
		assert.NotContains(t, p.stderr.String(), "initial timeout exceeded")
		p.stop()
		p.wait()
	})
}

// What was to be tried again is not said any more where it is not true any more.
func TestRetryIsForgottenWithTheForeignTaint(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		refuseRelease(api)
		p, network := simulateFailing(t, api, "--condition=always", "--wait-for-taints=node.cilium.io/")
		network.recovered.Store(true)
		after(10 * time.Second)
		network.recovered.Store(false)
		api.edit(removeTaint(cilium.Key))
		after(3 * time.Minute)
		for _, condition := range api.conditions {
			assert.NotContains(t, condition.Message, "not verified within")
		}
		assert.Equal(t, []string{"True Verified", "False NetworkFailed"}, api.written())
		p.stop()
		p.wait()
	})
}

// A read that fails during the wait for a foreign taint does not hide that taint when INITIAL_TIMEOUT passes.
func TestForeignTaintAfterAFailedRead(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		start := time.Now()
		api.edit(addTaint(cilium))
		api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			isLate := time.Since(start) > initialTimeout-12*time.Second && time.Since(start) < initialTimeout-time.Second
			if request == getNode && isLate {
				time.Sleep(13 * time.Second)
			}
			return request == getCached && isLate && answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "down")
		})
		p := simulate(t, api, nil, nil, "--on-timeout=condition", "--wait-for-taints="+cilium.Key, "--check-timeout=15s", "--max-retries=30")
		after(2 * initialTimeout)
		assert.Equal(t, []string{"False TaintsOfOthers"}, api.written())
		p.stop()
		p.wait()
	})
}
