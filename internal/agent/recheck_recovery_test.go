package agent

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// A failed taint without the startup taint whose value is the name of a release is the controller's: a verification does not remove
// it before it has passed. One of ON_TIMEOUT=taint, of this agent or of the one before a restart, has no use without the startup taint.
func TestLoneFailedTaintInAVerification(t *testing.T) {
	for value, stays := range map[string]bool{
		"kube-node-ready": true, "": true, "network": false, "dns": false, "taints": false, "unverified": false,
	} {
		t.Run(value, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				setOld(api.node)
				api.node.Spec.Taints = []corev1.Taint{{Key: "node-ready/failed", Value: value, Effect: corev1.TaintEffectNoSchedule}}
				r := startVerification(t, api, "--max-retries=0")
				r.round(errBroken)
				assert.Equal(t, stays, len(api.taints()) == 1)
				r.round(nil)
				assert.Empty(t, api.taints())
			})
		})
	}
}

// No release has a name that is the value of an agent's failed taint: its taints would be taken for those of an agent.
func TestReleaseNamedAsAMarker(t *testing.T) {
	parse := func(name string) error {
		_, err := config.ParseController([]string{"--agent-name=" + name}, lookup(nil), io.Discard)
		return err
	}
	require.NoError(t, parse("network-checks"))
	require.ErrorContains(t, parse("Network"), "lower-case letters")
	for _, value := range append(checks.Names(), checks.PeersName, verdict.ForeignTaints, verdict.NotChecked) {
		require.ErrorContains(t, parse(value), `--agent-name "`+value+`": must not be a value that an agent gives the failed taint`)
	}
}

// The first round of a node that was started again since its release sends large packets. The node stays verified.
func TestRecheckAfterAReboot(t *testing.T) {
	for name, test := range map[string]struct {
		record   string
		thorough bool
	}{
		"rebooted":                           {strings.Replace(record, `"version"`, `"bootID":"old","version"`, 1), true},
		"not rebooted":                       {strings.Replace(record, `"version"`, `"bootID":"new","version"`, 1), false},
		"released by a version without boot": {record, false},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, api *fakeAPI) {
				setCondition(corev1.ConditionTrue, "Verified")(api.node)
				setReleased(api.node)
				api.node.Annotations[nodepatch.Annotation], api.node.Status.NodeInfo.BootID = test.record, "new"
				large := false
				api.intercept(func(request string, _ int, _ http.ResponseWriter, r *http.Request) bool {
					large = large || request == getCached && r.Header.Get("X-Kube-Node-Ready-Padding") != ""
					return false
				})
				r := startVerification(t, api)
				r.round(nil)
				if test.thorough { // otherwise it may all the same: the first such round comes at a random time
					assert.True(t, large, "the first round sends large packets")
				}
				r.round(nil, nil)
				assert.Empty(t, api.written(), "it goes on saying that it is verified")
				assert.Equal(t, test.record, api.node.Annotations[nodepatch.Annotation])
				r.end()
			})
		})
	}
}
