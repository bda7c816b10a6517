package remediation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
)

// Reasons of the Events, beside NodeClaimDeleted and NodeDeleted.
const (
	RemediationWithheld = "RemediationWithheld"
	RemediationStuck    = "RemediationStuck"
	RemediationHalted   = "RemediationHalted"
	RemediationFrozen   = "RemediationFrozen"
)

// report sets the breakers and sends the Events of a decision: each halt and each freeze once, each rule once an hour and scope.
func (r *Remediator) report(decision Decision, now clock.Now) {
	holding := maps.Clone(decision.Breakers)
	if halted := decision.Ledger.haltedScopes(); len(halted) > 0 { // the metric shows the halt of any scope
		holding[Halted] = strings.Join(halted, ",")
	}
	r.SetBreakers(Breakers(), holding)
	freezing := []Rule{breaker.ControlGroup, breaker.ControlNode, LedgerFailed} // faults of the cluster, or of the controller itself
	first := slices.IndexFunc(freezing, func(rule Rule) bool { return decision.Breakers[rule] != "" })
	if first >= 0 && !r.frozen {
		text := string(freezing[first]) + ": " + decision.Breakers[freezing[first]]
		r.Log.Warn("remediation frozen", "detail", text)
		r.Event(r.Self, corev1.EventTypeWarning, RemediationFrozen, text)
	}
	r.frozen = first >= 0
	for _, scope := range decision.NewlyHalted {
		text := describeHalt(scope, decision.Ledger.Guards[scope].Halted)
		r.Log.Warn("remediation halted", "scope", scope, "detail", text)
		r.Event(r.Self, corev1.EventTypeWarning, RemediationHalted, text)
	}
	for _, stuck := range decision.NewlyStuck {
		r.Log.Warn("deletion stuck", "node", stuck.Node, "nodeclaim", stuck.NodeClaim, "since", formatTime(stuck.Time))
		advice := "the finalizers of the Node"
		if stuck.NodeClaim != "" {
			advice = "Karpenter's log, and the finalizers of the NodeClaim " + stuck.NodeClaim
		}
		r.Event(r.Self, corev1.EventTypeWarning, RemediationStuck,
			fmt.Sprintf("the deletion of node %s began %s ago, but the node is still there: check %s", stuck.Node, stuckAfter, advice))
	}
	for _, withheld := range decision.Withheld {
		r.ReportWithheld(withheld, RemediationWithheld, now)
	}
}
