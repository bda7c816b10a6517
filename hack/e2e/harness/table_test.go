package harness

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "table.json")
	t.Setenv(tableFile, file)
	t.Run("row", func(t *testing.T) {
		row := BeginRow(t, "a fault", "is repaired")
		row.Round()
		for _, seconds := range []time.Duration{3, 1, 2} {
			row.Recovered(seconds * time.Second)
		}
	})
	rows, err := ReadTable(file)
	require.NoError(t, err)
	rows = append(rows, &Row{Fault: "another", Outcome: "none", Lost: []string{"x", "y", "z"}, Failed: true})
	var text strings.Builder
	require.False(t, PrintTable(&text, rows))
	require.True(t, PrintTable(io.Discard, rows[:1]))
	require.False(t, PrintTable(io.Discard, nil))
	require.Equal(t, `
| fault   | rounds | outcome               | recovered: median | worst | lost       |
|---      |---:    |---                    |---:               |---:   |---:        |
| a fault | 4      | is repaired           | 2s                | 3s    | 0          |
| another | 0      | FAILED (should: none) |                   |       | 3: x, y, … |

2 faults, 1 failed, 3 lost
`, text.String())
}
