package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// opensOver is over how long nodes are opened whose checks started failing at the same time.
const opensOver = 10 * time.Second

// isOpen reports what the metric says.
func (p *process) isOpen() bool {
	recorder := httptest.NewRecorder()
	p.agent.metrics.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return strings.Contains(recorder.Body.String(), `node_check_opened{node="node1"} 1`)
}

func (a *fakeAPI) record() (r record.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, _ = record.Parse(a.node.Annotations[nodepatch.Annotation])
	return r
}

func (a *fakeAPI) isLabelled() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node.Labels["node-ready/verified"] != ""
}

const startup = "node-ready/unverified=true:NoSchedule"

// The node is opened without the label, and released as soon as its checks pass. Its record keeps what was removed.
func TestOpen(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(addTaint(corev1.Taint{Key: "node-ready/failed", Value: "dns", Effect: corev1.TaintEffectNoSchedule})) // by an agent with onTimeout=taint
		api.edit(addTaint(corev1.Taint{Key: "example.com/former", Effect: corev1.TaintEffectNoSchedule}))
		p, network := simulateFailing(t, api, "--on-timeout=open,condition", "--also-remove-taints=example.com/former,node-ready/failed")
		after(initialTimeout - time.Second)
		assert.Contains(t, api.taints(), "node-ready/unverified")
		after(time.Second + opensOver)
		assert.Equal(t, untainted, api.taints())
		assert.False(t, api.isLabelled())
		assert.Equal(t, []string{startup, "node-ready/failed=dns:NoSchedule", "example.com/former:NoSchedule"}, api.record().Removed)
		assert.NotZero(t, api.record().Opened)
		assert.Equal(t, []string{patchStat, patchNode}, api.writes(), "the condition comes first")
		assert.Contains(t, api.reasons(), "NodeOpened")
		assert.True(t, p.isOpen())
		after(time.Hour)
		assert.Len(t, api.writes(), 2, "the checks go on, and write nothing")
		assert.True(t, p.isOpen())
		network.recovered.Store(true)
		after(nextAttempt)
		assert.True(t, api.isLabelled())
		assert.Zero(t, api.record().Opened)
		assert.Contains(t, api.record().Removed, startup, "the node was gated")
		assert.Equal(t, []string{"False NetworkFailed", "True Verified"}, api.written())
		assert.False(t, p.isOpen())
		p.stop()
		assert.Equal(t, exitOK, p.wait())
	})
}

// What must not be opened stays as it is, whatever INITIAL_TIMEOUT says, and is opened when the reason is gone.
func TestNotOpened(t *testing.T) {
	for name, test := range map[string]struct {
		begin, end func(*corev1.Node)
		args       []string
	}{
		"a requirement":             {func(*corev1.Node) {}, func(node *corev1.Node) { node.Labels["pool"] = "gpu" }, []string{`--require=[{"label":"pool"}]`}},
		"never had a startup taint": {removeTaint("node-ready/unverified"), addTaint(corev1.Taint{Key: "node-ready/unverified"}), nil},
		"too young, by the API server's clock": {func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(time.Now().Add(24 * time.Hour)) },
			func(node *corev1.Node) { node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(test.begin)
				p, _ := simulateFailing(t, api, append([]string{"--on-timeout=open"}, test.args...)...)
				after(2 * initialTimeout)
				assert.Empty(t, api.writes())
				api.edit(test.end)
				after(3 * nextAttempt)
				assert.NotContains(t, api.taints(), "node-ready/unverified")
				assert.False(t, api.isLabelled())
				p.stop()
				p.wait()
			})
		})
	}
}

// INITIAL_TIMEOUT has passed for another reason. Then the network fails: the node is opened once that has lasted for INITIAL_TIMEOUT.
func TestOpenedByTheFailureOfTheNetworkOnly(t *testing.T) {
	for name, test := range map[string]struct {
		begin, end func(*corev1.Node)
		arg        string
	}{
		"a CNI that comes late":    {addTaint(cilium), removeTaint(cilium.Key), "--wait-for-taints=node.cilium.io/"},
		"a driver that comes late": {func(*corev1.Node) {}, func(node *corev1.Node) { node.Labels["pool"] = "gpu" }, `--require=[{"label":"pool"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				api.edit(test.begin)
				p, network := simulateFailing(t, api, "--on-timeout=open", "--max-retries=0", test.arg)
				network.recovered.Store(true)
				after(3 * initialTimeout)
				network.recovered.Store(false)
				api.edit(test.end)
				after(initialTimeout - time.Minute)
				assert.Contains(t, api.taints(), "node-ready/unverified")
				after(time.Minute + opensOver + 4*nextAttempt)
				assert.Equal(t, untainted, api.taints())
				assert.False(t, api.isLabelled())
				p.stop()
				p.wait()
			})
		})
	}
}

// The API server refuses the condition, loses the answer to the patch, or somebody else is faster.
func TestOpeningThatGoesWrong(t *testing.T) {
	for name, test := range map[string]struct {
		on      string
		answer  func(t *testing.T, api *fakeAPI, w http.ResponseWriter, r *http.Request) bool
		reports bool
	}{
		"the condition is refused": {patchStat, func(_ *testing.T, _ *fakeAPI, w http.ResponseWriter, _ *http.Request) bool {
			return answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "a webhook")
		}, true},
		"the answer is lost": {patchNode, func(_ *testing.T, api *fakeAPI, w http.ResponseWriter, r *http.Request) bool {
			api.intercept(nil)
			api.ServeHTTP(httptest.NewRecorder(), r)
			return answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "lost")
		}, true},
		"somebody else removes the taint": {patchNode, func(_ *testing.T, api *fakeAPI, _ http.ResponseWriter, _ *http.Request) bool {
			api.intercept(nil)
			api.edit(removeTaint("node-ready/unverified"))
			return false
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 { // a round reads the opened node, or the next attempt to open it: pauses are random
				simulated(t, func(t *testing.T, api *fakeAPI) {
					api.intercept(func(request string, _ int, w http.ResponseWriter, r *http.Request) bool {
						return request == test.on && test.answer(t, api, w, r)
					})
					p, _ := simulateFailing(t, api, "--on-timeout=open,condition")
					after(3 * initialTimeout)
					assert.NotContains(t, api.taints(), "node-ready/unverified")
					assert.Equal(t, test.reports, p.isOpen())
					assert.Equal(t, test.reports, slices.Contains(api.reasons(), verdict.NodeOpened))
					p.stop()
					p.wait()
				})
			}
		})
	}
}

// A patch that is refused opens nothing, also where the record has an earlier opening and somebody removes the taint then.
func TestRefusedOpeningIsNotReported(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, _ := simulateFailing(t, api, "--on-timeout=open")
		after(initialTimeout + opensOver + time.Second)
		require.True(t, p.isOpen())
		api.intercept(func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
			return request == patchNode && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "a webhook")
		})
		api.addStartupTaint()
		after(nextAttempt + 2*initialTimeout + opensOver)
		require.Contains(t, api.taints(), "node-ready/unverified")
		api.edit(removeTaint("node-ready/unverified"))
		after(5 * time.Minute)
		opened := slices.DeleteFunc(api.reasons(), func(reason string) bool { return reason != verdict.NodeOpened })
		assert.Len(t, opened, 1)
		p.stop()
		p.wait()
	})
}

// A taint that returns, a restarted agent and another Node of the name have an INITIAL_TIMEOUT of their own.
func TestOpenedAgain(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, api *fakeAPI, p *process) *process{
		"the taint returns": func(_ *testing.T, api *fakeAPI, p *process) *process {
			api.addStartupTaint()
			return p
		},
		"the taint returns, and the agent is started again": func(t *testing.T, api *fakeAPI, p *process) *process {
			p.stop()
			p.wait()
			api.addStartupTaint()
			p, _ = simulateFailing(t, api, "--on-timeout=open")
			return p
		},
		"another Node": func(_ *testing.T, api *fakeAPI, p *process) *process {
			api.replace(slices.Clone(newSimulatedAPI(api.t).node.Spec.Taints))
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				p, _ := simulateFailing(t, api, "--on-timeout=open")
				after(initialTimeout + opensOver)
				assert.Equal(t, untainted, api.taints())
				after(2 * initialTimeout)
				p = again(t, api, p)
				after(initialTimeout - time.Second)
				assert.Contains(t, api.taints(), "node-ready/unverified")
				after(4*nextAttempt + opensOver) // a round and the pause before it: until then nobody knows
				assert.Equal(t, untainted, api.taints())
				assert.False(t, api.isLabelled())
				assert.True(t, p.isOpen())
				p.stop()
				p.wait()
			})
		})
	}
}

// An agent that is started again on an opened node says so, corrects the condition as checks change, and writes nothing else.
func TestRestartedOnAnOpenedNode(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		p, _ := simulateFailing(t, api, "--on-timeout=open,condition")
		after(initialTimeout + opensOver)
		p.stop()
		p.wait()
		writes := len(api.writes())
		p, network := simulateFailing(t, api, "--on-timeout=open,condition")
		synctest.Wait()
		assert.True(t, p.isOpen(), "as soon as it has read the Node")
		after(2 * initialTimeout)
		assert.True(t, p.isOpen())
		assert.Equal(t, []string{patchStat}, api.writes()[writes:], "the new agent shows the failure, and has nothing to open")
		network.recovered.Store(true)
		after(nextAttempt)
		assert.Equal(t, []string{"False NetworkFailed", "False NetworkFailed", "True Verified"}, api.written())
		assert.Contains(t, api.record().Removed, startup)
		p.stop()
		p.wait()
	})
}

// A thousand nodes that wait for one network: how many requests their openings make, and over how long.
func TestThousandNodesAreOpened(t *testing.T) {
	const nodes, timeout = 1000, 30 * time.Second
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var patches, others [15]atomic.Int32 // requests in each second after INITIAL_TIMEOUT
		var all []*fakeAPI
		for range nodes {
			api := newSimulatedAPI(t)
			api.intercept(func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
				second := int((time.Since(start) - timeout) / time.Second)
				switch {
				case second < 0 || second >= len(patches):
				case request == patchNode:
					patches[second].Add(1)
				default:
					others[second].Add(1)
				}
				return false
			})
			p, _ := simulateFailing(t, api, "--on-timeout=open", "--initial-timeout=30s", "--log-level=error")
			defer p.wait()
			defer p.stop()
			all = append(all, api)
		}
		after(timeout + opensOver + 4*time.Second)
		sent := 0
		for _, api := range all {
			assert.NotContains(t, api.taints(), "node-ready/unverified")
			sent += len(api.writes())
		}
		assert.Equal(t, nodes, sent, "a patch each")
		var counted [2][len(patches)]int32
		for second := range patches {
			counted[0][second], counted[1][second] = patches[second].Load(), others[second].Load()
		}
		most := slices.Max(counted[0][:])
		assert.Less(t, most, int32(nodes/5), "spread over 10 s")
		t.Logf("%d nodes, opened over %s: %d patches, at most %d a second; other requests (reads, Events), by second: %v", nodes, opensOver, sent, most, counted[1])
	})
}

// The metric of an opened node does not wait for the first check of an agent that was started again.
func TestMetricOfAnOpenedNodeAfterARestart(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(removeTaint("node-ready/unverified"))
		api.edit(func(node *corev1.Node) {
			node.Annotations = map[string]string{nodepatch.Annotation: record.Record{Opened: time.Now().Add(-time.Minute).UTC()}.String()}
		})
		hangs := func(ctx context.Context) (checks.Report, error) {
			<-ctx.Done()
			return checks.Report{}, ctx.Err()
		}
		p := simulateChecks(t, api, fakeCheck{checks.DNSName, hangs}, fakeCheck{checks.NetworkName, hangs}, nil,
			"--on-timeout=open", "--check-timeout=30s")
		after(time.Second)
		assert.True(t, p.isOpen())
		p.stop()
		p.wait()
	})
}
