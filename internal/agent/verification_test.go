package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// The Event says what a policy says, to its end, and is not held back because the first patch failed otherwise.
func TestEventQuotesThePolicyThatRefusesThePatch(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		began := time.Now()
		denied := "nodes \"node-1\" is forbidden: ValidatingAdmissionPolicy 'kube-node-ready' with binding 'kube-node-ready' denied request: " +
			"kube-system/kube-node-ready may add, change, remove or move no taint but " + strings.Repeat("example.com/former, ", 20) + "example.com/last"
		api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			if time.Since(began) < time.Minute {
				return request == patchNode && answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "a webhook is down")
			}
			return request == patchNode && len(api.events) < 2 && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, denied)
		})
		p := simulate(t, api, nil, nil, "--once")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		require.Equal(t, []string{"NodeNotVerified", "NodeNotVerified", "NodeVerified"}, api.reasons())
		assert.Contains(t, api.events[0].Message, "a webhook is down")
		assert.Contains(t, api.events[1].Message, "the API server refuses the patch: "+denied)
	})
}

func TestOtherEffectIsRemovedWithAWarning(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p := simulate(t, api, nil, nil, "--once", "--taint-effect=NoExecute")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Equal(t, untainted, api.taints())
		entry := p.entry("startup taint has an unexpected effect: removing it anyway")
		assert.Equal(t, "warning", entry["level"])
		assert.Equal(t, "node-ready/unverified=true:NoSchedule", entry["taint"])
		assert.Equal(t, "NoExecute", entry["expected"])
	})
}

// TAINT_KEY is wrong, or was changed: the agent does not claim to have removed a taint.
func TestNoStartupTaintFound(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		p := simulate(t, api, nil, nil, "--once", "--taint-key=example.com/new")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.Equal(t, "no startup taint found", p.entry("node verified")["taints"])
		assert.Contains(t, p.entry("node verified")["remaining_taints"], "node-ready/unverified=true:NoSchedule")
		assert.Contains(t, api.events[0].Message, "; no startup taint found")
		assert.Contains(t, api.node.Annotations[nodepatch.Annotation], `"removed":[]`)
	})
}

// The Event of a verified node is sent again if the API server does not take it: there is no next round. INITIAL_TIMEOUT passes in
// the meantime, but the node was in time.
func TestVerifiedEventIsSentAgain(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			return request == postEvent && n < 3 && answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "not now")
		})
		start := time.Now()
		p := simulate(t, api, nil, nil, "--once", "--initial-timeout=1s", "--check-timeout=1s")
		assert.Equal(t, exitOK, p.wait(), p.stderr)
		assert.InDelta(t, 3, time.Since(start).Seconds(), 0.4, "after 1s and 2s")
		assert.Equal(t, []string{"NodeVerified"}, api.reasons())
		assert.NotContains(t, p.stderr.String(), "initial timeout exceeded")
	})
}

// --once ends within INITIAL_TIMEOUT, three CHECK_TIMEOUTs and 2 s, also where the API server answers nothing any more.
func TestOnceEndsInTime(t *testing.T) {
	for name, silent := range map[string]func(request string, n int) bool{
		"no answer to Events":          func(request string, _ int) bool { return request == postEvent },
		"no answer after the checks":   func(request string, n int) bool { return request != getNode || n > 1 },
		"no answer to the patch":       func(request string, _ int) bool { return request == patchNode },
		"no answer to the condition":   func(request string, _ int) bool { return request == patchStat },
		"no answer to anything at all": func(string, int) bool { return true },
	} {
		for when, passesAfter := range map[string]time.Duration{"at once": 0, "at the last moment": initialTimeout - time.Millisecond} {
			t.Run(name+", the checks pass "+when, func(t *testing.T) {
				simulated(t, func(t *testing.T, api *fakeAPI) {
					api.intercept(func(request string, n int, _ http.ResponseWriter, r *http.Request) bool {
						if !silent(request, n) {
							return false
						}
						<-r.Context().Done()
						return true
					})
					start := time.Now()
					simulate(t, api, failingUntil(start.Add(passesAfter)), nil, "--once", "--on-timeout=condition").wait()
					assert.LessOrEqual(t, time.Since(start), initialTimeout+3*3*time.Second+2*time.Second)
				})
			})
		}
	}
}

// The pause between two rounds ends with the outage too: it is 30 s long by now.
func TestNextRoundBeginsWhenTheNetworkWorks(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer func() { _ = syscall.Close(fd) }()
		require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})) // refuses until it listens
		name, err := syscall.Getsockname(fd)
		require.NoError(t, err)
		target := checks.Target{Address: fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)}
		p := simulate(t, api, checks.Network{Targets: []checks.Target{target}}.Try, map[string]string{"LOG_LEVEL": "debug", "MAX_RETRIES": "0"})
		after(70 * time.Second) // after 1, 2, 4, 8 and 16 s: in the first pause of 30 s
		before := len(api.seen())
		after(10 * time.Second)
		require.Len(t, api.seen(), before, "signs are no requests")
		require.NoError(t, syscall.Listen(fd, 16))
		after(2500 * time.Millisecond)
		require.Contains(t, api.seen(), patchNode, p.stderr)
		require.Contains(t, p.stderr.String(), "a sign of recovery has ended the pause")
		p.stop()
	})
}

// replace deletes the node and creates it again with these taints.
func (a *fakeAPI) replace(taints []corev1.Taint) {
	a.edit(func(node *corev1.Node) {
		*node = *newSimulatedAPI(a.t).node
		node.UID, node.Spec.Taints = "uid-2", taints
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

// searching is a dns check that passes, and finds wildcards in the node's search domains after a time.
type searching struct {
	fakeCheck
	after time.Duration
	names string
	asked *atomic.Int32
}

func (s searching) Wildcards(ctx context.Context) string {
	s.asked.Add(1)
	round.Sleep(ctx, s.after)
	return s.names
}

// The Event of the release warns of a wildcard in the node's search domains. The release never waits for that, and rechecks do not look.
func TestReleaseWarnsOfWildcards(t *testing.T) {
	const released = "DNS, API, network and service discovery work; verified in 1s; removed node-ready/unverified=true:NoSchedule"
	for name, test := range map[string]struct {
		after time.Duration
		names string
		warns bool
	}{
		"found":       {500 * time.Millisecond, "x.corp.example", true},
		"none":        {500 * time.Millisecond, "", false},
		"not in time": {time.Minute, "x.corp.example", false},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.intercept(func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
					if request == patchNode {
						time.Sleep(time.Second)
					}
					return false
				})
				dns := searching{fakeCheck{checks.DNSName, passing}, test.after, test.names, new(atomic.Int32)}
				p := simulateChecks(t, api, dns, fakeCheck{checks.NetworkName, passing}, nil, "--recheck-interval=10s")
				after(2 * time.Second)
				require.Equal(t, []string{"NodeVerified"}, api.reasons())
				message := api.events[0].Message
				assert.Equal(t, test.warns, strings.Contains(message, "; warning: a wildcard in the node's search domains"))
				assert.Equal(t, test.warns, strings.HasSuffix(message, "it has x.corp.example"))
				assert.True(t, strings.HasPrefix(message, released), message)
				after(10 * time.Minute)
				assert.Equal(t, int32(1), dns.asked.Load())
				p.stop()
				p.wait()
			})
		})
	}
}
