package agent

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/imunhatep/kube-node-ready/checks"
)

// Another process in a pod runs the agent's round, and writes nothing.
func TestChecksOfAnotherProcess(t *testing.T) {
	api := newFakeAPI(t)
	api.slices = []discoveryv1.EndpointSlice{dnsSlice(listen(t))}
	var connections []string
	api.before = func(request string, _ int, _ http.ResponseWriter, r *http.Request) bool {
		if request == getNode {
			connections = append(connections, r.RemoteAddr)
		}
		return false
	}
	list, runner := Checks(inClusterSettings(t, api))
	for range 2 {
		results, err := runner.Round(t.Context(), list[1:]) // without dns, which asks the real servers
		require.NoError(t, err)
		for i, result := range results {
			assert.Equal(t, checks.Names()[i+1], result.Check)
			require.NoError(t, result.Err)
			assert.Empty(t, result.Report.Skipped)
		}
	}
	assert.Equal(t, []string{getNode, getSlices, getNode, getSlices}, api.seen())
	require.Len(t, connections, 2)
	assert.NotEqual(t, connections[0], connections[1], "each round proves the path from TCP on")
}
