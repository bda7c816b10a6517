package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

// tableFile names the file that the rows are appended to, one JSON object a line, so that several
// packages of tests make one table.
const tableFile = "FAULTS_TABLE"

// Row is one line of the table: what was done to the agent, and what came of it.
type Row struct {
	Fault   string
	Rounds  int           // how often it was made
	Outcome string        // what the agent does about it
	Median  time.Duration // until it had recovered; 0 where there is nothing to recover from
	Worst   time.Duration
	Lost    []string // what should not have been lost, each by name
	Failed  bool

	t     *testing.T
	mu    sync.Mutex
	times []time.Duration
}

// BeginRow starts the row of a fault with the outcome that the test is about to show. The row is
// written when the test ends, and says FAILED if it does.
func BeginRow(t *testing.T, fault, outcome string) *Row {
	t.Helper()
	r := &Row{Fault: fault, Outcome: outcome, t: t}
	t.Cleanup(r.write)
	return r
}

// Recovered counts a round, and how long the agent took from the end of the fault on.
func (r *Row) Recovered(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, took)
	r.Rounds++
}

// Round counts a round in which there was nothing to recover from.
func (r *Row) Round() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Rounds++
}

// Lose names something that was lost, and fails the test.
func (r *Row) Lose(format string, args ...any) {
	r.t.Helper()
	what := fmt.Sprintf(format, args...)
	r.mu.Lock()
	r.Lost = append(r.Lost, what)
	r.mu.Unlock()
	r.t.Errorf("lost: %s", what)
}

func (r *Row) write() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Failed = r.t.Failed()
	if slices.Sort(r.times); len(r.times) > 0 {
		r.Median, r.Worst = r.times[len(r.times)/2], r.times[len(r.times)-1]
	}
	line, err := json.Marshal(r)
	require.NoError(r.t, err)
	file, err := os.OpenFile(os.Getenv(tableFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(r.t, err)
	_, err = file.Write(append(line, '\n')) // one write, so that lines of two packages do not mix
	require.NoError(r.t, errors.Join(err, file.Close()))
}

// runWithTable runs the tests of a package and prints the table of the faults that they made, unless it is to be one of several packages.
func runWithTable(m *testing.M) (code int, err error) {
	if os.Getenv(tableFile) != "" {
		return m.Run(), nil
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("faults-%d.json", os.Getpid()))
	defer func() { _ = os.Remove(path) }()
	if err := os.Setenv(tableFile, path); err != nil {
		return 1, err
	}
	code = m.Run()
	rows, err := ReadTable(path)
	if err != nil {
		return 1, err
	}
	if len(rows) > 0 {
		PrintTable(os.Stdout, rows)
	}
	return code, nil
}

// ReadTable reads the rows that tests have appended to a file. A file that is not there has none.
func ReadTable(path string) (rows []*Row, err error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	for decoder := json.NewDecoder(file); ; {
		row := new(Row)
		err := decoder.Decode(row)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		rows = append(rows, row)
	}
}

// PrintTable prints rows as a table that is aligned and is Markdown as well, and below it how many failed and what was lost. It
// reports whether there are rows, and neither.
func PrintTable(to io.Writer, rows []*Row) (passed bool) {
	w := tabwriter.NewWriter(to, 0, 0, 1, ' ', 0)
	_, _ = fmt.Fprint(w, "\n| fault\t| rounds\t| outcome\t| recovered: median\t| worst\t| lost\t|\n|---\t|---:\t|---\t|---:\t|---:\t|---:\t|\n")
	failed, lost := 0, 0
	for _, row := range rows {
		outcome := row.Outcome
		if row.Failed {
			outcome = "FAILED (should: " + outcome + ")"
			failed++
		}
		lost += len(row.Lost)
		_, _ = fmt.Fprintf(w, "| %s\t| %d\t| %s\t| %s\t| %s\t| %s\t|\n",
			row.Fault, row.Rounds, outcome, formatDuration(row.Median), formatDuration(row.Worst), row.loss())
	}
	_ = w.Flush()
	_, _ = fmt.Fprintf(to, "\n%d faults, %d failed, %d lost\n", len(rows), failed, lost)
	return len(rows) > 0 && failed+lost == 0
}

func (r *Row) loss() string {
	const shown = 2
	text := strconv.Itoa(len(r.Lost))
	if len(r.Lost) > 0 {
		text += ": " + strings.Join(r.Lost[:min(shown, len(r.Lost))], ", ")
	}
	if len(r.Lost) > shown {
		text += ", …"
	}
	return text
}

func formatDuration(d time.Duration) string {
	switch {
	case d == 0:
		return ""
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}
