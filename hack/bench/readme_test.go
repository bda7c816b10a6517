package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The committed plot is drawn from the committed figures.
func TestPlotIsCurrent(t *testing.T) {
	all, err := readPoints("scale.json")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "scale.svg")
	require.NoError(t, plotTo(path, all))
	drawn, err := os.ReadFile(path)
	require.NoError(t, err)
	committed, err := os.ReadFile("scale.svg")
	require.NoError(t, err)
	require.Equal(t, string(drawn), string(committed), "hack/bench/scale.svg is stale: the scale part of make bench draws it")
}

// The table in README.md has the budgets of the code, and every figure in it is within its budget.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	budgets := map[string]float64{
		"binary, stripped": binaryBudget, "image, compressed": imageBudget,
		"peak memory of": memoryBudget, "peak memory after": scrapedBudget,
		"process start to released node, compared": startupBudget, "gate latency above": gateBudget,
		"requests with": requestsBudget, "received with": receivedBudget,
		": requests of an agent": requestsBudget, "agents with an error": 0,
		"controller mode: median": controllerGateBudget, "controller mode: 95th": controllerGateP95Budget,
		"5,000 nodes unverified: peak": incidentBudget, "5,000 nodes verified: peak": restBudget,
		"5,000 nodes verified: CPU": restCPUBudget, "5,000 nodes verified: requests": restRequestsBudget,
		"rechecks: peak": recheckMemoryBudget, "rechecks with peers: peak": recheckMemoryBudget,
		"rechecks at 60s: CPU": recheckCPUBudget, "rechecks with peers at 60s: CPU": recheckCPUBudget,
		"rechecks: requests": recheckRequestsBudget, "rechecks with peers: requests": recheckRequestsBudget,
		"rechecks: writes": 0, "rechecks with peers: writes": 0, "rechecks: connections": recheckConnectionsBudget,
		"rechecks with peers: connections": recheckConnectionsBudget + peerConnections,
		"packets of an agent a second":     packetsBudget, "API requests of an agent": outageRequestsBudget,
	}
	found, outages := map[string]bool{}, 0
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
		if what, isOutage := strings.CutSuffix(strings.TrimSpace(cells[1]), ": released after"); isOutage {
			require.InDelta(t, outageLimit(t, what), budget, 0.01, line) // both are rounded
			outages++
		}
		for name, want := range budgets {
			if strings.Contains(cells[1], name) {
				require.InDelta(t, want, budget, 0, line)
				found[name] = true
			}
		}
	}
	require.Len(t, found, len(budgets), "budgets in hack/bench/README.md: %v", found)
	require.Equal(t, len(agentOutages())+len(workerOutages()), outages, "a row for each outage")
	require.NotContains(t, string(text), "FAIL")
}

// outageLimit is the limit of an outage by its row.
func outageLimit(t *testing.T, row string) float64 {
	t.Helper()
	var seconds float64
	_, err := fmt.Sscanf(row[strings.LastIndex(row, ", "):], ", %f s", &seconds)
	require.NoError(t, err, row)
	budget := agentRecoveryBudget
	if strings.HasPrefix(row, "controller mode") {
		budget = workerRecoveryBudget
	}
	return recoveryLimit(budget, time.Duration(seconds*float64(time.Second)))
}
