package main

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/internal/config"
)

func exit(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Setenv("HOME", t.TempDir())
	lookup := func(key string) (string, bool) {
		value, ok := env[key]
		return value, ok
	}
	var out, err bytes.Buffer
	code = run(t.Context(), args, lookup, &out, &err)
	return code, out.String(), err.String()
}

func TestHelp(t *testing.T) {
	code, stdout, stderr := exit(t, nil, "--help")
	assert.Equal(t, config.ExitOK, code)
	assert.Empty(t, stderr)
	for _, flag := range []string{"--deployment-mode", "--not-started-after", "--remediation-mode", "--taint-key", "--verified-label"} {
		assert.Contains(t, stdout, flag)
	}
	for _, flag := range []string{"--once", "--dry-run", "--worker", "--metrics-linger"} {
		assert.NotContains(t, stdout, flag+" ", "a flag of one run of the agent")
	}
}

func TestUsage(t *testing.T) {
	code, stdout, stderr := exit(t, map[string]string{"NOT_STARTED_AFTER": "3", "DEPLOYMENT_MODE": "job"}, "--health-port=0")
	assert.Equal(t, config.ExitUsage, code)
	assert.Empty(t, stdout)
	for _, mistake := range []string{"NOT_STARTED_AFTER (--not-started-after)", "DEPLOYMENT_MODE (--deployment-mode)", "--health-port"} {
		assert.Contains(t, stderr, mistake)
	}
	code, _, stderr = exit(t, nil, "--metrics-port=8081")
	assert.Equal(t, config.ExitUsage, code)
	assert.Contains(t, stderr, "must differ")
}

// The agent's ConfigMap is the controller's, too: what only the agent knows there is no mistake.
func TestVariablesOfTheAgent(t *testing.T) {
	code, _, stderr := exit(t, map[string]string{"ON_TIMEOUT": "condition", "METRICS_LINGER": "45s", "KUBECONFIG": "/nowhere"})
	assert.Equal(t, config.ExitError, code)
	assert.Contains(t, stderr, "no access to the Kubernetes API")
}

// Decisions are made without a client: the API server cannot be asked in the middle of one.
func TestLayout(t *testing.T) {
	const module = "github.com/imunhatep/kube-node-ready/controller"
	text, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...").Output()
	require.NoError(t, err)
	seen := 0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if fields[0] != module+"/internal/fleet" {
			continue
		}
		seen++
		for _, path := range fields[1:] {
			assert.False(t, strings.HasPrefix(path, "sigs.k8s.io/controller-runtime") || strings.HasPrefix(path, "k8s.io/client-go/kubernetes"),
				"%s must not import %s", fields[0], path)
		}
		assert.False(t, slices.Contains(fields, module+"/internal/loop"))
	}
	assert.Equal(t, 1, seen)
}
