package main

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

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
