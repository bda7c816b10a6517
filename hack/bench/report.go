package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The budgets. Whoever raises one on purpose says why in the commit; README.md repeats them, and a test compares.
const (
	binaryBudget   = 14.5 // MB, stripped, linux/amd64
	gzipBudget     = 5.52 // MB, the same after gzip: nearly the image
	imageBudget    = 6.2  // MB, compressed
	memoryBudget   = 16.0 // MiB, a verification
	scrapedBudget  = 20.0 // MiB, after the scrapes
	startupBudget  = 1.5  // times the baseline
	gateBudget     = 40.0 // ms more than the baseline
	requestsBudget = 4.0  // to the API server, a verification
	receivedBudget = 40.0 // kB, a verification

	controllerGateBudget    = 400.0 // ms, the median in controller mode
	controllerGateP95Budget = 800.0 // ms

	controllerScaleRequestsBudget = 5.0 // a node that joins in controller mode

	incidentBudget     = 160.0 // MiB, the controller beside 5,000 nodes of which none is verified
	restBudget         = 96.0  // MiB, the controller beside 5,000 verified nodes
	restCPUBudget      = 1.6   // times a program that only watches the nodes, the same
	restRequestsBudget = 10.0  // a minute, the same

	recheckMemoryBudget   = 20.0 // MiB, an agent that rechecks its node
	recheckCPUBudget      = 2.0  // mCPU, the same at RECHECK_INTERVAL=60s
	recheckRequestsBudget = 2.0  // a round
	// The network check opens one and the service check two. A round that is thorough opens more, once an hour; an agent that did
	// not keep its connection to the API server would open four.
	recheckConnectionsBudget = 3.5

	agentRecoveryBudget  = 1.5 // s after an outage, and a fortieth of its length
	workerRecoveryBudget = 5.0 // s, the same in controller mode
	packetsBudget        = 1.0 // a second of an outage of 10 minutes
	// API requests in that outage, as many as without signs: nine rounds of two (get the Node, list EndpointSlices) end in it if
	// every pause is 10 % shorter, the first read, and three Events.
	outageRequestsBudget = 22.0
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
	r.Line("| %-60s | %-26s | %-8s | %-4s |", row.name, row.figure, row.budget, row.verdict)
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
