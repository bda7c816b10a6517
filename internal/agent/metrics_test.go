package agent

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPatchRetryIsCounted(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.intercept(func(request string, n int, w http.ResponseWriter, _ *http.Request) bool {
		return request == patchNode && n == 1 && answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict, "changed")
	})
	port := closedPort(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "ENABLE_METRICS": "true", "METRICS_PORT": port})
	p.logged("node verified")
	_, body := get(t, port, "/metrics")
	assert.Contains(t, body, `node_check_patch_retries_total{node="node1"} 1`+"\n")
	p.stop()
	assert.Equal(t, exitOK, p.wait())
}

func TestHoldUntilSignal(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		already bool
		message string
		want    []string
	}{
		"verified now":     {message: "node verified", want: []string{getNode, patchNode, postEvent, getNode}},
		"verified already": {already: true, message: "node is already verified", want: []string{getNode}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newFakeAPI(t)
			if test.already {
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
			if test.already {
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
	t.Parallel()
	api := newFakeAPI(t)
	timedOut := make(chan struct{})
	api.intercept(func(request string, _ int, _ http.ResponseWriter, _ *http.Request) bool {
		if request == postEvent && len(api.reasons()) == 1 {
			close(timedOut)
		}
		return false
	})
	port := closedPort(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "ENABLE_METRICS": "true", "METRICS_PORT": port, "NETWORK_TARGETS": "127.0.0.1:" + closedPort(t)},
		"--max-retries=0", "--initial-timeout=1s", "--check-timeout=1s")
	p.waitFor(timedOut, "no second Event was sent")
	code, _ := get(t, port, "/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	code, _ = get(t, port, "/healthz")
	assert.Equal(t, http.StatusOK, code)
	_, body := get(t, port, "/metrics")
	assert.Contains(t, body, `node_check_status{node="node1"} 0`+"\n")
	assert.Contains(t, body, `node_check_timed_out{node="node1"} 1`+"\n")
	assert.Regexp(t, `node_check_failures_total\{check="network",node="node1"\} [12]\n`, body)
	assert.Contains(t, body, `node_check_failures_total{check="dns",node="node1"} 0`+"\n")
	p.logged("initial timeout exceeded")
	p.stop()
	assert.Equal(t, exitOK, p.wait(), "the rounds went on until SIGTERM")
	assert.Equal(t, tainted, api.taints())
}

func TestLinger(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	port := closedPort(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "ENABLE_METRICS": "true", "METRICS_PORT": port}, "--metrics-linger=1h")
	p.logged("node verified")
	p.terminate()
	p.logged("shutting down: serving final metrics")
	_, body := get(t, port, "/metrics")
	assert.Contains(t, body, `node_check_status{node="node1"} 1`+"\n")

	p.kill()
	assert.Equal(t, exitOK, p.wait())
	p.entry("second signal: exiting")
	_, err := net.Dial("tcp", "127.0.0.1:"+port)
	require.ErrorContains(t, err, "connection refused")
	assert.Equal(t, []string{getNode, patchNode, postEvent, getNode}, api.seen())
}
