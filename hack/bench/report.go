package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The budgets. Whoever raises one on purpose says why in the commit; README.md repeats them, and a test compares. Times and CPU are
// compared with what the same run has measured: they differ from one machine to another.
const (
	binaryBudget   = 14.5 // MB, stripped, linux/amd64
	gzipBudget     = 5.52 // MB, the same after gzip: nearly the image
	imageBudget    = 6.2  // MB, compressed
	memoryBudget   = 16.0 // MiB, a verification
	requestsBudget = 4.0  // to the API server, a verification
	receivedBudget = 40.0 // kB, a verification

	gateBudget           = 1.4 // times the start of a pod that does nothing, from the startup taint to the release
	controllerGateBudget = 0.8 // the same in controller mode

	agentScaleBudget         = 2.0 // times the idle DaemonSet, until the last of 1,000 nodes is released
	controllerScaleBudget    = 1.0 // the same in controller mode, 100 nodes too
	controllerRequestsBudget = 5.0 // a node that joins in controller mode

	incidentBudget     = 160.0 // MiB, the controller beside 5,000 nodes of which none is verified
	restBudget         = 96.0  // MiB, the controller beside 5,000 verified nodes
	restCPUBudget      = 1.6   // times a program that only watches the nodes, the same
	restRequestsBudget = 10.0  // a minute, the same

	recheckMemoryBudget   = 20.0 // MiB, an agent that rechecks its node
	recheckCPUBudget      = 1.0  // times the verification, a round
	recheckRequestsBudget = 2.0  // a round
	// The network check opens one and the service check two. A round that is thorough opens more, once an hour; an agent that did
	// not keep its connection to the API server would open four.
	recheckConnectionsBudget = 3.5
)

// report prints progress and each figure, and at the end the table of all figures in Markdown.
type report struct {
	*harness.Live
	rows []row
}

// row is one figure. Without a budget it is for information only.
type row struct{ name, figure, budget, verdict string }

// step prints what is measured next.
func (r *report) step(format string, args ...any) {
	r.Line("%s  %s", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// progress prints how much of a step is done.
func (r *report) progress(done, total int, what string) {
	r.Progress("          %d of %d %s", done, total, what)
}

// budget adds a figure that passes when it is at most limit.
func (r *report) budget(name string, figure, limit float64, format string) {
	verdict := "PASS"
	if figure > limit {
		verdict = "FAIL"
	}
	r.add(row{name, fmt.Sprintf(format, figure), fmt.Sprintf(format, limit), verdict})
}

// figure adds a figure without a budget.
func (r *report) figure(name, format string, args ...any) {
	r.add(row{name: name, figure: fmt.Sprintf(format, args...)})
}

func (r *report) add(added row) {
	r.rows = append(r.rows, added)
	r.print(added)
}

func (r *report) print(row row) {
	r.Line("| %-72s | %-26s | %-8s | %-4s |", row.name, row.figure, row.budget, row.verdict)
}

// end prints the table for README.md and reports whether every budget was kept.
func (r *report) end() bool {
	r.Line("\n%s\n", machine())
	r.print(row{"what", "measured", "budget", ""})
	r.Line("|---|--:|--:|---|")
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
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}
