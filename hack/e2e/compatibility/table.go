package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// column is what one column of the table shows.
type column struct {
	title string
	tests []tests
}

// tests are top-level tests of a package: a regular expression that matches their whole names.
type tests struct{ pkg, run string }

// columns are the core tests: what an operator relies on, and what differs between versions of Kubernetes (expressions in
// policies, fields of tokens, kubelet, the DaemonSet controller).
func columns() []column {
	return []column{
		{"verify, verify again", []tests{{".", "TestVerifies.*|TestNothing.*|TestStopped.*|TestFinalMetrics|TestOnTimeout.*|TestWaitForTaints"}}},
		{"dry run", []tests{{".", "TestDryRun.*"}}},
		{"patch guards", []tests{{"./faults", "TestFaultTaintRace|TestFaultAnswerToPatch|TestFaultLateTaint"}}},
		{"own-node policy", []tests{{"./charttest", "TestAgentMay.*|TestOnTimeoutWidensThePolicy"}, {".", "TestConditionOfAnotherNode"}}},
		{"chart", []tests{{"./charttest", "TestLifeOfARelease|TestUpgradeFromFormerCharts|TestBreakGlass.*|TestCoreDNSPatch.*|TestPolicies.*"}}},
		{"controller", []tests{
			{"./charttest", "TestControllerMay.*|TestUninstallJobMay.*"},
			{"./controller", "TestReasonOfEachNode"},
			{"./workers", "TestNewNode|TestLabelRemoved"},
		}},
		{"`startupTaint.add`", []tests{{"./charttest", "TestStartupTaint.*"}}},
	}
}

// row is what the tests have shown on one version: the outcome of each column.
type row struct {
	Version  string
	Outcomes []outcome
}

// outcome counts top-level tests.
type outcome struct{ Passed, Failed, Skipped int }

// count counts the top-level tests among the events of go test -json. One that began and never ended has failed: it hung, or it
// ended the process.
func count(events io.Reader) (outcome, error) {
	var all outcome
	running := map[string]bool{}
	for decoder := json.NewDecoder(events); ; {
		var event struct{ Action, Test string }
		err := decoder.Decode(&event)
		if errors.Is(err, io.EOF) {
			all.Failed += len(running)
			return all, nil
		}
		if err != nil {
			return all, err
		}
		if event.Test == "" || strings.Contains(event.Test, "/") {
			continue
		}
		switch event.Action {
		case "run":
			running[event.Test] = true
			continue
		case "pass":
			all.Passed++
		case "fail":
			all.Failed++
		case "skip":
			all.Skipped++
		default:
			continue
		}
		delete(running, event.Test)
	}
}

// String is the cell of the table.
func (o outcome) String() string {
	if o.Failed > 0 {
		return fmt.Sprintf("**%d of %d failed**", o.Failed, o.Passed+o.Failed)
	}
	return fmt.Sprintf("%d passed", o.Passed)
}

// table is Markdown, the oldest version first.
func table(rows []row) string {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b row) int { return semver.Compare(a.Version, b.Version) })
	var text strings.Builder
	text.WriteString("| Kubernetes |")
	for _, column := range columns() {
		text.WriteString(" " + column.title + " |")
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(columns())) + "\n")
	for _, row := range rows {
		text.WriteString("| " + strings.TrimPrefix(row.Version, "v") + " |")
		for _, outcome := range row.Outcomes {
			text.WriteString(" " + outcome.String() + " |")
		}
		text.WriteString("\n")
	}
	return text.String()
}
