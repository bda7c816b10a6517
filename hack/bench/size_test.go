package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSize builds the agent for linux/amd64 as the Makefile does and holds it to the budgets, which need no cluster.
func TestSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kube-node-ready")
	build := exec.Command("make", "-C", "../..", "agent", "BIN="+path)
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64")
	output, err := build.CombinedOutput()
	require.NoError(t, err, string(output))
	file, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	require.NoError(t, err)
	compressed, err := gzipSize(file)
	require.NoError(t, err)
	t.Logf("binary: %d bytes, %d after gzip", info.Size(), compressed)
	require.LessOrEqual(t, float64(info.Size())/mb, binaryBudget, "MB of the binary")
	require.LessOrEqual(t, float64(compressed)/mb, gzipBudget, "MB of the binary after gzip")
}
