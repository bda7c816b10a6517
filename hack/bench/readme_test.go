package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read[T any](t *testing.T, path string) (figures T) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &figures))
	return figures
}

// The committed pictures are drawn from the committed figures.
func TestPicturesAreCurrent(t *testing.T) {
	for name, picture := range map[string]bars{
		"benefit": benefitPicture(read[[]benefit](t, "benefit.json")),
		"scale":   scalePicture(read[map[string][]point](t, "scale.json")),
	} {
		committed, err := os.ReadFile(name + ".svg")
		require.NoError(t, err)
		require.Equal(t, string(picture.draw()), string(committed), "hack/bench/%s.svg is stale: make bench draws it", name)
	}
}

// The committed figures keep the bars of the gate's benefit, and README.md has them as its table.
func TestBenefit(t *testing.T) {
	all := read[[]benefit](t, "benefit.json")
	require.Len(t, all, len(delays()))
	for i, m := range all {
		require.Equal(t, delays()[i], m.delay)
		require.Equal(t, make([]int, benefitRuns), m.With.Restarts, m.String())
		require.Len(t, m.Without.Ready, benefitRuns)
		if limit := m.ratioBudget(); limit > 0 {
			require.LessOrEqual(t, m.ratio(), limit, m.String())
		}
	}
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(text), benefitTable(all))
}

// The table in README.md has the budgets of the code, and every figure in it is within its budget.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	budgets := map[string]float64{
		"binary, stripped": binaryBudget, "image, compressed": imageBudget, "peak memory of": memoryBudget,
		"requests in": requestsBudget, "received in": receivedBudget,
		"to release, compared": gateBudget, "the same in controller mode": controllerGateBudget,
		": restarts with the gate": 0, "agents with an error": 0, "requests of an agent": requestsBudget,
		"agent compared with the idle": agentScaleBudget, "controller mode compared with the idle": controllerScaleBudget,
		"requests of the controller for a node": controllerRequestsBudget,
		"5,000 nodes unverified: peak":          incidentBudget, "5,000 nodes verified: peak": restBudget,
		"5,000 nodes verified: CPU": restCPUBudget, "5,000 nodes verified: requests": restRequestsBudget,
		"rechecks: peak": recheckMemoryBudget, "rechecks: CPU": recheckCPUBudget,
		"rechecks: requests": recheckRequestsBudget, "rechecks: connections": recheckConnectionsBudget,
	}
	for _, d := range delays() {
		if limit := d.ratioBudget(); limit > 0 {
			budgets[d.String()+": time with the gate"] = limit
		}
	}
	for _, seconds := range outageLengths() {
		for _, by := range []verifier{agentVerifier(), workerVerifier()} {
			budgets[fmt.Sprintf("outage of %d s, %s: released after, compared", seconds, by.component)] = recoveryBudget(by, seconds)
		}
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || strings.TrimSpace(cells[4]) != "PASS" {
			continue
		}
		var figure, budget float64
		_, err := fmt.Sscan(cells[2], &figure)
		require.NoError(t, err, line)
		_, err = fmt.Sscan(cells[3], &budget)
		require.NoError(t, err, line)
		require.LessOrEqual(t, figure, budget, line)
		for name, want := range budgets {
			if strings.Contains(cells[1], name) {
				require.InDelta(t, want, budget, 0.001, line) // both are rounded
				found[name] = true
			}
		}
	}
	require.Len(t, found, len(budgets), "budgets in hack/bench/README.md: %v", found)
	require.NotContains(t, string(text), "FAIL")
}
