package config

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadmeListsEverySetting compares the configuration table of README.md with the flags, in
// their order. A row is
//
//	| `INITIAL_TIMEOUT` | `--initial-timeout` | `300s` | what it does |
//
// with an empty first cell where there is no variable and an empty third where there is no default.
func TestReadmeListsEverySetting(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	row := regexp.MustCompile("^\\| *(?:`([A-Z_]+)`)? *\\| *`(--[a-z-]+)` *\\| *(?:`([^`|]+)`)? *\\| *[^ |]")
	var got []string
	for line := range strings.Lines(string(text)) {
		if cells := row.FindStringSubmatch(line); cells != nil {
			got = append(got, strings.Join(cells[1:], " | "))
		}
	}
	var want []string
	for _, s := range new(Config).settings() {
		variable := s.env()
		if s.flagOnly() {
			variable = ""
		}
		want = append(want, strings.Join([]string{variable, "--" + s.flag, s.value}, " | "))
	}
	assert.Equal(t, want, got)
}
