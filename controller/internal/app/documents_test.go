package app

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/remediation"
	"github.com/imunhatep/kube-node-ready/controller/internal/renewal"
	"github.com/imunhatep/kube-node-ready/controller/internal/report"
	"github.com/imunhatep/kube-node-ready/controller/internal/retaint"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

var update = flag.Bool("update", false, "write the tables of rules into docs/controller.md")

// The tables of docs/controller.md come from the rules: go test ./internal/app -run TestTablesOfRules -update writes them.
func TestTablesOfRules(t *testing.T) {
	const page = "../../../docs/controller.md"
	written, err := os.ReadFile(page)
	require.NoError(t, err)
	want := replaceTable(t, string(written), "a re-taint", retaintTexts(),
		allRules(t, "retaint", retaint.Rules()), retaint.Rules().Breakers())
	want = replaceTable(t, want, "a deletion", remediationTexts(),
		allRules(t, "remediation", remediation.Rules()), remediation.Breakers())
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o600))
	} else {
		assert.Equal(t, want, string(written), "run this test with -update")
	}
}

// allRules returns the rules of a table, each once and in its order, and then the other rules that the package declares.
func allRules[C any](t *testing.T, pkg string, table breaker.Table[C]) (rules []breaker.Rule) {
	for _, row := range table {
		rules = append(rules, row.Rule)
	}
	files, err := filepath.Glob("../" + pkg + "/*.go")
	require.NoError(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)^\t\w+ +(?:breaker\.)?Rule += "([\w-]+)"`).FindAllSubmatch(source, -1) {
			rules = append(rules, breaker.Rule(found[1]))
		}
	}
	seen := make(map[breaker.Rule]bool)
	return slices.DeleteFunc(rules, func(rule breaker.Rule) bool {
		defer func() { seen[rule] = true }()
		return seen[rule]
	})
}

// text says when a rule withholds the action, and what an operator looks at first.
type text struct{ withheldIf, tryFirst string }

// docs/reference.md names the reason of each Event with who sends it, and about what, and the reason of each condition.
func TestReferenceOfReasons(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference.md")
	require.NoError(t, err)
	const both, own, onDeployment = "agent, controller", "controller", "controller, on its Deployment"
	want := map[string]string{
		verdict.NodeVerified: both, verdict.NodeNotVerified: both, verdict.NodeTimedOut: both, verdict.RecheckFailed: both,
		verdict.NodeOpened: "agent", verdict.NodeRecovered: "agent", report.NodeNotStarted: own, renewal.SandboxRenewed: own,
		retaint.FailedTaintAdded: own, retaint.FailedTaintRemoved: own, retaint.TaintWithheld: own, remediation.RemediationWithheld: own,
		"NodeClaimDeleted": own, "NodeDeleted": own,
		remediation.RemediationStuck: onDeployment, remediation.RemediationHalted: onDeployment, remediation.RemediationFrozen: onDeployment,
	}
	_, events, _ := strings.Cut(string(page), "## Events\n")
	events, conditions, _ := strings.Cut(events, "## Reasons of the condition\n")
	found := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| (`.+?) \\| (.+?) \\| ").FindAllStringSubmatch(events, -1) {
		for reason := range strings.SplitSeq(row[1], ", ") {
			found[strings.Trim(reason, "`")] = row[2]
		}
	}
	assert.Equal(t, want, found)
	conditions, _, _ = strings.Cut(conditions, "\n## ")
	for _, known := range condition.Meanings() {
		assert.Contains(t, conditions, "`"+known.Reason.String()+"`")
	}
	for _, unknown := range []string{"NotRechecked", "NotGated"} {
		assert.Regexp(t, "`Unknown`[^|]*`"+unknown+"`", conditions)
	}
}

// replaceTable replaces the table whose head says that its rules withhold an action.
func replaceTable(t *testing.T, page, action string, texts map[breaker.Rule]text, rules, breakers []breaker.Rule) string {
	assert.ElementsMatch(t, rules, slices.Collect(maps.Keys(texts)), "a text for each rule, and a rule for each text")
	head := fmt.Sprintf("| rule | withholds %s if | try first |\n|---|---|---|\n", action)
	before, after, found := strings.Cut(page, head)
	require.True(t, found, "there is no table of %s", action)
	_, after, _ = strings.Cut(after, "\n\n")
	for _, rule := range rules {
		star := ""
		if slices.Contains(breakers, rule) {
			star = " *"
		}
		row := fmt.Sprintf("| `%s`%s | %s | %s |\n", rule, star, texts[rule].withheldIf, texts[rule].tryFirst)
		head += strings.ReplaceAll(row, "|  |", "| |")
	}
	return before + head + "\n" + after
}

func retaintTexts() map[breaker.Rule]text {
	return map[breaker.Rule]text{
		breaker.ControlGroup: {"the same checks passed in the controller's own pod for under `controlGroupFor` (10m), or not since the node failed",
			"the cluster's DNS, API, network"},
		breaker.ControlNode: {"the controller's own node is not released yet or fails; after a minute another replica leads, if its own node passes",
			"that node"},
		breaker.FailedRechecks: {"at least 10 % of the nodes, and at least 3, fail now or are re-tainted; it withholds remediation too",
			"the cause is common: read the condition"},
		retaint.Changed:  {"the Node, read live, is not as in the cache; or the cache does not show the last re-taint", ""},
		retaint.CoolDown: {"this node was re-tainted or opened less than `coolDown` (10m) ago", "the node: it may flap"},
		retaint.Peers: {"`PeersFailed` alone, while fewer than 3 other nodes are ready: this one may be the only good one",
			"the other nodes"},
		retaint.Budget: {"more than 10 % of its group, or of the cluster, would then have the failed taint; each may always have one",
			"repair or replace the nodes with the taint"},
		retaint.Refused: {"the API server refuses the taint (an admission policy or webhook)", "its message"},
	}
}

func remediationTexts() map[breaker.Rule]text {
	return map[breaker.Rule]text{
		remediation.Protected: {"the Node or NodeClaim has the annotation `karpenter.sh/do-not-disrupt`, the annotation or label " +
			"`node-ready/do-not-delete`, or is of the control plane or etcd; or the NodeClaim is initialized: Karpenter does not wait for a " +
			"startup taint that the NodePool does not declare", "declare the startup taint in the NodePool"},
		remediation.NoNodePool: {"there is no NodePool that would replace the node", "delete the machine by hand"},
		breaker.ControlGroup: {"the same checks have not passed in the controller's own pod for `controlGroupFor` (5m)",
			"the cluster's DNS, API, network"},
		breaker.ControlNode:    {"the controller's own node waits for its release or has failed", "that node"},
		breaker.FailedRechecks: {"as for re-taint", "the cause is common: read the condition"},
		remediation.LedgerFailed: {"ConfigMap `FULLNAME-remediation` cannot be read or written, or was emptied; or the API server's clock is " +
			"not known: it jumped some minutes ago", "rights; the clocks; the error"},
		remediation.HourlyBudget: {"this release has made 3 deletions in an hour, in the whole cluster", ""},
		remediation.DailyBudget:  {"it has made 10 deletions in a day", ""},
		remediation.Halted: {"2h after the last of four deletions, no newer node is verified: Event `RemediationHalted`",
			"find out why, then clear it"},
		remediation.Proof: {"no node that was created after this one has been verified", "the cause is common: read the failure"},
		remediation.InFlight: {"another node is being replaced; after 30m (Event `RemediationStuck`) the next one may be replaced",
			"Karpenter's log"},
		remediation.FailedShare: {"more than 20 % of the NodePool's nodes, and more than one node, have failed",
			"the cause is common: read the failure"},
		remediation.LoopGuard:   {"no node created since the last deletion has been verified, or only one that is being deleted: the next one waits 30m, then 1h, 2h", ""},
		remediation.Changed:     {"the objects, read live, are not as in the cache", ""},
		remediation.NoNodeClaim: {"there is no NodeClaim, or it is for another machine", "delete the machine by hand"},
		remediation.Workload: {"the node runs a pod that is not of a DaemonSet, not static, not finished, and has no ready replica elsewhere",
			"drain the node"},
		remediation.Unreadable: {"the objects cannot be read live", "rights; the error"},
		remediation.DryRun:     {"no other rule withholds it: it would be deleted", ""},
		remediation.Refused:    {"the API server refuses the deletion", "its message"},
	}
}
