package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
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
	t.Parallel()
	api := newFakeAPI(t)
	api.node.Status.NodeInfo.BootID = "boot-1"
	before := time.Now().Truncate(time.Second)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)

	assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, map[string]string{"kubernetes.io/os": "linux", "node-ready/verified": "true"}, api.node.Labels)
	var verification struct {
		Time              time.Time
		Duration, Version string
		BootID            string
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
	assert.Equal(t, "boot-1", verification.BootID)
	assert.Equal(t, "boot-1", p.entry("the Node's boot id is not this kernel's: two machines have one name, or this pod has a kernel of its own (Kata)")["node_boot_id"], "this machine has another one")
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
	t.Parallel()
	api := newFakeAPI(t)
	api.slices = []discoveryv1.EndpointSlice{dnsSlice(listen(t))}
	a, log := inCluster(t, api)
	assert.True(t, a.Run(t.Context(), t.Context()))
	assert.Equal(t, []string{getNode, getSlices, patchNode, postEvent}, api.seen())
	assert.Equal(t, untainted, api.taints())
	assert.NotContains(t, log.String(), "check skipped")
}

func TestOnceNotVerified(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	port := closedPort(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "NETWORK_TARGETS": "127.0.0.1:" + port},
		"--once", "--max-retries=0", "--initial-timeout=1s", "--check-timeout=1s")
	assert.Equal(t, exitNotVerified, p.wait())

	assert.NotContains(t, api.seen(), patchNode)
	assert.Equal(t, tainted, api.taints())
	const remedy = " (check that something listens on this port of the host, or that the service has a ready endpoint)"
	failure := "network: TCP 127.0.0.1:" + port + ": connection refused" + remedy
	assert.Equal(t, []string{"NodeNotVerified", "NodeVerificationTimedOut"}, api.reasons())
	for _, event := range api.events {
		assert.Equal(t, corev1.EventTypeWarning, event.Type)
	}
	assert.Regexp(t, `^since [-0-9T:]+Z: `, api.events[0].Message)
	assert.True(t, strings.HasSuffix(api.events[0].Message, "Z: "+failure), api.events[0].Message)
	assert.Equal(t, "not verified within 1s: "+failure, api.events[1].Message)
	assert.Equal(t, "failed: network", p.entry("node not verified")["reason"])
	assert.Equal(t, "not verified within 1s: "+failure, p.entry("initial timeout exceeded")["reason"])
}

func TestEachRoundProvesThePath(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	var connections []string
	api.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
		if request == getNode {
			connections = append(connections, r.RemoteAddr)
		}
		return request == patchNode && n == 1 && answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "denied by policy")
	})
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	require.Len(t, connections, 2)
	assert.NotEqual(t, connections[0], connections[1], "from TCP on")
	assert.Contains(t, api.node.Annotations[nodepatch.Annotation], `"attempts":{"api":2,"dns":2,"network":2,"service":2}`)
}

// The api check proves that large packets reach the API server. A proxy that refuses the header does not fail it.
func TestLargeHeader(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"taken": http.StatusOK, "refused": http.StatusRequestHeaderFieldsTooLarge} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			api.intercept(func(request string, n int, w http.ResponseWriter, r *http.Request) bool {
				if request == getNode && n == 1 {
					assert.Greater(t, len(r.Header.Get("X-Kube-Node-Ready-Padding")), 2*1400)
				} else {
					assert.Empty(t, r.Header.Get("X-Kube-Node-Ready-Padding"))
				}
				return code != http.StatusOK && n == 1 && request == getNode && answerStatus(w, code, "", "too large")
			})
			p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once")
			assert.Equal(t, exitOK, p.wait(), p.stderr)
			if code != http.StatusOK {
				assert.Contains(t, p.entry("check passed with a warning")["warning"], "refuses a header of")
			}
		})
	}
}

// A kubeconfig may name a proxy for its cluster, other than the proxy of the environment.
func TestProxyOfTheKubeconfig(t *testing.T) {
	t.Parallel()
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
	assert.Contains(t, p.stdout.String(), "; no kubeconfig, or its API server is behind a proxy; no NETWORK_TARGETS")
	assert.Equal(t, "CONNECT "+api.server.Listener.Addr().String(), asked.Load())
}

// A container that is started again on a node that it has released cannot read the node at first, and a check fails: no agent would be
// left to take back a False.
func TestNoFalseOnAVerifiedNode(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.edit(setReleased)
		api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
			return request == getNode && n == 1 && answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "no")
		})
		p, _ := simulateFailing(t, api, "--condition=always")
		after(2 * initialTimeout)
		assert.Empty(t, api.written())
		p.stop()
		p.wait()
	})
}
