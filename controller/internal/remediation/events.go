package remediation

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/kube"
)

// Reasons of the Events, beside NodeClaimDeleted and NodeDeleted.
const (
	RemediationWithheld = "RemediationWithheld"
	RemediationStuck    = "RemediationStuck"
	RemediationHalted   = "RemediationHalted"
	RemediationFrozen   = "RemediationFrozen"
)

// notice is what an Event is about that is not to be repeated within an hour.
type notice struct {
	rule Rule
	pool string
}

// report sets the breakers and sends the Events of a decision: each halt and each freeze once, each rule once an hour and
// NodePool.
func (r *Remediator) report(decision Decision, now clock.Now) {
	for _, rule := range Rules().Breakers() {
		_, holds := decision.Breakers[rule]
		r.SetBreaker(string(rule), holds || rule == Halted && len(decision.Ledger.halts()) > 0)
	}
	// The others are not the fault of the cluster, or of the controller itself.
	freezing := slices.DeleteFunc([]Rule{breaker.ControlGroup, breaker.ControlNode, LedgerFailed},
		func(rule Rule) bool { return decision.Breakers[rule] == "" })
	if len(freezing) > 0 && !r.frozen {
		rule, text := freezing[0], decision.Breakers[freezing[0]]
		r.Log.Warn("remediation frozen", "rule", rule, "detail", text)
		r.event(r.Self, RemediationFrozen, string(rule)+": "+text)
	}
	r.frozen = len(freezing) > 0
	for _, scope := range decision.Halted {
		text := haltText(scope, decision.Ledger.Guards[scope].Halted)
		r.Log.Warn("remediation halted", "scope", scope, "detail", text)
		r.event(r.Self, RemediationHalted, text)
	}
	for _, stuck := range decision.Stuck {
		r.Log.Warn("deletion stuck", "node", stuck.Node, "nodeclaim", stuck.NodeClaim, "since", formatTime(stuck.Time))
		advice := "the finalizers of the Node"
		if stuck.NodeClaim != "" {
			advice = "Karpenter's log, and the finalizers of the NodeClaim " + stuck.NodeClaim
		}
		r.event(r.Self, RemediationStuck,
			fmt.Sprintf("the deletion of node %s began %s ago, but the node is still there: check %s", stuck.Node, stuckAfter, advice))
	}
	for _, withheld := range decision.Withheld {
		r.withheld(withheld, now)
	}
}

func (r *Remediator) withheld(w act.Withheld, now clock.Now) {
	key := notice{w.Rule, r.Settings.scopeOf(w.Node)}
	if !r.notices.IsDue(key, now) {
		return
	}
	r.Log.Info("deletion withheld", "node", w.Node.Name, "nodepool", key.pool, "rule", w.Rule, "detail", w.Text)
	r.event(w.Node, RemediationWithheld, string(w.Rule)+": "+w.Text)
}

func (r *Remediator) event(about runtime.Object, reason, message string) {
	r.Events.Eventf(about, nil, corev1.EventTypeWarning, reason, "Remediate", "%s", kube.Shorten(message))
}
