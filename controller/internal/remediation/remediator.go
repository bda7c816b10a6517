package remediation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// refusedFor is how long a candidate waits whose live objects have withheld its deletion.
	refusedFor = 5 * time.Minute
	// perTurn is how many candidates are read live at one decision: a list of a node's pods may cost as much as one of all pods.
	perTurn = 10
)

// Remediator replaces one node at a time.
type Remediator struct {
	act.Actor
	Settings Settings
	// Client reads and writes without a cache.
	Client client.Client
	// Unmet says what a node does not show of what REQUIRE demands, or "".
	Unmet      func(context.Context, *nodepatch.Node) string
	LedgerName string
	DryRun     bool
	Self       runtime.Object // what Events about the whole fleet are about

	stored  stored
	refused act.Recent[types.UID] // candidates whose deletion was withheld, by the live objects or the API server
	// undone are the times, in nanoseconds, of deletions that this process has not made although the ledger may list them. They
	// are kept for an hour: far longer than the API server may take to apply a write whose answer was lost.
	undone act.Recent[int64]
	frozen bool // an Event has said so
}

// Start decides and acts until ctx ends. The manager calls it when this process has become the leader.
func (r *Remediator) Start(ctx context.Context) error { return r.Run(ctx, r.act) }

func (r *Remediator) act(ctx context.Context, plan fleet.Plan, now clock.Now) {
	r.refused.Forget(time.Hour, now) // far later than refusedFor: it also says who comes first
	r.undone.Forget(time.Hour, now)
	decision, err := r.decide(ctx, plan, now)
	switch {
	case apierrors.IsConflict(err):
		return // somebody has changed the ledger: decide again
	case err != nil:
		r.Log.Error("the ledger cannot be used: nothing is deleted", "error", err)
		decision = Decision{Breakers: map[Rule]string{LedgerFailed: err.Error()}}
	}
	r.report(decision, now)
	// Refused candidates come last, and among them the one that was refused the longest ago first: no refusal delays another node.
	slices.SortStableFunc(decision.Candidates, func(a, b fleet.Status) int {
		return r.refused[a.Node.UID].Compare(r.refused[b.Node.UID])
	})
	for _, candidate := range decision.Candidates[:min(perTurn, len(decision.Candidates))] {
		at, refused := r.refused[candidate.Node.UID]
		if refused && now.Since(at) < refusedFor {
			return // the candidates that follow were refused later
		}
		if r.replace(ctx, candidate, plan, decision.Ledger, now) || ctx.Err() != nil || !plan.IsFresh(r.Now()) {
			return
		}
	}
}

// decide decides with the ledger as it is, and writes it if it has to change.
func (r *Remediator) decide(ctx context.Context, plan fleet.Plan, now clock.Now) (Decision, error) {
	if !now.IsServerKnown() {
		return Decision{}, errors.New("the API server's clock has jumped: wait until it is steady for some minutes, " +
			"and compare the clocks of the API servers")
	}
	in := Input{Statuses: plan.Statuses, Ledger: r.stored.ledger.clone(), ControlGroup: r.ControlGroup()}
	if decision := r.Settings.Decide(in, now); r.isIdle(decision) {
		return decision, nil
	}
	if err := r.readLedger(ctx); err != nil {
		return Decision{}, err
	}
	ledger := r.stored.ledger.clone()
	isUndone := func(deletion Deletion) bool { return !r.undone[deletion.Time.UnixNano()].IsZero() }
	ledger.Deletions = slices.DeleteFunc(ledger.Deletions, isUndone)
	isCorrected := len(ledger.Deletions) < len(r.stored.ledger.Deletions)
	clears := r.stored.object.Annotations[ClearHalt] // the scopes whose halts somebody wants to end
	if clears != "" {
		ledger.clear(clears, now)
		still := ledger.haltedScopes()
		r.Log.Info("the annotation that clears halts was read", "names", clears, "still-halted", still)
		if len(still) > 0 { // a name may be wrong
			r.Event(r.Self, corev1.EventTypeWarning, RemediationHalted,
				fmt.Sprintf("still halted after %s=%s: %q", ClearHalt, clears, still))
		}
	}
	in.Ledger = ledger
	decision := r.Settings.Decide(in, now)
	if decision.Changed || isCorrected || clears != "" {
		return decision, r.writeLedger(ctx, decision.Ledger)
	}
	return decision, nil
}

// isIdle reports whether nothing depends on the ledger as it was read last: there is nothing to delete, no halt to clear, and no
// entry to correct. An idle fleet costs no request, and a ledger that cannot be read is irrelevant there.
func (r *Remediator) isIdle(decision Decision) bool {
	return r.stored.object != nil && len(decision.Candidates)+len(decision.Withheld) == 0 && !decision.Changed &&
		len(r.stored.ledger.haltedScopes())+len(r.undone) == 0
}

// confirm reads a candidate live, and returns the object to delete. It returns nil if the plan is too old by then, or after it
// has reported a rule that withholds the deletion.
func (r *Remediator) confirm(ctx context.Context, candidate fleet.Status, plan fleet.Plan, now clock.Now) client.Object {
	object, why := r.judge(ctx, candidate, plan, now)
	switch {
	case why != nil:
		r.refused.Add(candidate.Node.UID, now)
		r.ReportWithheld(*why, RemediationWithheld, now)
		return nil
	case !r.MayAct(plan): // the live reads may have taken long
		return nil
	}
	return object
}

// judge returns the object to delete by the live objects, or what withholds its deletion.
func (r *Remediator) judge(ctx context.Context, candidate fleet.Status, plan fleet.Plan, now clock.Now) (
	client.Object, *act.Withheld) {
	live, err := r.readLive(ctx, candidate)
	if err != nil {
		return nil, r.Settings.withheld(candidate, Unreadable, err.Error())
	}
	object, why := r.Settings.Confirm(candidate, live, plan.Seen, now)
	if why == nil && r.DryRun {
		why = r.Settings.withheld(candidate, DryRun, kindOf(object)+" "+object.GetName()+" would be deleted")
	}
	return object, why
}

// replace confirms the deletion of a candidate, writes it into the ledger, confirms it again, because that may have taken long,
// and deletes its NodeClaim or Node. It reports whether it has tried to write the ledger: no other node is replaced in this turn
// then.
func (r *Remediator) replace(ctx context.Context, candidate fleet.Status, plan fleet.Plan, ledger Ledger,
	now clock.Now) bool {
	node := candidate.Node
	log := r.Log.With("node", node.Name, "scope", r.Settings.scopeOf(node), "reason", candidate.Reason)
	object := r.confirm(ctx, candidate, plan, now)
	if object == nil {
		return false
	}
	deletion := Deletion{Time: now.Server().UTC(), Scope: r.Settings.scopeOf(object), Node: node.Name, NodeUID: node.UID,
		Reason: candidate.Reason.String()}
	if kindOf(object) == nodeClaimKind {
		deletion.NodeClaim = object.GetName()
	}
	with := ledger.clone()
	with.Deletions = append(with.Deletions, deletion)
	if err := r.writeLedger(ctx, with); err != nil {
		log.Warn("the deletion cannot be written into the ledger: nothing is deleted", "error", err)
		r.undone.Add(deletion.Time.UnixNano(), now) // the write may have been applied, or will be
		return true
	}
	object = r.confirm(ctx, candidate, plan, now)
	if object == nil || !r.carryOut(ctx, candidate, object, log) {
		r.takeBack(ctx, deletion, ledger, log)
	}
	return true
}

// takeBack writes the ledger as it was before a deletion that was not made, even if the time of the decision is over. If that
// fails, the next decisions do it.
func (r *Remediator) takeBack(ctx context.Context, deletion Deletion, before Ledger, log *slog.Logger) {
	r.refused.Add(deletion.NodeUID, r.Now())
	r.undone.Add(deletion.Time.UnixNano(), r.Now())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := r.writeLedger(ctx, before); err != nil {
		log.Warn("nothing was deleted, but the entry is still in the ledger, will retry", "error", err)
	}
}

// carryOut deletes an object whose deletion is in the ledger, and reports whether it may be deleted now.
func (r *Remediator) carryOut(ctx context.Context, candidate fleet.Status, object client.Object, log *slog.Logger) bool {
	kind, name := kindOf(object), object.GetName()
	uid, version := object.GetUID(), object.GetResourceVersion() // only as it was read
	err := r.Client.Delete(ctx, object, client.Preconditions{UID: &uid, ResourceVersion: &version})
	switch {
	case r.isRefused(ctx, object, err):
		why := r.Settings.withheld(candidate, Refused, fmt.Sprintf("%s %s: %v", kind, name, err))
		r.ReportWithheld(*why, RemediationWithheld, r.Now())
		return false
	case err != nil:
		log.Error("the result of the deletion is unknown", "kind", kind, "name", name, "error", err)
	default:
		log.Info("deleted", "kind", kind, "name", name, "detail", candidate.Message)
		r.Event(candidate.Node, corev1.EventTypeWarning, kind+"Deleted",
			fmt.Sprintf("%s %s: %s: %s", kind, name, candidate.Reason, candidate.Message))
	}
	return true
}
