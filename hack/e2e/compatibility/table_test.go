package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

// The table in docs/reference.md is one that `make compatibility` prints: of these columns, of the versions that are pinned, and
// without a failure.
func TestTableInTheReference(t *testing.T) {
	readme, err := os.ReadFile(root + "/docs/reference.md")
	require.NoError(t, err)
	_, shown, found := strings.Cut(string(readme), strings.Split(table(nil), "\n")[0]+"\n")
	require.True(t, found, "docs/reference.md has no table with the header of %s", table(nil))
	shown, _, _ = strings.Cut(shown, "\n\n")
	require.NotContains(t, shown, "failed")

	var versions []string
	for _, line := range strings.Split(shown, "\n")[1:] {
		versions = append(versions, strings.TrimSpace(strings.Split(line, "|")[1]))
	}
	modules, err := filepath.Glob(root + "/hack/tools/kubernetes*/go.mod")
	require.NoError(t, err)
	var pinned []string
	for _, module := range modules {
		text, err := os.ReadFile(module)
		require.NoError(t, err)
		pinned = append(pinned, string(regexp.MustCompile(`\tk8s.io/kubernetes v(\S+)`).FindSubmatch(text)[1]))
	}
	require.ElementsMatch(t, pinned, versions)
}

// A part of a test is not counted, one that never ends has failed, and a failure is not hidden by what passed.
func TestCount(t *testing.T) {
	counted, err := count(strings.NewReader(`
{"Action":"run","Test":"TestA"}
{"Action":"run","Test":"TestHangs"}
{"Action":"output","Test":"TestHangs"}
{"Action":"fail","Test":"TestA/part"}
{"Action":"fail","Test":"TestA"}
{"Action":"pass","Test":"TestB"}
{"Action":"skip","Test":"TestC"}
{"Action":"fail"}
`))
	require.NoError(t, err)
	require.Equal(t, outcome{Passed: 1, Failed: 2, Skipped: 1}, counted)
	require.Equal(t, "**2 of 3 failed**", counted.String())
}

// Oldest first, by version and not by letters.
func TestOrder(t *testing.T) {
	rows := make([]row, 0, 3)
	for _, version := range []string{"v1.37.0", "v1.9.4", "v1.30.14"} {
		rows = append(rows, row{Version: version, Outcomes: make([]outcome, len(columns()))})
	}
	require.Regexp(t, `(?s)\| 1\.9\.4 .*\| 1\.30\.14 .*\| 1\.37\.0 `, table(rows))
}
