package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	semver "k8s.io/apimachinery/pkg/util/version"

	"github.com/imunhatep/kube-node-ready/internal/config"
)

// start calls run in a cluster whose API server refuses connections, with the variables in env. It returns the channel
// of its signals, and a function that waits for the exit code.
func start(t *testing.T, stdout, stderr *bytes.Buffer, env map[string]string, args ...string) (signals chan os.Signal, wait func() int) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	lookup := func(key string) (string, bool) {
		value, ok := env[key]
		if inCluster := map[string]string{"NODE_NAME": "node1", "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}; !ok {
			value, ok = inCluster[key]
		}
		return value, ok
	}
	return running(t, func(signals chan os.Signal) int { return run(args, lookup, signals, stdout, stderr) })
}

// running calls program. It returns the channel of the program's signals, and a function that waits for the exit code.
func running(t *testing.T, program func(chan os.Signal) int) (signals chan os.Signal, wait func() int) {
	signals, code := make(chan os.Signal, 1), make(chan int, 1)
	go func() { code <- program(signals) }()
	return signals, func() int {
		t.Helper()
		select {
		case code := <-code:
			return code
		case <-time.After(patience):
			require.Fail(t, "the program has not ended")
			return -1
		}
	}
}

// patience is longer than anything here takes, even on a busy machine.
const patience = 2 * time.Minute

func exit(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	_, wait := start(t, &out, &err, env, args...)
	return wait(), out.String(), err.String()
}

// kubeconfig names an API server that refuses connections.
func kubeconfig(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
		"users": [{"name": "u", "user": {"token": "secret"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`), 0o600))
	return path
}

func TestVersionAndHelpOnStdout(t *testing.T) {
	for flag, text := range map[string]string{
		"--version": "kube-node-ready dev (commit unknown, built unknown, " + runtime.Version() + ")\n", "--help": "Usage: kube-node-ready [flags]",
	} {
		code, stdout, stderr := exit(t, map[string]string{"NODE_NAME": ""}, flag)
		assert.Equal(t, config.ExitOK, code)
		assert.Contains(t, stdout, text)
		assert.Empty(t, stderr)
	}
}

func TestUsageStartsNothing(t *testing.T) {
	taken, err := net.Listen("tcp", ":0") // would be the next error
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	code, stdout, stderr := exit(t, map[string]string{
		"KUBECONFIG": kubeconfig(t), "CHECK_TIMEOUT": "3", "METRICS_PORT": strconv.Itoa(taken.Addr().(*net.TCPAddr).Port),
	}, "--taint-effect=Never", "--once")
	assert.Equal(t, config.ExitUsage, code)
	assert.Equal(t, `kube-node-ready: CHECK_TIMEOUT (--check-timeout) "3": must be a duration between 100ms and 5m0s, such as 500ms, 3s or 5m
kube-node-ready: --taint-effect "Never": must be one of NoSchedule, PreferNoSchedule, NoExecute
`, stderr)
	assert.Empty(t, stdout)
}

// A desk's checks prove nothing about a node, so they never release one.
func TestDeskRunIsAUsageError(t *testing.T) {
	code, stdout, stderr := exit(t, map[string]string{"NODE_NAME": "", "KUBERNETES_SERVICE_HOST": "", "KUBECONFIG": kubeconfig(t)},
		"--once", "--node-name=node1")
	assert.Equal(t, config.ExitUsage, code)
	assert.Contains(t, stderr, "not inside a cluster (KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set): only --dry-run works here")
	assert.Empty(t, stdout)
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	code, _, stderr := exit(t, map[string]string{"KUBECONFIG": kubeconfig(t), "METRICS_PORT": port})
	assert.Equal(t, config.ExitError, code)
	assert.Equal(t, 1, strings.Count(stderr, "\n"), "nothing else was started")
	assert.Contains(t, stderr, `"msg":"cannot start: choose another port with --metrics-port, or --enable-metrics=false"`)
	assert.Contains(t, stderr, `"error":"metrics port `+port+` cannot be bound: listen tcp :`+port+`: bind: address already in use"`)
	assert.Contains(t, stderr, `"level":"error"`)
	assert.Contains(t, stderr, `"node":"node1"`)
}

func TestNoAPIAccess(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	broken := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))
	for name, test := range map[string]struct {
		kubeconfig, want string
	}{
		"no token": {"", "open /var/run/secrets/kubernetes.io/serviceaccount/token: no such file or directory"},
		"missing":  {missing, "stat " + missing + ": no such file or directory"},
		"broken":   {broken, `error loading config file \"` + broken + `\": yaml: line 1: did not find expected node content`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1") // client-go reads them itself
			t.Setenv("KUBERNETES_SERVICE_PORT", "1")
			code, _, stderr := exit(t, nil, "--kubeconfig="+test.kubeconfig)
			assert.Equal(t, config.ExitError, code)
			assert.Equal(t, 1, strings.Count(stderr, "\n"))
			assert.Contains(t, stderr, `"msg":"no access to the Kubernetes API: run in a pod with a service account token, or name a kubeconfig (--kubeconfig)"`)
			assert.Contains(t, stderr, `"error":"`+test.want+`"`)
		})
	}
}

func TestKubeconfigList(t *testing.T) {
	list := filepath.Join(t.TempDir(), "missing") + string(os.PathListSeparator) + kubeconfig(t)
	code, stdout, _ := exit(t, map[string]string{"KUBECONFIG": list, "KUBERNETES_SERVICE_HOST": ""}, "--dry-run")
	assert.Equal(t, config.ExitError, code)
	assert.Contains(t, stdout, "127.0.0.1:1: connection refused", "the server that the second file names")
}

// The first signal ends the run, whatever it waits for.
func TestSignal(t *testing.T) {
	var stdout, stderr bytes.Buffer
	signals, wait := start(t, &stdout, &stderr, map[string]string{"KUBECONFIG": kubeconfig(t), "ENABLE_METRICS": "false"})
	signals <- syscall.SIGTERM
	assert.Equal(t, config.ExitOK, wait())
	signals, wait = start(t, &stdout, &stderr, map[string]string{"KUBECONFIG": kubeconfig(t), "ENABLE_METRICS": "false"}, "--once")
	signals <- syscall.SIGTERM
	assert.Equal(t, config.ExitError, wait(), "there is no verdict")
}

// startWorker runs a worker against an API server that accepts connections and answers none of them. It returns the address
// of the worker's port, which is open.
func startWorker(t *testing.T, args ...string) (address string, signals chan os.Signal, stderr *bytes.Buffer, wait func() int) {
	ca := httptest.NewTLSServer(nil)
	ca.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, and nobody answers
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	port := "0"
	for free := net.Listener(nil); free == nil; { // below the ports that the kernel gives to connections
		port = strconv.Itoa(10000 + rand.IntN(10000))
		if free, _ = net.Listen("tcp", ":"+port); free != nil {
			require.NoError(t, free.Close())
		}
	}
	env := map[string]string{
		"NODE_NAME": "node1", "METRICS_PORT": port, "ENABLE_METRICS": "false", "DNS_SERVICE": "",
		"KUBECONFIG":              filepath.Join(t.TempDir(), "none"), // which no worker reads
		"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": strconv.Itoa(silent.Addr().(*net.TCPAddr).Port),
		"CLUSTER_CA": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate().Raw})),
	}
	lookup := func(key string) (string, bool) { value, ok := env[key]; return value, ok }
	stderr = new(bytes.Buffer)
	signals, wait = running(t, func(signals chan os.Signal) int {
		return run(append([]string{"--worker"}, args...), lookup, signals, io.Discard, stderr)
	})
	address = "http://127.0.0.1:" + port
	require.Eventually(t, func() bool { return get(address+"/healthz") == http.StatusOK }, time.Minute, time.Millisecond)
	return address, signals, stderr, wait
}

// get returns the status of an answer, 0 if there is none.
func get(url string) int {
	response, err := (&http.Client{Timeout: patience}).Get(url)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// The port is open from the start, even without ENABLE_METRICS. An answer of /readyz may take longer than any other one.
func TestWorkerAnswersWithItsVerdict(t *testing.T) {
	t.Parallel()
	address, _, stderr, wait := startWorker(t, "--max-retries=0", "--check-timeout=10100ms")
	assert.Equal(t, http.StatusNotFound, get(address+"/metrics"))
	assert.Equal(t, http.StatusServiceUnavailable, get(address+"/readyz"))
	assert.Equal(t, config.ExitError, wait(), "at once")
	assert.Contains(t, stderr.String(), `"msg":"node not verified"`)
	assert.Contains(t, stderr.String(), "TCP connects, but the TLS handshake does not end")
	assert.Zero(t, get(address+"/healthz"), "the port is closed")
}

func TestWorkerSignal(t *testing.T) {
	t.Parallel()
	_, signals, stderr, wait := startWorker(t, "--check-timeout=5m")
	signals <- syscall.SIGTERM
	assert.Equal(t, config.ExitError, wait(), "there is no verdict")
	assert.Contains(t, stderr.String(), `"msg":"shutting down before the verdict"`)
}

func TestWorkerUsage(t *testing.T) {
	code, stdout, stderr := exit(t, map[string]string{"NODE_NAME": "", "DNS_ENDPOINTS": "kube-dns:53"}, "--worker")
	assert.Equal(t, config.ExitUsage, code)
	assert.Empty(t, stdout)
	assert.Equal(t, 3, strings.Count(stderr, "\n"), stderr)
	for _, name := range []string{"DNS_ENDPOINTS", "NODE_NAME", "CLUSTER_CA"} {
		assert.Contains(t, stderr, name)
	}
}

func TestLogFormatAndLevel(t *testing.T) {
	env := map[string]string{"KUBECONFIG": kubeconfig(t), "ENABLE_METRICS": "false"}
	args := []string{"--once", "--max-retries=0", "--initial-timeout=1s", "--check-timeout=1s"}
	_, _, stderr := exit(t, env, append(args, "--log-format=console")...)
	assert.Contains(t, stderr, "initial timeout exceeded")
	assert.NotContains(t, stderr, `"msg"`)
	assert.Contains(t, stderr, "level=info")

	_, _, stderr = exit(t, env, append(args, "--log-level=error")...)
	assert.Contains(t, stderr, `"msg":"initial timeout exceeded"`)
	assert.NotContains(t, stderr, `"level":"info"`)
	assert.NotContains(t, stderr, `"level":"warning"`)
}

// Images and charts up to 0.5.0 exist under the same names: Helm offers the highest version, and an agent never runs as an older one.
func TestVersionIsAboveTheLastRelease(t *testing.T) {
	find := func(path, pattern string) (found []*semver.Version) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			found = append(found, semver.MustParseSemantic(string(match[1])))
		}
		return found
	}
	releases := find("CHANGELOG.md", `(?m)^## \[(\d.*)\]`)
	require.GreaterOrEqual(t, len(releases), 2)
	assert.Equal(t, "0.5.0", releases[len(releases)-1].String(), "the last release of the former implementation")
	for i := 1; i < len(releases); i++ {
		assert.True(t, releases[i-1].GreaterThan(releases[i]), "%s is above %s", releases[i-1], releases[i])
	}
	assert.Equal(t, releases[:1], find("chart/Chart.yaml", `(?m)^appVersion: "(.*)"$`), "the newest in CHANGELOG.md")
	assert.Equal(t, releases[:1], find("chart/Chart.yaml", `(?m)^version: (.*)$`))
}

// Every image, chart, file and page of a release that a document or the chart names is of the version that is released next, and the
// pages are files of this repository.
func TestVersionsInDocuments(t *testing.T) {
	text, err := os.ReadFile("chart/Chart.yaml")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^version: (.*)$`).FindStringSubmatch(string(text))[1]
	image := regexp.MustCompile(`ghcr\.io/imunhatep/[a-z/-]+:([\w.-]+)`)
	chart := regexp.MustCompile(`oci://ghcr\.io/imunhatep/charts/kube-node-ready --version (\S+)`)
	file := regexp.MustCompile(`(?:/kube-node-ready/(?:releases/download/|blob/|tree/)?|@refs/tags/)v(\d[\w.-]*)`)
	page := regexp.MustCompile(`(?:githubusercontent\.com/imunhatep/kube-node-ready|/blob|/tree)/v\d[\w.-]*/([\w./-]+)`)
	for path, atLeast := range map[string]int{"README.md": 3, "SECURITY.md": 4, "chart/Chart.yaml": 4, "chart/README.md": 2, "docs/how-it-decides.md": 1, "docs/platforms.md": 1} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		found := 0
		for _, pattern := range []*regexp.Regexp{image, chart, file} {
			for _, match := range pattern.FindAllStringSubmatch(string(text), -1) {
				assert.Equal(t, version, match[1], "%s: %s", path, match[0])
				found++
			}
		}
		assert.GreaterOrEqual(t, found, atLeast, path)
		for _, match := range page.FindAllStringSubmatch(string(text), -1) {
			_, err := os.Stat(match[1])
			assert.NoError(t, err, "%s: %s", path, match[0])
		}
	}
}

// Packages depend on one another in one direction only (CONTRIBUTING.md, Layout).
func TestLayout(t *testing.T) {
	const module = "github.com/imunhatep/kube-node-ready"
	allowed := map[string][]string{
		"/checks": nil, "/nodepatch": nil, "/metrics": nil,
		"/internal/kube":         {"/checks", "/internal/verdict"},
		"/internal/config":       {"/checks", "/internal/requirement", "/internal/verdict", "/nodepatch"},
		"/internal/requirement":  {"/nodepatch"},
		"/internal/condition":    {"/checks"},
		"/internal/verdict":      {"/checks", "/internal/condition"},
		"/internal/record":       nil,
		"/internal/checklist":    {"/checks", "/internal/config", "/internal/kube", "/nodepatch"},
		"/internal/nodecheck":    {"/checks", "/internal/kube", "/internal/requirement", "/nodepatch"},
		"/internal/recheck":      {"/internal/checklist", "/internal/condition", "/internal/record", "/internal/verdict", "/nodepatch"},
		"/internal/round":        {"/checks"},
		"/internal/verification": {"/checks", "/internal/recheck", "/internal/record", "/internal/round", "/internal/verdict", "/nodepatch"},
		"/internal/ownnode": {"/checks", "/internal/checklist", "/internal/config", "/internal/kube", "/internal/nodecheck", "/internal/verdict",
			"/nodepatch"},
		"/internal/oneround": {"/checks", "/internal/checklist", "/internal/config", "/internal/kube", "/internal/nodecheck", "/internal/round",
			"/internal/verdict", "/nodepatch"},
		"/internal/agent": {"/checks", "/internal/checklist", "/internal/condition", "/internal/config", "/internal/kube", "/internal/nodecheck",
			"/internal/ownnode", "/internal/recheck", "/internal/record", "/internal/round", "/internal/verdict", "/internal/verification",
			"/metrics", "/nodepatch"},
		"": {"/internal/agent", "/internal/checklist", "/internal/config", "/internal/kube", "/internal/oneround", "/metrics"},
	}
	text, err := exec.Command("go", "list", "-deps", "-f", `{{if not .Standard}}{{.ImportPath}} {{join .Imports " "}}{{end}}`, ".").Output()
	require.NoError(t, err)
	seen := 0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		from, ours := strings.CutPrefix(fields[0], module)
		if !ours {
			continue
		}
		seen++
		may, known := allowed[from]
		assert.True(t, known, "a new package: %s", from)
		for _, path := range fields[1:] {
			if to, ok := strings.CutPrefix(path, module); ok {
				assert.True(t, slices.Contains(may, to), fmt.Sprintf("%s must not import %s", from, to))
			}
			if from == "/metrics" || from == "/checks" || from == "/internal/config" {
				assert.False(t, strings.HasPrefix(path, "k8s.io/client-go"), "%s must not import %s", from, path)
			}
		}
	}
	assert.Equal(t, len(allowed), seen)
	text, err = os.ReadFile("CONTRIBUTING.md")
	require.NoError(t, err)
	for _, path := range regexp.MustCompile("`((internal|checks|nodepatch|metrics|hack|chart)/[a-z0-9/._-]*)`").FindAllStringSubmatch(string(text), -1) {
		_, err := os.Stat(path[1])
		assert.NoError(t, err, "CONTRIBUTING.md names it")
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	assert.Equal(t, []string{"main.go", "main_test.go"}, files, "the root holds nothing else")
}
