package main

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
