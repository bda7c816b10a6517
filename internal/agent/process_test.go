package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/oneround"
	"github.com/imunhatep/kube-node-ready/metrics"
)

var (
	tainted   = []string{"foreign/front", "node-ready/unverified", "foreign/behind"}
	untainted = []string{"foreign/front", "foreign/behind"}
)

const (
	exitOK          = 0
	exitNotVerified = 1
)

// process is one run of the agent, with what a terminal and a kernel are to a real one: package main without the process.
type process struct {
	t              *testing.T
	terminate      context.CancelFunc // the first signal
	process        context.Context    // ends at the second signal
	kill           context.CancelFunc
	stdout, stderr *output
	done           chan struct{}
	code           int
	agent          *Agent // of a simulation
}

// start runs an agent in the cluster whose API server the kubeconfig names, with the variables in env and nothing of the
// machine's own configuration. Name servers are queried on port 53 only, so the dns check is skipped here, and so is
// the service check unless a test asks for it.
func start(t *testing.T, env map[string]string, args ...string) *process {
	// Of a list the files that are missing count as empty, and client-go does not look for the machine's own.
	none := filepath.Join(t.TempDir(), "a") + string(filepath.ListSeparator) + filepath.Join(t.TempDir(), "b")
	all := map[string]string{"NODE_NAME": "node1", "KUBECONFIG": none, "ENABLE_METRICS": "false",
		"DNS_TEST_DOMAINS": "kubernetes.default.svc.cluster.local"}
	if !slices.Contains(args, "--dry-run") {
		all["DNS_SERVICE"] = ""
	}
	maps.Copy(all, env)
	if !slices.Contains(args, "--dry-run") {
		all["KUBERNETES_SERVICE_HOST"], all["KUBERNETES_SERVICE_PORT"] = serverOf(t, all["KUBECONFIG"])
	}
	cfg, err := config.Parse(args, lookup(all), io.Discard)
	require.NoError(t, err)
	ctx, terminate := context.WithCancel(context.Background())
	p := &process{
		t: t, terminate: terminate, done: make(chan struct{}), stdout: newOutput(), stderr: newOutput(),
	}
	p.process, p.kill = context.WithCancel(context.Background())
	e := kube.DetectEnvironment(cfg.Kubeconfig, lookup(all), "kube-node-ready/dev")
	go func() {
		defer close(p.done)
		ok := false
		if cfg.DryRun {
			ok = oneround.DryRun(ctx, cfg, e, "dev", p.stdout)
		} else {
			recorder := metrics.New("node1", checks.Names(), "dev", "")
			if cfg.EnableMetrics {
				server, err := metrics.Listen(cfg.MetricsPort, recorder.Handler(), 0)
				if !assert.NoError(t, err) {
					return
				}
				defer func() { _ = server.Shutdown(context.Background()) }()
			}
			a := New(cfg, e, recorder, newLog(cfg, p.stderr), "dev")
			a.Checks = withoutDNS(a.Checks)
			ok = a.Run(ctx, p.process) || !cfg.Once
		}
		if !ok {
			p.code = exitNotVerified
		}
	}()
	return p
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(key string) (string, bool) {
		value, ok := env[key]
		return value, ok
	}
}

// serverOf returns host and port of the API server in a kubeconfig.
func serverOf(t *testing.T, kubeconfig string) (host, port string) {
	text, err := os.ReadFile(kubeconfig)
	require.NoError(t, err)
	found := regexp.MustCompile(`https://([^:"]+):([0-9]+)`).FindSubmatch(text)
	require.NotNil(t, found)
	return string(found[1]), string(found[2])
}

func newLog(cfg config.Config, out io.Writer) *logrus.Entry {
	log := logrus.New()
	log.SetOutput(out)
	log.SetFormatter(&logrus.JSONFormatter{})
	level, _ := logrus.ParseLevel(cfg.LogLevel)
	log.SetLevel(level)
	return log.WithField("node", cfg.NodeName)
}

func withoutDNS(list checklist.List) checklist.List {
	return func(api checks.API, o checklist.Options) []checks.Check {
		return append([]checks.Check{checks.Skip(checks.DNSName, "a test")}, list(api, o)[1:]...)
	}
}

// patience is longer than any test waits. A simulation waits for hours, which take no time.
func (p *process) patience() time.Duration {
	if p.agent != nil {
		return 4 * time.Hour
	}
	return realPatience
}

const realPatience = 2 * time.Minute

// wait returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	p.waitFor(p.done, "the agent has not ended")
	return p.code
}

// waitFor waits until a channel is closed.
func (p *process) waitFor(event <-chan struct{}, failure string) {
	p.t.Helper()
	select {
	case <-event:
	case <-time.After(p.patience()):
		require.Fail(p.t, failure, p.stderr)
	}
}

// logged waits until text is in the log.
func (p *process) logged(text string) { p.loggedOften(text, 1) }

// loggedOften waits until text is in the log n times.
func (p *process) loggedOften(text string, n int) {
	limit := time.After(p.patience())
	for {
		log, changed := p.stderr.read()
		if strings.Count(log, text) >= n {
			return
		}
		select {
		case <-changed:
		case <-p.done:
			log, _ := p.stderr.read()
			require.GreaterOrEqual(p.t, strings.Count(log, text), n, "the agent has ended before it logged: %s\n%s", text, log)
			return
		case <-limit:
			require.Fail(p.t, "not logged", "%s\n%s", text, log)
		}
	}
}

// stop sends both signals.
func (p *process) stop() {
	p.terminate()
	p.kill()
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
	for { // below the ports that the kernel gives to connections: one of a test beside this one could take it
		port := strconv.Itoa(10000 + rand.IntN(10000))
		if listener, err := net.Listen("tcp", ":"+port); err == nil {
			require.NoError(t, listener.Close())
			return port
		}
	}
}

func get(t *testing.T, port, path string) (code int, body string) {
	ctx, cancel := context.WithTimeout(t.Context(), realPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+path, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

// inCluster makes an agent that runs all checks but dns, once.
func inCluster(t *testing.T, api *fakeAPI, args ...string) (*Agent, *output) {
	cfg, e := inClusterSettings(t, api, args...)
	stderr := newOutput()
	a := New(cfg, e, metrics.New("node1", checks.Names(), "dev", ""), newLog(cfg, stderr), "dev")
	list := a.Checks
	a.Checks = func(api checks.API, o checklist.Options) []checks.Check { return list(api, o)[1:] }
	return a, stderr
}

func inClusterSettings(t *testing.T, api *fakeAPI, args ...string) (config.Config, kube.Environment) {
	env := map[string]string{"NODE_NAME": "node1", "KUBECONFIG": api.kubeconfig}
	env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"] = serverOf(t, api.kubeconfig)
	cfg, err := config.Parse(append(args, "--once", "--max-retries=0"), lookup(env), io.Discard)
	require.NoError(t, err)
	e := kube.DetectEnvironment(cfg.Kubeconfig, lookup(env), "kube-node-ready/dev")
	require.NoError(t, e.Err)
	return cfg, e
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
