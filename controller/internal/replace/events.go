package replace

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/internal/kube"
)

// noticeEvery is how often the same rule is reported for the same NodePool.
const noticeEvery = time.Hour

// report sends the Events of a decision: each halt and each freeze once, each rule once an hour for each NodePool.
func (r *Replacer) report(decision Decision, now time.Time) {
	rule, text := decision.freezes()
	if rule != "" && !r.frozen {
		r.Log.Warn("remediation frozen", "rule", rule, "detail", text)
		r.Events.Eventf(r.Self, nil, corev1.EventTypeWarning, RemediationFrozen, action, "%s: %s", rule, kube.Shorten(text))
	}
	r.frozen = rule != ""
	for _, scope := range decision.Halted {
		text := decision.Ledger.halted(scope)
		r.Log.Warn("remediation halted", "scope", scope, "detail", text)
		r.Events.Eventf(r.Self, nil, corev1.EventTypeWarning, RemediationHalted, action, "%s", kube.Shorten(text))
	}
	for _, stuck := range decision.Stuck {
		r.Log.Warn("deletion stuck", "node", stuck.Node, "nodeclaim", stuck.NodeClaim, "since", clock(stuck.Time))
		r.Events.Eventf(r.Self, nil, corev1.EventTypeWarning, DeletionStuck, action,
			"NodeClaim %s was deleted %s ago, and its node %s is still there: check Karpenter's log and the claim's finalizers",
			stuck.NodeClaim, stuckAfter, stuck.Node)
	}
	for _, withheld := range decision.Withheld {
		r.withheld(withheld, now)
	}
}

// freezes returns the breaker that is the fault of the cluster or of the controller itself, or "".
func (d Decision) freezes() (Rule, string) {
	for _, rule := range []Rule{ControlGroup, ControlNode, LedgerFailed} {
		if text, held := d.Breakers[rule]; held {
			return rule, text
		}
	}
	return "", ""
}

func (r *Replacer) withheld(w Withheld, now time.Time) {
	if r.told == nil {
		r.told = make(map[notice]time.Time)
	}
	maps.DeleteFunc(r.told, func(_ notice, at time.Time) bool { return now.Sub(at) >= noticeEvery })
	key := notice{w.Rule, nodePool(w.Node)}
	if _, told := r.told[key]; told {
		return
	}
	r.told[key] = now
	r.Log.Info("deletion withheld", "node", w.Node.Name, "nodepool", key.pool, "rule", w.Rule, "detail", w.Text)
	r.Events.Eventf(w.Node, nil, corev1.EventTypeWarning, DeletionWithheld, action, "%s: %s", w.Rule, kube.Shorten(w.Text))
}
