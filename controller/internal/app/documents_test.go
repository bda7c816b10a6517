package app

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/remediation"
	"github.com/imunhatep/kube-node-ready/controller/internal/retaint"
)

var update = flag.Bool("update", false, "write the tables of rules into docs/controller.md")

// The tables of docs/controller.md come from the code: go test ./internal/app -run TestTablesOfRules -update writes them.
func TestTablesOfRules(t *testing.T) {
	const page = "../../../docs/controller.md"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	want := replaceTable(t, string(text), "a re-taint", retaint.Rules())
	want = replaceTable(t, want, "a deletion", remediation.Rules())
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o600))
	} else {
		assert.Equal(t, want, string(text), "run this test with -update")
	}
}

// replaceTable replaces the table whose head says that its rules withhold an action.
func replaceTable[C any](t *testing.T, page, action string, rules breaker.Table[C]) string {
	head := fmt.Sprintf("| rule | withholds %s if | try first |\n|---|---|---|\n", action)
	before, after, found := strings.Cut(page, head)
	require.True(t, found, "there is no table of %s", action)
	_, after, _ = strings.Cut(after, "\n\n")
	for _, row := range rules {
		star := ""
		if row.All {
			star = " *"
		}
		if row.Doc != "" {
			head += strings.ReplaceAll(fmt.Sprintf("| `%s`%s | %s | %s |\n", row.Rule, star, row.Doc, row.Try), "|  |", "| |")
		}
	}
	return before + head + "\n" + after
}
