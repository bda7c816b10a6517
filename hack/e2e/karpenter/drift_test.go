package karpenter

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Once two NodePools declare the startup taint, the nodes of both drift. Karpenter replaces the nodes of the first pool, by nodes
// that the agent verifies. The documented budget keeps the nodes of the second pool.
func TestAddedStartupTaintDriftsUnlessABudgetHolds(t *testing.T) {
	s := start(t)
	s.nodePools("1s", startupTaints, "", "consolidateAfter: 1m", "consolidateAfter: Never")
	pools := []string{pool, "x86-spot"}
	claims := func(name string, wanted func(state) bool) []string {
		var found []string
		for claim := range s.seen.now(nodeClaims, func(s state) bool { return s.object.GetLabels()["karpenter.sh/nodepool"] == name && wanted(s) }) {
			found = append(found, claim)
		}
		slices.Sort(found)
		return found
	}
	all := func(name string, count int, wanted func(state) bool, what string) {
		s.Until(func() (bool, error) { return len(claims(name, wanted)) == count, s.Ctx.Err() }, "%s: %s", name, what)
	}
	is := func(condition string) func(state) bool { return func(s state) bool { return s.condition(condition) } }
	before := make(map[string][]string)
	for _, name := range pools {
		s.workloadOn("karpenter.sh/nodepool: "+name, name, 2)
	}
	for _, name := range pools {
		all(name, 2, is("Initialized"), "nodes")
		before[name] = claims(name, always)
	}

	hold := filepath.Join(t.TempDir(), "hold.yaml")
	s.NoError(os.WriteFile(hold, []byte(s.Block("docs/platforms.md", "hold-drift", "yaml")), 0o600))
	s.Kubectl("", "patch", "nodepool", "x86-spot", "--type=merge", "--patch-file="+hold)
	for _, name := range pools {
		s.Kubectl("", "patch", "nodepool", name, "--type=merge", "-p", fmt.Sprintf(
			`{"spec":{"template":{"spec":{"startupTaints":[{"key":%q,"value":"true","effect":"NoSchedule"}]}}}}`, harness.Taint))
	}
	for name, old := range before {
		for _, claim := range old {
			s.await(claim+" of "+name+" drifts", nodeClaims, func(s state) bool { return s.name() == claim && s.condition("Drifted") })
		}
	}
	drifted := time.Now()

	isNew := func(s state) bool { return !slices.Contains(before[pool], s.name()) && s.condition("Initialized") }
	all(pool, 2, isNew, "replacements")
	all(pool, 2, always, "the replaced ones are gone")
	s.Len(s.seen.now(nodes, func(s state) bool { return ofPool(s) && harness.Verified(s.node()) }), 2)
	t.Logf("Karpenter has replaced the drifted nodes of %s within %s", pool, time.Since(drifted).Round(time.Second))
	s.Until(func() (bool, error) { return time.Since(drifted) > time.Minute, s.Ctx.Err() })
	s.Equal(before["x86-spot"], claims("x86-spot", is("Drifted")), "the budget holds them")
	s.Equal(before["x86-spot"], claims("x86-spot", always))
}
