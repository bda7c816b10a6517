package agent

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDryRun(t *testing.T) {
	t.Parallel()
	const operations = `would send this patch to node node1:
  {"op":"test","path":"/metadata/uid","value":"uid-1"}
  {"op":"test","path":"/spec/taints/1/key","value":"node-ready/unverified"}
  {"op":"test","path":"/spec/taints/1/effect","value":"NoSchedule"}
  {"op":"remove","path":"/spec/taints/1","value":null}
  {"op":"add","path":"/metadata/labels/node-ready~1verified","value":"true"}
  {"op":"test","path":"/metadata/annotations","value":null}
  {"op":"add","path":"/metadata/annotations","value":{}}
  {"op":"add","path":"/metadata/annotations/node-ready~1verification","value":"{…}"}
`
	const outside = "not inside a cluster (KUBERNETES_SERVICE_HOST is not set)"
	verified := newFakeAPI(t)
	verified.node.Labels["node-ready/verified"], verified.node.Spec.Taints = "true", nil
	port := closedPort(t)

	for name, test := range map[string]struct {
		api      *fakeAPI // nil for none
		env      map[string]string
		requests []string
		code     int
		want     []string // the lines behind the first two, without the durations
		end      string
	}{
		"passed": {
			api: newFakeAPI(t), requests: []string{getNode},
			want: []string{
				"PASS api T node node1 read",
				"PASS network T API accepts",
				"SKIP service pod addresses cannot be reached from here: " + outside,
				"PASSED: 2 passed, 0 failed, 2 skipped",
			},
			end: operations,
		},
		"passed, with the condition": {
			api: newFakeAPI(t), requests: []string{getNode}, env: map[string]string{"CONDITION": "always"},
			want: []string{
				"PASS api T node node1 read",
				"PASS network T API accepts",
				"SKIP service pod addresses cannot be reached from here: " + outside,
				"PASSED: 2 passed, 0 failed, 2 skipped",
				"would write the condition NodeVerified of node node1: True",
			},
			end: operations,
		},
		"no node": {
			api: newFakeAPI(t), env: map[string]string{"NODE_NAME": ""}, requests: []string{getAPI},
			want: []string{
				"PASS api T authenticated; no --node-name, so no node was read",
				"PASS network T API accepts",
				"SKIP service pod addresses cannot be reached from here: " + outside,
				"PASSED: 2 passed, 0 failed, 2 skipped",
			},
		},
		"verified already": {
			api: verified, requests: []string{getNode}, env: map[string]string{"DNS_SERVICE": ""},
			want: []string{
				"PASS api T node node1 read",
				"PASS network T API accepts",
				"SKIP service DNS_SERVICE is empty",
				"PASSED: 2 passed, 0 failed, 2 skipped",
				"node node1 is already verified: nothing would be patched",
			},
		},
		"failed": {
			api: newFakeAPI(t), requests: []string{getNode}, env: map[string]string{"NETWORK_TARGETS": "127.0.0.1:" + port},
			code: exitNotVerified,
			want: []string{
				"PASS api T node node1 read",
				"FAIL network T TCP 127.0.0.1:" + port + ": connection refused",
				"to try: check that something listens on this port of the host, or that the service has a ready endpoint",
				"SKIP service pod addresses cannot be reached from here: " + outside,
				"FAILED: 1 passed, 1 failed, 2 skipped",
			},
		},
		"no kubeconfig": {
			want: []string{
				"SKIP api no kubeconfig",
				"SKIP network " + outside + "; no kubeconfig, or its API server is behind a proxy; no NETWORK_TARGETS",
				"SKIP service the endpoints of kube-system/kube-dns cannot be listed without the API",
				"PASSED: 0 passed, 0 failed, 4 skipped",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			env, address := map[string]string{}, ""
			if test.api != nil {
				env["KUBECONFIG"], address = test.api.kubeconfig, strings.TrimPrefix(test.api.server.URL, "https://")
			}
			maps.Copy(env, test.env)
			p := start(t, env, "--dry-run")
			assert.Equal(t, test.code, p.wait())
			out, end := p.stdout.String(), test.end
			require.True(t, strings.HasSuffix(out, end), out)
			var got []string
			for line := range strings.Lines(strings.TrimSuffix(out, end)) {
				words := strings.Fields(line)
				if len(words) > 2 && (words[0] == "PASS" || words[0] == "FAIL") {
					_, err := time.ParseDuration(words[2])
					assert.NoError(t, err, line)
					words[2] = "T"
				}
				line := strings.Join(words, " ")
				if address != "" {
					line = strings.ReplaceAll(line, address, "API")
				}
				got = append(got, line)
			}
			head := []string{"kube-node-ready dev, dry run: nothing is written", "SKIP dns kubernetes.default.svc.cluster.local: " + outside}
			assert.Equal(t, append(head, test.want...), got)
			assert.Empty(t, p.stderr.String())
			if test.api != nil {
				assert.Equal(t, test.requests, test.api.seen())
			}
		})
	}
}

func TestDryRunInterrupted(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	reached := make(chan struct{})
	api.intercept(func(_ string, _ int, _ http.ResponseWriter, r *http.Request) bool {
		close(reached)
		<-r.Context().Done()
		return false
	})
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--dry-run", "--check-timeout=5m")
	p.waitFor(reached, "no request was sent")
	p.stop()
	assert.Equal(t, exitNotVerified, p.wait())
	assert.True(t, strings.HasSuffix(p.stdout.String(), "\ninterrupted\n"), p.stdout)
	assert.Equal(t, []string{getNode}, api.seen())
}

// Without a node too, the api check sends large packets to the API server, or warns.
func TestDryRunWithoutANodeSendsALargeHeader(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	var padding []int
	api.intercept(func(_ string, _ int, w http.ResponseWriter, r *http.Request) bool {
		padding = append(padding, len(r.Header.Get("X-Kube-Node-Ready-Padding")))
		return len(padding) == 1 && answerStatus(w, http.StatusRequestHeaderFieldsTooLarge, metav1.StatusReasonUnknown, "too large")
	})
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "NODE_NAME": ""}, "--dry-run")
	assert.Equal(t, exitOK, p.wait())
	require.Equal(t, []string{getAPI, getAPI}, api.seen())
	assert.Greater(t, padding[0], 2*1400)
	assert.Zero(t, padding[1])
	assert.Contains(t, p.stdout.String(), "warning: the API server, or a proxy on the path, refuses a header of ")
}
