package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// startLate starts an agent that does not pass in time, until something listens at port.
func startLate(t *testing.T, api *fakeAPI, args ...string) (p *process, port string) {
	port = closedPort(t)
	env := map[string]string{"KUBECONFIG": api.kubeconfig, "NETWORK_TARGETS": "127.0.0.1:" + port}
	return start(t, env, append([]string{"--max-retries=0", "--initial-timeout=1s", "--check-timeout=1s"}, args...)...), port
}

// heal opens port.
func heal(t *testing.T, port string) {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
}

func TestOnTimeoutTaint(t *testing.T) {
	api := newFakeAPI(t)
	p, port := startLate(t, api, "--on-timeout=taint")
	p.logged("node marked as failed")
	assert.Equal(t, append(tainted, "node-ready/failed"), api.taints())
	assert.Equal(t, "network", api.node.Spec.Taints[3].Value)
	assert.Equal(t, corev1.TaintEffectNoSchedule, api.node.Spec.Taints[3].Effect)
	heal(t, port)
	p.logged("node verified")
	assert.Equal(t, untainted, api.taints())
	patches := 0
	for _, request := range api.seen() {
		if request == patchNode {
			patches++
		}
	}
	assert.Equal(t, 2, patches, "one puts it on, and the one that opens the node takes it off")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Empty(t, api.conditions)
}

func TestOnTimeoutKeep(t *testing.T) {
	api := newFakeAPI(t)
	p, port := startLate(t, api)
	p.logged("initial timeout passed")
	assert.Equal(t, tainted, api.taints())
	heal(t, port)
	p.logged("node verified")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Empty(t, api.conditions)
	assert.NotContains(t, p.stderr.String(), "marked")
}

// The failed taint of a container that is gone is taken off by the next, with the startup taint.
func TestFailedTaintOfAnEarlierContainer(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Spec.Taints = append(api.node.Spec.Taints, corev1.Taint{Key: "example.com/bad", Value: "dns", Effect: corev1.TaintEffectNoSchedule})
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--on-timeout=taint", "--failed-taint-key=example.com/bad")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
}

func TestOnTimeoutCondition(t *testing.T) {
	api := newFakeAPI(t)
	p, port := startLate(t, api, "--on-timeout=condition", "--condition-type=NetworkingReady")
	p.logged("node marked as failed")
	heal(t, port)
	p.logged("node verified")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	require.Len(t, api.conditions, 2)
	bad, good := api.conditions[0], api.conditions[1]
	assert.Equal(t, corev1.NodeConditionType("NetworkingReady"), bad.Type)
	assert.Equal(t, []string{"False", "NetworkFailed"}, []string{string(bad.Status), bad.Reason})
	assert.Contains(t, bad.Message, "127.0.0.1:"+port+": connection refused")
	assert.Equal(t, []string{"True", "Verified"}, []string{string(good.Status), good.Reason})
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{patchStat, patchNode, postEvent, getNode}, api.seen()[len(api.seen())-4:], "True before the release")
}

func TestConditionOfANodeThatPasses(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--on-timeout=condition")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{getNode, patchNode, patchStat, postEvent}, api.seen())
	require.Len(t, api.conditions, 1)
	assert.Equal(t, corev1.ConditionTrue, api.conditions[0].Status)
}

// A condition that cannot be written holds no node back, whatever the reason.
func TestConditionThatCannotBeWritten(t *testing.T) {
	for name, test := range map[string]struct {
		code   int
		reason metav1.StatusReason
		want   []string
	}{
		"forbidden": {http.StatusForbidden, metav1.StatusReasonForbidden, []string{getNode, patchNode, patchStat, postEvent}},
		"internal": {http.StatusInternalServerError, metav1.StatusReasonInternalError,
			[]string{getNode, patchNode, patchStat, patchStat, postEvent}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
				return request == patchStat && n == 1 && answerStatus(w, test.code, test.reason, "the server's message")
			}
			p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--on-timeout=condition")
			assert.Equal(t, exitOK, p.wait(), p.stderr)
			assert.Equal(t, test.want, api.seen())
			assert.Equal(t, untainted, api.taints())
		})
	}
}

// A mark that cannot be put on is tried again after the next round.
func TestMarkIsTriedAgain(t *testing.T) {
	api := newFakeAPI(t)
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		return request == patchNode && n == 1 && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
	}
	p, _ := startLate(t, api, "--on-timeout=taint")
	p.logged("cannot mark the node as failed")
	p.logged("node marked as failed")
	assert.Contains(t, api.taints(), "node-ready/failed")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
}

// With --once too, the node is marked before the process ends.
func TestOnceMarks(t *testing.T) {
	api := newFakeAPI(t)
	p, _ := startLate(t, api, "--on-timeout=taint", "--once")
	assert.Equal(t, exitNotVerified, p.wait())
	assert.Contains(t, api.taints(), "node-ready/failed")
}

// Both marks side by side: the condition is taken back before the release, the taint by the release.
func TestOnTimeoutTaintAndCondition(t *testing.T) {
	for _, policies := range []string{"taint,condition", "condition,taint"} {
		t.Run(policies, func(t *testing.T) {
			api := newFakeAPI(t)
			p, port := startLate(t, api, "--on-timeout="+policies)
			p.logged("node marked as failed")
			assert.Equal(t, append(tainted, "node-ready/failed"), api.taints())
			assert.Equal(t, "network", api.node.Spec.Taints[3].Value)
			assert.Equal(t, policies, p.entry("node marked as failed")["policy"])
			assert.Equal(t, "NetworkFailed", p.entry("node marked as failed")["reason"])
			heal(t, port)
			p.logged("node verified")
			p.stop()
			assert.Equal(t, exitOK, p.wait())
			assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
			assert.Equal(t, untainted, api.taints())
			assert.Equal(t, []string{patchStat, patchNode, postEvent, getNode}, api.seen()[len(api.seen())-4:], "True before the release")
			writes := slices.DeleteFunc(api.seen(), func(request string) bool { return request != patchNode && request != patchStat })
			assert.Len(t, writes, 4, "each mark is written once and taken back once")
		})
	}
}

// A mark without its rights, or that is refused, does not stop the other one, and is tried again.
func TestOneMarkOfTwoCannotBeWritten(t *testing.T) {
	for refused, written := range map[string]string{patchNode: "condition", patchStat: "taint"} {
		t.Run(written, func(t *testing.T) {
			api := newFakeAPI(t)
			api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
				return request == refused && n <= 2 && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "no")
			}
			p, port := startLate(t, api, "--on-timeout=taint,condition")
			p.logged("cannot mark the node as failed")
			p.logged("node marked as failed")
			assert.Equal(t, written == "taint", slices.Contains(api.taints(), "node-ready/failed"))
			assert.Equal(t, written == "condition", len(api.written()) == 1)
			p.loggedOften("node marked as failed", 2)
			assert.Contains(t, api.taints(), "node-ready/failed")
			assert.Equal(t, []string{"False NetworkFailed"}, api.written())
			heal(t, port)
			p.logged("node verified")
			p.stop()
			assert.Equal(t, exitOK, p.wait())
			assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
			assert.Equal(t, untainted, api.taints())
		})
	}
}

// A False condition of somebody else is taken back before the release. If that fails before INITIAL_TIMEOUT, the condition
// returns, and the failed taint does not come.
func TestNoFailedTaintBeforeTheTimeout(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse, Reason: "ImagePull"}}
	var healed atomic.Bool
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		return request == patchNode && !healed.Load() && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "not today")
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--on-timeout=taint,condition", "--initial-timeout=10m")
	p.logged("node marked as failed")
	assert.Equal(t, []string{"True Verified", "False NotVerified"}, api.written())
	assert.Equal(t, tainted, api.taints())
	healed.Store(true)
	p.logged("node verified")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, []string{"True Verified", "False NotVerified", "True Verified"}, api.written())
	patches := slices.DeleteFunc(api.seen(), func(request string) bool { return request != patchNode })
	assert.Len(t, patches, 2, "the refused release and the one that passes: no taint was added")
}

// Nothing is checked before the taints of others are gone, and that costs no request more than to see it.
func TestWaitForTaints(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Spec.Taints = append(api.node.Spec.Taints, corev1.Taint{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule})
	api.before = func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
		if isRead(request) && api.reads() == 3 { // Cilium is done
			api.mu.Lock()
			defer api.mu.Unlock()
			api.node.Spec.Taints = api.node.Spec.Taints[:3]
		}
		return false
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--wait-for-taints=example.com/,node.cilium.io/")
	p.logged("waiting for foreign taints")
	assert.NotContains(t, p.stderr.String(), "check passed")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{getNode, getCached, getCached, getNode, getNode, patchNode, postEvent}, api.seen(),
		"waiting costs etcd nothing; the api check and the release do")
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, "node.cilium.io/agent-not-ready:NoSchedule", p.entry("waiting for foreign taints")["taint"])
}

// A taint of others that comes during the round: what has passed does not count.
func TestTaintOfOthersDuringTheRound(t *testing.T) {
	api := newFakeAPI(t)
	late := corev1.Taint{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if !isRead(request) {
			return false
		}
		n := api.reads()
		api.mu.Lock()
		defer api.mu.Unlock()
		switch n {
		case 1: // the first look fails, so that the api check reads the node itself
			return answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "not now")
		case 2:
			api.node.Spec.Taints = append(api.node.Spec.Taints, late)
		case 3:
			api.node.Spec.Taints = api.node.Spec.Taints[:3]
		}
		return false
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--wait-for-taints=node.cilium.io/")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{getNode, getNode, getCached, getNode, getNode, patchNode, postEvent}, api.seen())
	var how struct{ Attempts map[string]int }
	require.NoError(t, json.Unmarshal([]byte(api.node.Annotations[nodepatch.Annotation]), &how))
	assert.Equal(t, 2, how.Attempts["dns"], "the round was made again")
}

// The node cannot be read while the agent waits: the checks say why, and the api check reads the node itself.
func TestReadThatFailsWhileWaiting(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Spec.Taints = append(api.node.Spec.Taints, corev1.Taint{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule})
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if !isRead(request) || api.reads() != 2 {
			return false
		}
		api.mu.Lock()
		defer api.mu.Unlock()
		api.node.Spec.Taints = api.node.Spec.Taints[:3]
		return answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "not now")
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--wait-for-taints=node.cilium.io/", "--check-timeout=1m")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{getNode, getCached, getNode, getNode, patchNode, postEvent}, api.seen())
	assert.Equal(t, untainted, api.taints())
}

// While it waits the clock of INITIAL_TIMEOUT runs, and the report says what it waits for.
func TestWaitForTaintsTimesOut(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--initial-timeout=1s", "--check-timeout=1s",
		"--wait-for-taints=foreign/", "--on-timeout=condition")
	assert.Equal(t, exitNotVerified, p.wait())
	message := "not verified within 1s: taints: foreign/front:NoExecute is still on (WAIT_FOR_TAINTS)"
	assert.Equal(t, message, p.entry("initial timeout passed")["reason"])
	require.Len(t, api.conditions, 1)
	assert.Equal(t, "TaintsOfOthers", api.conditions[0].Reason)
	assert.Equal(t, message, api.conditions[0].Message)
	assert.Equal(t, tainted, api.taints())
}

// INITIAL_TIMEOUT passes while the patch that opens the node is on its way: no mark comes behind it.
func TestNoMarkBehindTheOpeningPatch(t *testing.T) {
	for _, policy := range []string{"taint", "condition", "taint,condition"} {
		t.Run(policy, func(t *testing.T) {
			api := newFakeAPI(t)
			late := make(chan struct{})
			api.before = func(request string, n int, _ http.ResponseWriter, _ *http.Request) bool {
				if request == patchNode && n == 1 {
					<-late
				}
				return false
			}
			p, port := startLate(t, api, "--initial-timeout=2s", "--check-timeout=2s", "--on-timeout="+policy, "--once")
			p.logged("node not verified") // and verified in the next round, a second later
			heal(t, port)
			p.logged("initial timeout passed")
			close(late)
			assert.Equal(t, exitOK, p.wait())
			p.logged("node verified")
			assert.Equal(t, untainted, api.taints())
			assert.NotContains(t, p.stderr.String(), "marked")
			for _, condition := range api.conditions {
				assert.Equal(t, corev1.ConditionTrue, condition.Status)
			}
		})
	}
}

// A prefix of WAIT_FOR_TAINTS may cover the agent's own taints: those it would wait for in vain.
func TestOwnTaintsAreNotWaitedFor(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Spec.Taints = append(api.node.Spec.Taints, corev1.Taint{Key: "node-ready/failed", Value: "dns", Effect: corev1.TaintEffectNoSchedule})
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--on-timeout=taint", "--wait-for-taints=node-ready/", "--initial-timeout=20s")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, untainted, api.taints())
}

// Our taint and one of others come late, and together: the others are waited for, and all is checked again.
func TestTaintOfOthersThatComesWithOurs(t *testing.T) {
	api := newFakeAPI(t)
	ours := api.node.Spec.Taints
	api.node.Spec.Taints = nil
	api.before = func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
		n := api.reads()
		api.mu.Lock()
		defer api.mu.Unlock()
		switch {
		case isRead(request) && n == 2:
			api.node.Spec.Taints = append(slices.Clone(ours), corev1.Taint{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule})
		case isRead(request) && n == 4:
			api.node.Spec.Taints = ours
		}
		return false
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--wait-for-taints=node.cilium.io/")
	p.logged("waiting for foreign taints")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{getNode, getCached, getCached, getCached, getNode, getNode, patchNode, postEvent}, api.seen())
	var how struct{ Attempts map[string]int }
	require.NoError(t, json.Unmarshal([]byte(api.node.Annotations[nodepatch.Annotation]), &how))
	assert.Equal(t, 2, how.Attempts["dns"], "the round was made again")
}

// The patch that opens the node fails, round by round: the condition stays False, with the date of its one transition. The first
// request that says so is lost.
func TestConditionWhileThePatchFails(t *testing.T) {
	for name, code := range map[string]int{"refused by a policy": http.StatusForbidden, "webhook down": http.StatusInternalServerError} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			var healed atomic.Bool
			api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
				lost := request == patchStat && n == 2
				return (lost || request == patchNode && !healed.Load()) && answerStatus(w, code, metav1.StatusReasonUnknown, "not today")
			}
			p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--on-timeout=condition", "--initial-timeout=8s", "--check-timeout=300ms")
			p.logged("initial timeout passed")
			reason := p.entry("initial timeout passed")["reason"]
			assert.Contains(t, reason, "not verified within 8s: patch: ")
			assert.Contains(t, reason, "not today")
			healed.Store(true)
			p.logged("node verified")
			p.stop()
			assert.Equal(t, exitOK, p.wait())
			assert.Equal(t, []string{"False NotVerified", "True Verified"}, api.written(), "never True before the release")
			assert.Contains(t, api.conditions[0].Message, "not today")
			assert.Equal(t, []string{patchNode, patchStat, patchStat, postEvent, getNode}, api.seen()[len(api.seen())-5:], "True after the release")
		})
	}
}

// No check has failed where the patch is refused, and the taint says so.
func TestFailedTaintWhileThePatchIsRefused(t *testing.T) {
	api := newFakeAPI(t)
	api.before = func(request string, _ int, w http.ResponseWriter, r *http.Request) bool {
		if request != patchNode {
			return false
		}
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		return bytes.Contains(body, []byte("/metadata/labels/")) && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "denied by policy")
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--on-timeout=taint", "--initial-timeout=1s", "--check-timeout=1s")
	p.logged("node marked as failed")
	p.stop()
	p.wait()
	assert.Equal(t, append(tainted, "node-ready/failed"), api.taints())
	assert.Equal(t, "unverified", api.node.Spec.Taints[3].Value)
}

// INITIAL_TIMEOUT passes while the agent waits for a taint that may come late: that is said, and nothing is put on a good node.
func TestNoMarkWhileALateTaintIsWaitedFor(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Spec.Taints = nil
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--on-timeout=taint", "--initial-timeout=1s", "--check-timeout=1s", "--late-taint-window=4s")
	p.logged("node verified")
	assert.Equal(t, "not verified within 1s: late taint: all checks pass, and the node is not yet 4s old (LATE_TAINT_WINDOW)",
		p.entry("initial timeout passed")["reason"])
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.NotContains(t, p.stderr.String(), "marked")
	assert.Empty(t, api.taints())
}

// INITIAL_TIMEOUT passes while the Event of a verified node is sent again: the node was in time.
func TestNoTimeoutAfterTheNodeIsOpen(t *testing.T) {
	api := newFakeAPI(t)
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		return request == postEvent && n < 3 && answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "not now")
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--initial-timeout=1s", "--check-timeout=1s")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{"NodeVerified"}, api.reasons())
	assert.NotContains(t, p.stderr.String(), "initial timeout passed")
}

// A node that was never gated is never closed, whatever fails there: the DaemonSet also runs on the nodes that a cluster has already.
func TestNodeWithoutStartupTaintIsNotClosed(t *testing.T) {
	for _, policy := range []string{"taint", "condition", "taint,condition"} {
		t.Run(policy, func(t *testing.T) {
			api := newFakeAPI(t)
			api.node.Spec.Taints = []corev1.Taint{{Key: "foreign/front", Effect: corev1.TaintEffectNoExecute}}
			p, _ := startLate(t, api, "--on-timeout="+policy)
			p.logged("initial timeout passed")
			p.loggedOften("node not verified", 3) // rounds
			p.stop()
			assert.Equal(t, exitOK, p.wait())
			assert.Equal(t, []string{"foreign/front"}, api.taints())
			assert.Empty(t, api.conditions)
			assert.NotContains(t, p.stderr.String(), "marked")
			assert.NotContains(t, api.seen(), patchNode)
		})
	}
}

// Somebody opens the node by hand while its checks fail: the failed taint goes too.
func TestFailedTaintGoesWithTheStartupTaint(t *testing.T) {
	api := newFakeAPI(t)
	p, _ := startLate(t, api, "--on-timeout=taint")
	p.logged("node marked as failed")
	api.mu.Lock()
	api.node.Spec.Taints = slices.DeleteFunc(slices.Clone(api.node.Spec.Taints), func(taint corev1.Taint) bool { return taint.Key == "node-ready/unverified" })
	api.mu.Unlock()
	p.logged("failed taint removed: the node has no startup taint")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, untainted, api.taints())
	assert.NotContains(t, api.node.Labels, "node-ready/verified")
}

// A condition that an earlier container has left False is corrected.
func TestStaleConditionOfAVerifiedNode(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Labels["node-ready/verified"], api.node.Spec.Taints = "true", nil
	api.node.Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse}}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--on-timeout=condition")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{getNode, patchStat}, api.seen())
	assert.Equal(t, corev1.ConditionTrue, api.conditions[0].Status)
}

// The API server fails when INITIAL_TIMEOUT passes, and a foreign taint stays: there is no round after which to try again.
func TestTimeoutIsReportedAgainWhileWaiting(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Spec.Taints = append(api.node.Spec.Taints, corev1.Taint{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule})
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		first := n == 1 && (request == postEvent || request == patchNode)
		return first && answerStatus(w, http.StatusForbidden, "", "not now")
	}
	a, log := inCluster(t, api, "--initial-timeout=1s", "--check-timeout=1s", "--on-timeout=taint", "--wait-for-taints=node.cilium.io/")
	a.cfg.Once = false
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx, nil) }()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "node marked as failed") }, time.Minute, 10*time.Millisecond)
	assert.Contains(t, api.taints(), "node-ready/failed")
	cancel()
	<-done
}
