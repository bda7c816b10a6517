package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// report prints progress while there is some, and the table at the end.
type report struct {
	out      io.Writer
	terminal bool

	mu     sync.Mutex
	latest time.Time // of the last line of progress
	live   bool      // a live line is on the screen
	rows   []row
}

// row is a figure. Without a budget it is there to be read, not to be judged.
type row struct{ name, figure, budget, verdict string }

func newReport(out *os.File) *report {
	info, err := out.Stat()
	return &report{out: out, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

// step begins a part of the benchmark.
func (r *report) step(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wipe()
	r.latest = time.Now()
	_, _ = fmt.Fprintf(r.out, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// progress says how much of a step is done: a live line on a terminal, else a line every 10 s.
func (r *report) progress(done, total int, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := fmt.Sprintf("          %d of %d %s", done, total, what)
	switch {
	case r.terminal:
		r.wipe()
		_, _ = fmt.Fprint(r.out, line)
		r.live = true
	case time.Since(r.latest) > 10*time.Second:
		r.latest = time.Now()
		_, _ = fmt.Fprintln(r.out, line)
	}
}

func (r *report) wipe() {
	if r.live {
		_, _ = fmt.Fprint(r.out, "\r\033[K")
		r.live = false
	}
}

// budget adds a figure that passes when it is at most limit.
func (r *report) budget(name string, figure, limit float64, format string) {
	verdict := "PASS"
	if figure > limit {
		verdict = "FAIL"
	}
	r.add(row{name, fmt.Sprintf(format, figure), "at most " + fmt.Sprintf(format, limit), verdict})
}

// figure adds a figure without a budget.
func (r *report) figure(name, format string, args ...any) {
	r.add(row{name: name, figure: fmt.Sprintf(format, args...)})
}

// failed adds a part that could not be measured.
func (r *report) failed(name string, err error) { r.add(row{name, err.Error(), "measured", "FAIL"}) }

func (r *report) add(added row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wipe()
	r.rows = append(r.rows, added)
	r.print(added)
}

func (r *report) print(row row) {
	_, _ = fmt.Fprintf(r.out, "  %-4s  %-54s %-28s %s\n", row.verdict, row.name, row.figure, row.budget)
}

// end prints all rows again, together, and tells whether every budget was kept.
func (r *report) end() bool {
	_, _ = fmt.Fprintf(r.out, "\n%s\n", machine())
	for _, row := range r.rows {
		r.print(row)
	}
	return !slices.ContainsFunc(r.rows, func(row row) bool { return row.verdict == "FAIL" })
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	if len(values) == 0 {
		return 0
	}
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}
