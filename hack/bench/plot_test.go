package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The committed plot is drawn of the committed figures.
func TestPlotIsCurrent(t *testing.T) {
	points, err := readPoints("scale.json")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "scale.svg")
	require.NoError(t, plotTo(path, points))
	drawn, err := os.ReadFile(path)
	require.NoError(t, err)
	committed, err := os.ReadFile("scale.svg")
	require.NoError(t, err)
	require.Equal(t, string(drawn), string(committed), "hack/bench/scale.svg is stale: the scale part of make bench draws it")
}
