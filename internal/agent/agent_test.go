package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

func TestOnceVerified(t *testing.T) {
	api := newFakeAPI(t)
	before := time.Now().Truncate(time.Second)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)

	assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, map[string]string{"kubernetes.io/os": "linux", "node-ready/verified": "true"}, api.node.Labels)
	var verification struct {
		Time              time.Time
		Duration, Version string
		Removed           []string
		Attempts          map[string]int
	}
	decoder := json.NewDecoder(strings.NewReader(api.node.Annotations["node-ready/verification"]))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&verification))
	assert.False(t, verification.Time.Before(before))
	took, err := time.ParseDuration(verification.Duration)
	require.NoError(t, err)
	assert.Positive(t, took)
	assert.Equal(t, "dev", verification.Version)
	assert.Equal(t, []string{"node-ready/unverified=true:NoSchedule"}, verification.Removed)
	assert.Equal(t, map[string]int{"dns": 1, "api": 1, "network": 1, "service": 1}, verification.Attempts)

	require.Len(t, api.events, 1)
	event := api.events[0]
	assert.Equal(t, corev1.EventTypeNormal, event.Type)
	assert.Equal(t, "NodeVerified", event.Reason)
	assert.Regexp(t, `^DNS, API, network and service discovery work; verified in [0-9.]+(µ|m)?s; removed node-ready/unverified=true:NoSchedule$`, event.Message)
	assert.Equal(t, corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node1", UID: "node1"}, event.InvolvedObject)
	assert.Equal(t, "default", event.Namespace)
	assert.Equal(t, "kube-node-ready", event.ReportingController)
	assert.Equal(t, "info", p.entry("node verified")["level"])
	assert.Equal(t, "removed node-ready/unverified=true:NoSchedule", p.entry("node verified")["taints"])
	assert.Equal(t, "foreign/front:NoExecute, foreign/behind:NoSchedule", p.entry("node verified")["remaining_taints"], "what still repels pods")
	assert.Empty(t, p.stdout.String())
}

func TestInCluster(t *testing.T) {
	api := newFakeAPI(t)
	api.slices = []discoveryv1.EndpointSlice{dnsSlice(listen(t))}
	a, log := inCluster(t, api)
	assert.True(t, a.Run(t.Context(), nil))
	assert.Equal(t, []string{getNode, getSlices, patchNode, postEvent}, api.seen())
	assert.Equal(t, untainted, api.taints())
	assert.NotContains(t, log.String(), "check skipped")
}

func TestOnceNotVerified(t *testing.T) {
	api := newFakeAPI(t)
	port := closedPort(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "NETWORK_TARGETS": "127.0.0.1:" + port},
		"--once", "--max-retries=0", "--initial-timeout=1s", "--check-timeout=1s")
	assert.Equal(t, exitNotVerified, p.wait())

	assert.NotContains(t, api.seen(), patchNode)
	assert.Equal(t, tainted, api.taints())
	const remedy = " (the host answers but nothing listens, or the service has no ready endpoint)"
	failure := "network: TCP 127.0.0.1:" + port + ": connection refused" + remedy
	assert.Equal(t, []string{"NodeNotVerified", "NodeVerificationTimedOut"}, api.reasons())
	for _, event := range api.events {
		assert.Equal(t, corev1.EventTypeWarning, event.Type)
	}
	assert.Regexp(t, `^since [-0-9T:]+Z: `, api.events[0].Message)
	assert.True(t, strings.HasSuffix(api.events[0].Message, "Z: "+failure), api.events[0].Message)
	assert.Equal(t, "not verified within 1s: "+failure, api.events[1].Message)
	assert.Equal(t, "failed: network", p.entry("node not verified")["reason"])
	assert.Equal(t, "not verified within 1s: "+failure, p.entry("initial timeout passed")["reason"])
}

// Every layer that is broken is named, those after the first that failed as well.
func TestDiagnosis(t *testing.T) {
	api := newFakeAPI(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	api.before = func(request string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		if request == postEvent {
			cancel()
		}
		return request == getNode && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "nodes is forbidden")
	}
	port := closedPort(t)
	a, log := inCluster(t, api, "--network-targets=127.0.0.1:"+port)
	assert.False(t, a.Run(ctx, nil))
	assert.Equal(t, []string{getNode, getNode, getSlices, postEvent}, api.seen())
	require.Len(t, api.events, 1)
	for _, part := range []string{
		"Z: api: authorization: nodes is forbidden (",
		"; network: TCP 127.0.0.1:" + port + ": connection refused (",
		"; service: service kube-system/kube-dns has no ready endpoint (0 not ready) (",
	} {
		assert.Contains(t, api.events[0].Message, part)
	}
	assert.Contains(t, log.String(), `"reason":"failed: api, network, service"`)
	assert.Equal(t, tainted, api.taints())
}

func TestRefusedPatchIsTriedInTheNextRound(t *testing.T) {
	api := newFakeAPI(t)
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		return request == patchNode && n == 1 && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "denied by policy")
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{getNode, patchNode, postEvent, getNode, patchNode, postEvent}, api.seen())
	assert.Equal(t, []string{"NodeNotVerified", "NodeVerified"}, api.reasons())
	assert.Equal(t, "the API server refuses the patch: denied by policy", p.entry("node not verified")["reason"])
}


func TestOtherEffectIsTakenOffWithWarning(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--taint-effect=NoExecute")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, untainted, api.taints())
	entry := p.entry("startup taint has an unexpected effect: removing it anyway")
	assert.Equal(t, "warning", entry["level"])
	assert.Equal(t, "node-ready/unverified=true:NoSchedule", entry["taint"])
	assert.Equal(t, "NoExecute", entry["expected"])
}

func TestPatchRetryIsCounted(t *testing.T) {
	api := newFakeAPI(t)
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		return request == patchNode && n == 1 && answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict, "changed")
	}
	port := closedPort(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "ENABLE_METRICS": "true", "METRICS_PORT": port})
	p.logged("node verified")
	_, body := get(t, port, "/metrics")
	assert.Contains(t, body, `node_check_patch_retries_total{node="node1"} 1`+"\n")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
}

func TestVerifiedAlready(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Labels["node-ready/verified"] = "true"
	api.node.Spec.Taints = nil
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{getNode}, api.seen())
	require.Len(t, p.entries(), 1)
	p.entry("node is already verified")
}

func TestHoldUntilSignal(t *testing.T) {
	for name, test := range map[string]struct {
		open    bool
		message string
		want    []string
	}{
		"verified now":     {message: "node verified", want: []string{getNode, patchNode, postEvent, getNode}},
		"verified already": {open: true, message: "node is already verified", want: []string{getNode}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			if test.open {
				api.node.Labels["node-ready/verified"] = "true"
				api.node.Spec.Taints = nil
			}
			port := closedPort(t)
			p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "ENABLE_METRICS": "true", "METRICS_PORT": port})
			p.logged(test.message)
			// The status is set before the first and after the second of the messages.
			require.Eventually(t, func() bool { code, _ := get(t, port, "/readyz"); return code == http.StatusOK }, time.Minute, time.Millisecond)
			_, body := get(t, port, "/metrics")
			assert.Contains(t, body, `node_check_status{node="node1"} 1`+"\n")
			assert.Contains(t, body, `node_check_timed_out{node="node1"} 0`+"\n")
			attempts := "1"
			if test.open {
				attempts = "0"
			}
			for _, check := range []string{"dns", "api", "network", "service"} {
				assert.Contains(t, body, `node_check_attempts_total{check="`+check+`",node="node1"} `+attempts+"\n")
				assert.Contains(t, body, `node_check_failures_total{check="`+check+`",node="node1"} 0`+"\n")
			}

			p.stop()
			assert.Equal(t, exitOK, p.wait())
			assert.Equal(t, test.want, api.seen())
			_, err := net.Dial("tcp", "127.0.0.1:"+port)
			require.ErrorContains(t, err, "connection refused", "no linger is configured")
		})
	}
}

func TestMetricsOfFailingNode(t *testing.T) {
	api := newFakeAPI(t)
	timedOut := make(chan struct{})
	api.before = func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
		if request == postEvent && len(api.reasons()) == 1 {
			close(timedOut)
		}
		return false
	}
	port := closedPort(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "ENABLE_METRICS": "true", "METRICS_PORT": port, "NETWORK_TARGETS": "127.0.0.1:" + closedPort(t)},
		"--max-retries=0", "--initial-timeout=1s", "--check-timeout=1s")
	<-timedOut
	code, _ := get(t, port, "/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	code, _ = get(t, port, "/healthz")
	assert.Equal(t, http.StatusOK, code)
	_, body := get(t, port, "/metrics")
	assert.Contains(t, body, `node_check_status{node="node1"} 0`+"\n")
	assert.Contains(t, body, `node_check_timed_out{node="node1"} 1`+"\n")
	assert.Regexp(t, `node_check_failures_total\{check="network",node="node1"\} [12]\n`, body)
	assert.Contains(t, body, `node_check_failures_total{check="dns",node="node1"} 0`+"\n")
	p.logged("initial timeout passed")
	p.stop()
	assert.Equal(t, exitOK, p.wait(), "the rounds went on until it was told to stop")
	assert.Equal(t, tainted, api.taints())
}

func TestStopBeforeVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		at   int // which reading of the node
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
			api := newFakeAPI(t)
			reached := make(chan struct{})
			api.before = func(_ string, n int, _ http.ResponseWriter, r *http.Request) bool {
				if n == test.at {
					close(reached)
					<-r.Context().Done() // the agent gives up
				}
				return false
			}
			// The check of the second round reads the node again.
			p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, append(test.args, "--check-timeout=5m")...)
			<-reached
			p.stop()
			assert.Equal(t, test.code, p.wait())
			assert.Equal(t, test.want, api.seen())
			assert.Equal(t, tainted, api.taints())
			assert.NotContains(t, p.stderr.String(), "serving final metrics", "there are none to wait for")
		})
	}
}

// Between two rounds, a stop does not wait for the next one either.
func TestStopBetweenRounds(t *testing.T) {
	api := newFakeAPI(t)
	reported := make(chan struct{})
	api.before = func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
		if request == postEvent {
			close(reported)
		}
		return false
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "NETWORK_TARGETS": "127.0.0.1:" + closedPort(t)}, "--max-retries=0")
	<-reported
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, []string{getNode, postEvent}, api.seen())
	assert.Equal(t, tainted, api.taints())
}

// A young node without the taint is not labelled yet, and a stop ends the wait for it.
func TestStopWhileWaitingForLateTaint(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Spec.Taints = nil
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--log-level=debug", "--late-taint-window=1h")
	p.logged("waiting for the startup taint")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, []string{getNode}, api.seen())
	assert.NotContains(t, p.stderr.String(), "node not verified", "it is nobody's fault")
}

// The patch that is on its way is finished, and so is the Event about it.
func TestStopWhilePatching(t *testing.T) {
	api := newFakeAPI(t)
	var p *process
	started := make(chan struct{})
	api.before = func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
		if request == patchNode {
			<-started
			p.stop()
		}
		return false
	}
	p = start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--check-timeout=5m")
	close(started)
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, []string{getNode, patchNode, postEvent, getNode}, api.seen())
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{"NodeVerified"}, api.reasons())
}

func TestLinger(t *testing.T) {
	api := newFakeAPI(t)
	port := closedPort(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "ENABLE_METRICS": "true", "METRICS_PORT": port}, "--metrics-linger=1h")
	p.logged("node verified")
	p.terminate()
	p.logged("shutting down: serving final metrics")
	_, body := get(t, port, "/metrics")
	assert.Contains(t, body, `node_check_status{node="node1"} 1`+"\n")

	close(p.second)
	assert.Equal(t, exitOK, p.wait())
	p.entry("second signal: exiting")
	_, err := net.Dial("tcp", "127.0.0.1:"+port)
	require.ErrorContains(t, err, "connection refused")
	assert.Equal(t, []string{getNode, patchNode, postEvent, getNode}, api.seen())
}

func TestLingerEnds(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--metrics-linger=1ms")
	p.logged("node verified")
	p.terminate()
	assert.Equal(t, exitOK, p.wait())
	p.entry("shutting down: serving final metrics")
}

// The Event that says so is told again where the API server does not take it: there is no next round.
func TestVerifiedEventIsSentAgain(t *testing.T) {
	api := newFakeAPI(t)
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		return request == postEvent && n == 1 && answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "not now")
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, []string{"NodeVerified"}, api.reasons())
}

// A kubeconfig may name a proxy for its cluster, which is not that of the environment.
func TestProxyOfTheKubeconfig(t *testing.T) {
	api := newFakeAPI(t)
	var asked atomic.Value
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Method + " " + r.Host)
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(proxy.Close)
	text, err := os.ReadFile(api.kubeconfig)
	require.NoError(t, err)
	text = bytes.Replace(text, []byte(`"server":`), fmt.Appendf(nil, `"proxy-url": %q, "server":`, proxy.URL), 1)
	require.NoError(t, os.WriteFile(api.kubeconfig, text, 0o600))
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "HTTPS_PROXY": "http://127.0.0.1:1"}, "--dry-run")
	assert.Equal(t, exitNotVerified, p.wait())
	assert.Contains(t, p.stdout.String(), "the kubeconfig's API server is behind a proxy")
	assert.Equal(t, "CONNECT "+api.server.Listener.Addr().String(), asked.Load())
}

// addStartupTaint is what a client does that has read the node before the release and writes the whole list after it.
func (a *fakeAPI) addStartupTaint() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node.Spec.Taints = append(a.node.Spec.Taints, corev1.Taint{Key: "node-ready/unverified", Value: "true", Effect: corev1.TaintEffectNoSchedule})
}

// The taint is back when the pod shuts down, or at the end of the linger: no agent would be left to notice.
func TestTaintThatIsBackAtTheEnd(t *testing.T) {
	for name, test := range map[string]struct {
		args  []string
		late  bool // during the linger
		edit  func(*corev1.Node)
		stays bool
	}{
		"at SIGTERM":            {},
		"during the linger":     {args: []string{"--metrics-linger=1s"}, late: true},
		"the label is gone":     {edit: func(n *corev1.Node) { delete(n.Labels, "node-ready/verified") }, stays: true},
		"another node":          {edit: func(n *corev1.Node) { n.UID = "uid-2" }, stays: true},
		"it is being deleted":   {edit: func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.Now()) }, stays: true},
		"the label has another": {edit: func(n *corev1.Node) { n.Labels["node-ready/verified"] = "false" }, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, test.args...)
			p.logged("node verified")
			change := func() {
				api.addStartupTaint()
				if test.edit != nil {
					api.mu.Lock()
					test.edit(api.node)
					api.mu.Unlock()
				}
			}
			if test.late {
				p.terminate()
				p.logged("shutting down")
				change()
			} else {
				change()
				p.terminate()
			}
			assert.Equal(t, exitOK, p.wait())
			if test.stays {
				assert.Contains(t, api.taints(), "node-ready/unverified")
				return
			}
			assert.Equal(t, untainted, api.taints())
			assert.Equal(t, []any{"node-ready/unverified=true:NoSchedule"}, p.entry("startup taint was added again after the release: removed it")["taints"])
		})
	}
}

// A webhook that puts the taint back each time does not keep the process from ending.
func TestTaintThatAlwaysComesBack(t *testing.T) {
	api := newFakeAPI(t)
	api.patched = func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "node-ready/unverified", Effect: corev1.TaintEffectNoSchedule})
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig})
	p.logged("node not verified")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, "node node1: the taint is back after each of 3 patches: an admission webhook or policy puts it back", p.entry("node not verified")["reason"])
}

// TAINT_KEY is wrong, or was changed: nothing is claimed that was not done.
func TestNoStartupTaintFound(t *testing.T) {
	api := newFakeAPI(t)
	api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--taint-key=example.com/new")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, "no startup taint found", p.entry("node verified")["taints"])
	assert.Contains(t, p.entry("node verified")["remaining_taints"], "node-ready/unverified=true:NoSchedule")
	assert.Contains(t, api.events[0].Message, "; no startup taint found")
	assert.Contains(t, api.node.Annotations[nodepatch.Annotation], `"removed":[]`)
}

// Former keys are removed with the present one, and a node with one of them is not verified.
func TestFormerKeysAreRemoved(t *testing.T) {
	api := newFakeAPI(t)
	api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	api.node.Labels["node-ready/verified"] = "true"
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--taint-key=example.com/new", "--also-remove-taints=node-ready/unverified")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, "removed node-ready/unverified=true:NoSchedule", p.entry("node verified")["taints"])
}

// Karpenter's taint is waited for whatever WAIT_FOR_TAINTS says: Karpenter puts startup taints back until it has registered the node.
func TestUnregisteredIsAlwaysWaitedFor(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Spec.Taints = append(api.node.Spec.Taints, corev1.Taint{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute})
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig})
	p.logged("waiting for foreign taints")
	assert.Equal(t, "karpenter.sh/unregistered:NoExecute", p.entry("waiting for foreign taints")["taint"])
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, []string{getNode}, api.seen())
}

// This node's clock is an hour ahead: the API server's says that the node is young.
func TestClockThatIsAhead(t *testing.T) {
	api := newFakeAPI(t)
	api.node.Spec.Taints = nil
	api.node.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	api.before = func(_ string, _ int, w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		return false
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--log-level=debug", "--late-taint-window=1h")
	p.logged("waiting for the startup taint")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.NotContains(t, p.stderr.String(), "node verified")
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newFakeAPI(t)
			api.before = func(request string, n int, _ http.ResponseWriter, r *http.Request) bool {
				if silent(request, n) {
					<-r.Context().Done()
					return true
				}
				return false
			}
			began := time.Now()
			a, _ := inCluster(t, api, "--initial-timeout=2s", "--check-timeout=1s", "--on-timeout=condition", "--dns-service=")
			a.Run(t.Context(), nil)
			// No benchmark: it is a limit that users set, and the slack is for a machine that is busy.
			assert.Less(t, time.Since(began), 2*time.Second+3*time.Second+2*time.Second+2*time.Second)
		})
	}
}

// The api check proves that large packets reach the API server. A proxy that refuses the header holds no node back.
func TestLargeHeader(t *testing.T) {
	for name, code := range map[string]int{"taken": http.StatusOK, "refused": http.StatusRequestHeaderFieldsTooLarge} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.before = func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
				if request == getNode && n == 1 {
					assert.Greater(t, len(r.Header.Get("X-Kube-Node-Ready-Padding")), 2*1400)
				} else {
					assert.Empty(t, r.Header.Get("X-Kube-Node-Ready-Padding"))
				}
				return code != http.StatusOK && n == 1 && request == getNode && answerStatus(w, code, "", "too large")
			}
			p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once")
			assert.Equal(t, exitOK, p.wait(), p.stderr)
			if code != http.StatusOK {
				assert.Contains(t, p.entry("check passed with a warning")["warning"], "refuses a header of")
			}
		})
	}
}

// The reply to the patch is lost while the taint comes back, and the pod shuts down: what was proven still holds.
func TestTaintThatIsBackAfterALostReply(t *testing.T) {
	api := newFakeAPI(t)
	var p *process
	started := make(chan struct{})
	api.before = func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
		if request == patchNode && n == 1 {
			<-started
			body, _ := io.ReadAll(r.Body)
			api.mu.Lock()
			assert.NoError(t, api.patch(body))
			api.mu.Unlock()
			api.addStartupTaint()
			p.terminate()
			return answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "lost")
		}
		return false
	}
	p = start(t, map[string]string{"KUBECONFIG": api.kubeconfig})
	close(started)
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, untainted, api.taints())
}

// A foreign taint comes while the patch is retried: the node is not released under it.
func TestForeignTaintDuringTheRelease(t *testing.T) {
	api := newFakeAPI(t)
	foreign := corev1.Taint{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute}
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		if request != patchNode || n != 1 {
			return false
		}
		api.mu.Lock()
		defer api.mu.Unlock()
		api.node.Spec.Taints = append(slices.Clone(api.node.Spec.Taints), foreign)
		return answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict, "changed")
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig})
	p.logged("waiting for foreign taints")
	assert.Contains(t, api.taints(), "node-ready/unverified")
	api.mu.Lock()
	api.node.Spec.Taints = slices.Clone(api.node.Spec.Taints[:3])
	api.mu.Unlock()
	p.logged("node verified")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, untainted, api.taints())
}

// The results of checks from before a wait are old: they run again before the release.
func TestChecksRunAgainAfterTheWaitForTheStartupTaint(t *testing.T) {
	api := newFakeAPI(t)
	ours := api.node.Spec.Taints
	api.node.Spec.Taints = nil
	port := closedPort(t)
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	require.NoError(t, err)
	api.before = func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
		if request == getCached { // the target dies during the wait, and the taint comes
			_ = listener.Close()
			api.mu.Lock()
			api.node.Spec.Taints = ours
			api.mu.Unlock()
		}
		return false
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "NETWORK_TARGETS": "127.0.0.1:" + port}, "--max-retries=0")
	p.logged("node not verified")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, tainted, api.taints())
	assert.NotContains(t, api.seen(), patchNode)
}

// The node is deleted and created again between the checks and the release: the new one has to pass by itself.
func TestNodeThatIsReplacedBeforeTheRelease(t *testing.T) {
	api := newFakeAPI(t)
	api.before = func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		if request == patchNode && n == 1 {
			api.mu.Lock()
			defer api.mu.Unlock()
			node := api.node.DeepCopy()
			node.UID = "uid-2"
			api.node = node
			return answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict, "changed")
		}
		return false
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Contains(t, api.node.Annotations[nodepatch.Annotation], `"attempts":{"api":2,"dns":2,"network":2,"service":2}`)
}
