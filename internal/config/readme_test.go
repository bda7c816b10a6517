package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadmeListsEverySetting compares the tables of README.md with the flags, in their order. A row is
//
//	| `INITIAL_TIMEOUT` | `--initial-timeout` | `300s` | what it does |
//
// with an empty first cell where there is no variable and an empty third where there is no default.
func TestReadmeListsEverySetting(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	agents, controllers, found := strings.Cut(string(text), "## The controller")
	require.True(t, found)

	assert.Equal(t, wanted(new(Config).settings()), rows(agents))
	shared := new(Config).settings()
	own := slices.DeleteFunc(new(Controller).settings(), func(s *setting) bool {
		isShared := func(other *setting) bool { return s.flag == other.flag && s.help == other.help }
		return slices.ContainsFunc(shared, isShared)
	})
	assert.Equal(t, wanted(own), rows(controllers))
}

func rows(text string) (found []string) {
	row := regexp.MustCompile("^\\| *(?:`([A-Z_]+)`)? *\\| *`(--[a-z-]+)` *\\| *(?:`([^`|]+)`)? *\\| *[^ |]")
	for line := range strings.Lines(text) {
		if cells := row.FindStringSubmatch(line); cells != nil {
			found = append(found, strings.Join(cells[1:], " | "))
		}
	}
	return found
}

func wanted(settings []*setting) (rows []string) {
	for _, s := range settings {
		variable := s.env()
		if s.flagOnly() {
			variable = ""
		}
		rows = append(rows, strings.Join([]string{variable, "--" + s.flag, s.value}, " | "))
	}
	return rows
}
