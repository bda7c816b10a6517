package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// report prints progress while there is some, and the table at the end.
type report struct {
	*harness.Live
	rows []row
}

// row is a figure. Without a budget it is there to be read, not to be judged.
type row struct{ name, figure, budget, verdict string }

// step begins a part of the benchmark.
func (r *report) step(format string, args ...any) {
	r.Line("%s  %s", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// progress says how much of a step is done.
func (r *report) progress(done, total int, what string) {
	r.Progress("          %d of %d %s", done, total, what)
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
	r.rows = append(r.rows, added)
	r.print(added)
}

func (r *report) print(row row) {
	r.Line("  %-4s  %-54s %-28s %s", row.verdict, row.name, row.figure, row.budget)
}

// end prints all rows again, together, and tells whether every budget was kept.
func (r *report) end() bool {
	r.Line("\n%s", machine())
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
