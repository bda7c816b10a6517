package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/metrics"
)

var (
	tainted   = []string{"foreign/front", "node-ready/unverified", "foreign/behind"}
	untainted = []string{"foreign/front", "foreign/behind"}
)

// process is one run(), with what a terminal and a kernel are to a real one.
type process struct {
	t              *testing.T
	signals        chan os.Signal
	stdout, stderr *output
	done           chan struct{}
	code           int
}

// start calls run with the variables in env, and nothing of the machine's own configuration. A
// name in the list of DNS names that is a service's is skipped outside a cluster.
func start(t *testing.T, env map[string]string, args ...string) *process {
	for _, variable := range []string{"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"} {
		t.Setenv(variable, "")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	all := map[string]string{
		"NODE_NAME": "node1", "ENABLE_METRICS": "false", "DNS_TEST_DOMAINS": "kubernetes.default.svc.cluster.local",
	}
	maps.Copy(all, env)
	p := &process{
		t: t, signals: make(chan os.Signal), done: make(chan struct{}),
		stdout: newOutput(), stderr: newOutput(),
	}
	go func() {
		defer close(p.done)
		p.code = run(args, lookup(all), p.signals, p.stdout, p.stderr)
	}()
	return p
}

// wait returns the exit code.
func (p *process) wait() int {
	<-p.done
	return p.code
}

// logged waits until text is in the log.
func (p *process) logged(text string) {
	for {
		log, changed := p.stderr.read()
		if strings.Contains(log, text) {
			return
		}
		select {
		case <-changed:
		case <-p.done:
			log, _ := p.stderr.read()
			require.Contains(p.t, log, text, "ended before")
			return
		}
	}
}

// stop sends a signal and returns when it has taken effect: run listens for the second one only
// then, and that one has no effect but to end a linger.
func (p *process) stop() {
	p.signals <- syscall.SIGTERM
	p.signals <- syscall.SIGTERM
}

// entries are the lines of the log.
func (p *process) entries() (list []map[string]any) {
	text, _ := p.stderr.read()
	for line := range strings.Lines(text) {
		var entry map[string]any
		require.NoError(p.t, json.Unmarshal([]byte(line), &entry), line)
		list = append(list, entry)
	}
	return list
}

// entry is the first line of the log with this message.
func (p *process) entry(message string) map[string]any {
	for _, entry := range p.entries() {
		if entry["msg"] == message {
			return entry
		}
	}
	text, _ := p.stderr.read()
	require.Fail(p.t, "not logged", "%s\n%s", message, text)
	return nil
}

type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func newOutput() *output { return &output{changed: make(chan struct{})} }

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.text.Write(b)
}

func (o *output) read() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String(), o.changed
}

func (o *output) String() string {
	text, _ := o.read()
	return text
}

// listen returns the address of a server that takes connections.
func listen(t *testing.T) *net.TCPAddr {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return listener.Addr().(*net.TCPAddr)
}

// closedPort returns a port of 127.0.0.1 that refuses connections.
func closedPort(t *testing.T) string {
	listener, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

func get(t *testing.T, port, path string) (code int, body string) {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+path, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

// inCluster makes an agent that takes api for the cluster that it is in. Name servers are asked at
// port 53 only, so the dns check is left out.
func inCluster(t *testing.T, api *fakeAPI, args ...string) (*agent, *output) {
	u, err := url.Parse(api.server.URL)
	require.NoError(t, err)
	lookup := lookup(map[string]string{
		"NODE_NAME": "node1", "KUBECONFIG": api.kubeconfig,
		"KUBERNETES_SERVICE_HOST": u.Hostname(), "KUBERNETES_SERVICE_PORT": u.Port(),
	})
	cfg, err := parseConfig(append(args, "--once", "--max-retries=0"), lookup, io.Discard)
	require.NoError(t, err)
	place := locate(cfg, lookup)
	require.NoError(t, place.noAPI)
	stderr := newOutput()
	a := newAgent(cfg, place, metrics.New("node1", checks.Names(), metrics.Build{}), newLogger(cfg, stderr).WithField("node", "node1"))
	require.Equal(t, checks.DNSName, a.checks[0].Name())
	a.checks = a.checks[1:]
	return a, stderr
}

// dnsSlice says that a pod of the DNS service listens at addr.
func dnsSlice(addr *net.TCPAddr) discoveryv1.EndpointSlice {
	name, port, protocol := "metrics", int32(addr.Port), corev1.ProtocolTCP
	return discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-dns-1", Namespace: "kube-system"}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{addr.IP.String()}}},
	}
}

func TestVersion(t *testing.T) {
	p := start(t, map[string]string{"NODE_NAME": ""}, "--version")
	assert.Equal(t, exitOK, p.wait())
	assert.Equal(t, "kube-node-ready dev (commit unknown, built unknown, "+runtime.Version()+")\n", p.stdout.String())
	assert.Empty(t, p.stderr.String())
}

func TestHelpOnStdout(t *testing.T) {
	p := start(t, nil, "--help")
	assert.Equal(t, exitOK, p.wait())
	assert.Contains(t, p.stdout.String(), "Usage: kube-node-ready [flags]")
	assert.Empty(t, p.stderr.String())
}

func TestUsageStartsNothing(t *testing.T) {
	api := newFakeAPI(t)
	taken, err := net.Listen("tcp", ":0") // would be the next error
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	p := start(t, map[string]string{
		"KUBECONFIG": api.kubeconfig, "CHECK_TIMEOUT": "3", "ENABLE_METRICS": "true",
		"METRICS_PORT": strconv.Itoa(taken.Addr().(*net.TCPAddr).Port),
	}, "--taint-effect=Never", "--once")
	assert.Equal(t, exitUsage, p.wait())
	assert.Equal(t, `kube-node-ready: CHECK_TIMEOUT (--check-timeout) "3": must be a duration between 100ms and 5m0s, such as 500ms, 3s or 5m
kube-node-ready: --taint-effect "Never": must be one of NoSchedule, PreferNoSchedule, NoExecute
`, p.stderr.String())
	assert.Empty(t, p.stdout.String())
	assert.Empty(t, api.seen())
}

func TestPortInUse(t *testing.T) {
	api := newFakeAPI(t)
	taken, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "ENABLE_METRICS": "true", "METRICS_PORT": port})
	assert.Equal(t, exitNotVerified, p.wait())
	require.Len(t, p.entries(), 1)
	entry := p.entry("start: choose another port with --metrics-port, or --enable-metrics=false")
	assert.Equal(t, "error", entry["level"])
	assert.Equal(t, "node1", entry["node"])
	assert.Equal(t, "metrics port "+port+" cannot be bound: listen tcp :"+port+": bind: address already in use", entry["error"])
	assert.Empty(t, api.seen())
}

func TestNoAPIAccess(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
	for name, test := range map[string]struct {
		kubeconfig, want string
	}{
		"none":    {"", "no kubeconfig"},
		"missing": {missing, "stat " + missing + ": no such file or directory"},
		"broken":  {broken, `error loading config file "` + broken + `": yaml: line 1: did not find expected node content`},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, nil, "--kubeconfig="+test.kubeconfig)
			assert.Equal(t, exitNotVerified, p.wait())
			require.Len(t, p.entries(), 1)
			entry := p.entry("no access to the Kubernetes API: run in a pod with a service account token, or name a kubeconfig (--kubeconfig)")
			assert.Equal(t, test.want, entry["error"])
		})
	}
}

func TestKubeconfigList(t *testing.T) {
	api := newFakeAPI(t)
	list := filepath.Join(t.TempDir(), "missing") + string(os.PathListSeparator) + api.kubeconfig
	p := start(t, map[string]string{"KUBECONFIG": list}, "--once")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
}

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
	assert.Equal(t, map[string]int{"dns": 1, "api": 1, "network": 1, "service": 1}, verification.Attempts)

	require.Len(t, api.events, 1)
	event := api.events[0]
	assert.Equal(t, corev1.EventTypeNormal, event.Type)
	assert.Equal(t, "NodeVerified", event.Reason)
	assert.Regexp(t, `^DNS, API, network and service discovery work; verified in [0-9.]+(µ|m)?s$`, event.Message)
	assert.Equal(t, corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node1", UID: "node1"}, event.InvolvedObject)
	assert.Equal(t, "default", event.Namespace)
	assert.Equal(t, "kube-node-ready", event.ReportingController)
	assert.Equal(t, "info", p.entry("node verified: taint off, label on")["level"])
	assert.Empty(t, p.stdout.String())
}

func TestInCluster(t *testing.T) {
	api := newFakeAPI(t)
	api.slices = []discoveryv1.EndpointSlice{dnsSlice(listen(t))}
	a, log := inCluster(t, api)
	assert.True(t, a.run(t.Context()))
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
	assert.False(t, a.run(ctx))
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

func TestSuccessThreshold(t *testing.T) {
	api := newFakeAPI(t)
	var connections []string
	api.before = func(request string, _ int, _ http.ResponseWriter, r *http.Request) bool {
		if request == getNode {
			connections = append(connections, r.RemoteAddr)
		}
		return false
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--success-threshold=2")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	require.Len(t, connections, 2)
	assert.NotEqual(t, connections[0], connections[1], "each round proves the path from TCP on")
	assert.Equal(t, []string{getNode, getNode, patchNode, postEvent}, api.seen())
	assert.Contains(t, api.node.Annotations["node-ready/verification"], `"attempts":{"api":2,"dns":2,"network":2,"service":2}`)
}

func TestOtherEffectIsTakenOffWithWarning(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--taint-effect=NoExecute")
	assert.Equal(t, exitOK, p.wait(), p.stderr)
	assert.Equal(t, untainted, api.taints())
	entry := p.entry("taint has another effect than TAINT_EFFECT: taking it off all the same")
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
	p.entry("node is verified already")
}

func TestHoldUntilSignal(t *testing.T) {
	for name, test := range map[string]struct {
		open    bool
		message string
		want    []string
	}{
		"verified now":     {message: "node verified: taint off, label on", want: []string{getNode, patchNode, postEvent}},
		"verified already": {open: true, message: "node is verified already", want: []string{getNode}},
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
			p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, append(test.args, "--check-timeout=5m", "--success-threshold=2")...)
			<-reached
			p.stop()
			assert.Equal(t, test.code, p.wait())
			assert.Equal(t, test.want, api.seen())
			assert.Equal(t, tainted, api.taints())
			assert.NotContains(t, p.stderr.String(), "serving the final metrics", "there are none to wait for")
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
	p.logged("node has no taint to take off")
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
	assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
	assert.Equal(t, untainted, api.taints())
	assert.Equal(t, []string{"NodeVerified"}, api.reasons())
}

func TestLinger(t *testing.T) {
	api := newFakeAPI(t)
	port := closedPort(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig, "ENABLE_METRICS": "true", "METRICS_PORT": port}, "--metrics-linger=1h")
	p.logged("node verified: taint off, label on")
	p.signals <- syscall.SIGTERM
	p.logged("told to stop: serving the final metrics first")
	_, body := get(t, port, "/metrics")
	assert.Contains(t, body, `node_check_status{node="node1"} 1`+"\n")

	p.signals <- syscall.SIGTERM
	assert.Equal(t, exitOK, p.wait())
	p.entry("told to stop again: ending at once")
	_, err := net.Dial("tcp", "127.0.0.1:"+port)
	require.ErrorContains(t, err, "connection refused")
	assert.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
}

func TestLingerEnds(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--metrics-linger=1ms")
	p.logged("node verified: taint off, label on")
	p.signals <- syscall.SIGTERM
	assert.Equal(t, exitOK, p.wait())
	p.entry("told to stop: serving the final metrics first")
}

func TestDryRun(t *testing.T) {
	const operations = `would be sent to node node1:
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
	open := newFakeAPI(t)
	open.node.Labels["node-ready/verified"], open.node.Spec.Taints = "true", nil
	port := closedPort(t)

	for name, test := range map[string]struct {
		api      *fakeAPI // nil for none
		env      map[string]string
		requests []string
		code     int
		want     []string // lines, without the durations
		end      string
	}{
		"passed": {
			api: newFakeAPI(t), requests: []string{getNode},
			want: []string{
				"kube-node-ready dev, dry run: nothing is written",
				"SKIP dns kubernetes.default.svc.cluster.local: " + outside,
				"PASS api T node node1 read",
				"PASS network T API accepts",
				"SKIP service pod addresses are not reached from here: " + outside,
				"PASSED: 2 passed, 0 failed, 2 skipped",
			},
			end: operations,
		},
		"no node": {
			api: newFakeAPI(t), env: map[string]string{"NODE_NAME": ""}, requests: []string{getAPI},
			want: []string{
				"kube-node-ready dev, dry run: nothing is written",
				"SKIP dns kubernetes.default.svc.cluster.local: " + outside,
				"PASS api T authenticated; no --node-name, so no node was read",
				"PASS network T API accepts",
				"SKIP service pod addresses are not reached from here: " + outside,
				"PASSED: 2 passed, 0 failed, 2 skipped",
			},
		},
		"verified already": {
			api: open, requests: []string{getNode}, env: map[string]string{"DNS_SERVICE": ""},
			want: []string{
				"kube-node-ready dev, dry run: nothing is written",
				"SKIP dns kubernetes.default.svc.cluster.local: " + outside,
				"PASS api T node node1 read",
				"PASS network T API accepts",
				"SKIP service DNS_SERVICE is empty",
				"PASSED: 2 passed, 0 failed, 2 skipped",
				"node node1 is verified already: nothing would be patched",
			},
		},
		"failed": {
			api: newFakeAPI(t), requests: []string{getNode}, env: map[string]string{"NETWORK_TARGETS": "127.0.0.1:" + port},
			code: exitNotVerified,
			want: []string{
				"kube-node-ready dev, dry run: nothing is written",
				"SKIP dns kubernetes.default.svc.cluster.local: " + outside,
				"PASS api T node node1 read",
				"FAIL network T TCP 127.0.0.1:" + port + ": connection refused",
				"to try: the host answers but nothing listens, or the service has no ready endpoint",
				"SKIP service pod addresses are not reached from here: " + outside,
				"FAILED: 1 passed, 1 failed, 2 skipped",
			},
		},
		"no kubeconfig": {
			want: []string{
				"kube-node-ready dev, dry run: nothing is written",
				"SKIP dns kubernetes.default.svc.cluster.local: " + outside,
				"SKIP api no kubeconfig",
				"SKIP network " + outside + ", no kubeconfig, no NETWORK_TARGETS",
				"SKIP service no kubeconfig",
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
			assert.Equal(t, test.want, got)
			assert.Empty(t, p.stderr.String())
			if test.api != nil {
				assert.Equal(t, test.requests, test.api.seen())
			}
		})
	}
}

// A pod without a token is broken; a desk without a kubeconfig is not.
func TestChecksWithoutAPI(t *testing.T) {
	cfg, err := parse(nil)
	require.NoError(t, err)
	p := place{noAPI: errors.New("no token"), service: "10.96.0.1:443"}
	asked := false
	list := newChecks(cfg, p, checks.API{Get: func(context.Context) (string, time.Duration, error) {
		asked = true
		return "", 0, p.noAPI
	}})
	require.Len(t, list, 4)
	_, err = list[1].Try(t.Context())
	require.EqualError(t, err, "no token")
	assert.True(t, asked)
	report, err := list[3].Try(t.Context())
	require.NoError(t, err)
	assert.Equal(t, checks.Report{Skipped: "the endpoints of kube-system/kube-dns cannot be listed without the API"}, report)
}

func TestDryRunInterrupted(t *testing.T) {
	api := newFakeAPI(t)
	reached := make(chan struct{})
	api.before = func(_ string, _ int, _ http.ResponseWriter, r *http.Request) bool {
		close(reached)
		<-r.Context().Done()
		return false
	}
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--dry-run", "--check-timeout=5m")
	<-reached
	p.stop()
	assert.Equal(t, exitNotVerified, p.wait())
	assert.True(t, strings.HasSuffix(p.stdout.String(), "\ninterrupted\n"), p.stdout)
	assert.Equal(t, []string{getNode}, api.seen())
}

func TestLogFormatAndLevel(t *testing.T) {
	api := newFakeAPI(t)
	p := start(t, map[string]string{"KUBECONFIG": api.kubeconfig}, "--once", "--log-format=console")
	assert.Equal(t, exitOK, p.wait())
	assert.Contains(t, p.stderr.String(), "node verified: taint off, label on")
	assert.NotContains(t, p.stderr.String(), `"msg"`)

	p = start(t, map[string]string{"KUBECONFIG": newFakeAPI(t).kubeconfig}, "--once", "--log-level=warn")
	assert.Equal(t, exitOK, p.wait())
	assert.Empty(t, p.stderr.String())
}
