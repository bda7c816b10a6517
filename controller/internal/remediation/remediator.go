package remediation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
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
	Client     client.Client
	LedgerName string
	DryRun     bool
	Self       runtime.Object // what Events about the whole fleet are about

	store   store
	notices act.Recent[notice]
	refused act.Recent[types.UID]
	frozen  bool
}

// Start decides and acts until ctx ends. The manager calls it when this process has become the leader.
func (r *Remediator) Start(ctx context.Context) error { return r.Run(ctx, r.act) }

func (r *Remediator) act(ctx context.Context, plan fleet.Plan, now clock.Now) {
	r.refused.Forget(time.Hour, now)
	decision, err := r.decide(ctx, plan, now)
	switch {
	case apierrors.IsConflict(err):
		return // somebody has changed the ledger: decide again
	case err != nil:
		r.Log.Error("the ledger cannot be used: nothing is deleted", "error", err)
		decision = Decision{Breakers: map[Rule]string{LedgerFailed: err.Error()}}
	}
	r.report(decision, now)
	// What was refused comes after the others, and the longest ago first: no refusal keeps another node waiting.
	slices.SortStableFunc(decision.Candidates, func(a, b fleet.Status) int {
		return r.refused[a.Node.UID].Compare(r.refused[b.Node.UID])
	})
	for _, candidate := range decision.Candidates[:min(perTurn, len(decision.Candidates))] {
		if at, refused := r.refused[candidate.Node.UID]; refused && now.Since(at) < refusedFor {
			return
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
	in := Input{Statuses: plan.Statuses, Ledger: r.store.ledger, ControlGroup: r.ControlGroup()}
	decision := r.Settings.Decide(in, now)
	isIdle := len(decision.Candidates)+len(decision.Withheld) == 0 && !decision.Changed && len(r.store.ledger.halts()) == 0
	if isIdle && r.store.object != nil {
		return decision, nil // nothing depends on the ledger, and nobody has to clear it
	}
	r.store.client, r.store.key = r.Client, client.ObjectKey{Namespace: r.Settings.PodNamespace, Name: r.LedgerName}
	if err := r.store.read(ctx); err != nil {
		return Decision{}, err
	}
	in.Ledger = r.store.ledger.clone()
	clears := r.store.object.Annotations[ClearHalt] // the scopes whose halts somebody wants to end
	if clears != "" {
		in.Ledger.clear(clears, now)
		r.Log.Info("the annotation that clears halts was read", "names", clears, "still-halted", in.Ledger.halts())
		if halts := in.Ledger.halts(); len(halts) > 0 { // a name may be wrong
			r.event(r.Self, RemediationHalted, fmt.Sprintf("still halted after %s=%s: %q", ClearHalt, clears, halts))
		}
	}
	decision = r.Settings.Decide(in, now)
	if decision.Changed || clears != "" {
		return decision, r.store.write(ctx, decision.Ledger)
	}
	return decision, nil
}

// confirm reads a candidate live, and returns the object to delete. It returns nil if the plan is too old by then, or after it
// has reported a rule that withholds the deletion.
func (r *Remediator) confirm(ctx context.Context, candidate fleet.Status, plan fleet.Plan, now clock.Now) (
	object client.Object) {
	live, err := r.readLive(ctx, candidate)
	rule, text := Unreadable, fmt.Sprint(err)
	if err == nil {
		object, rule, text = r.Settings.Confirm(candidate, live, plan.Seen, now)
	}
	if rule == "" && r.DryRun {
		rule, text = DryRun, kindOf(object)+" "+object.GetName()+" would be deleted"
	}
	switch {
	case rule != "":
		r.refused.Add(candidate.Node.UID, now)
		r.withheld(act.Withheld{Node: candidate.Node, Rule: rule, Text: text}, now)
		return nil
	case !r.MayAct(plan): // the live reads may have taken long
		return nil
	}
	return object
}

// replace confirms the deletion of a candidate, writes it into the ledger, confirms it again, because that may have taken long,
// and deletes its NodeClaim or Node. It reports whether it has tried to write the ledger: no other node is replaced in this turn
// then.
func (r *Remediator) replace(ctx context.Context, candidate fleet.Status, plan fleet.Plan, ledger Ledger,
	now clock.Now) bool {
	node := candidate.Node
	log := r.Log.With("node", node.Name, "nodepool", r.Settings.scopeOf(node), "reason", candidate.Reason)
	object := r.confirm(ctx, candidate, plan, now)
	if object == nil {
		return false
	}
	deletion := Deletion{Time: now.Server().UTC(), NodePool: r.Settings.scopeOf(object), Node: node.Name, NodeUID: node.UID,
		Reason: candidate.Reason}
	if kindOf(object) == nodeClaimKind {
		deletion.NodeClaim = object.GetName()
	}
	with := ledger.clone()
	with.Deletions = append(with.Deletions, deletion)
	if err := r.store.write(ctx, with); err != nil {
		log.Warn("the deletion cannot be written into the ledger: nothing is deleted", "error", err)
	} else if object = r.confirm(ctx, candidate, plan, now); object == nil {
		r.takeBack(ctx, candidate, ledger, log)
	} else {
		r.carryOut(ctx, candidate, object, ledger, log)
	}
	return true
}

// takeBack writes the ledger as it was before a deletion that is not made, also where the time for that is over.
func (r *Remediator) takeBack(ctx context.Context, candidate fleet.Status, before Ledger, log *slog.Logger) {
	r.refused.Add(candidate.Node.UID, r.Now())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := r.store.write(ctx, before); err != nil {
		log.Warn("nothing was deleted, but the entry stays in the ledger", "error", err)
	}
}

// carryOut deletes an object whose deletion is in the ledger. before is the ledger without it.
func (r *Remediator) carryOut(ctx context.Context, candidate fleet.Status, object client.Object, before Ledger,
	log *slog.Logger) {
	kind, name := kindOf(object), object.GetName()
	uid, version := object.GetUID(), object.GetResourceVersion() // only as it was read
	err := r.Client.Delete(ctx, object, client.Preconditions{UID: &uid, ResourceVersion: &version})
	switch {
	case r.isRefused(ctx, object, err):
		r.withheld(act.Withheld{Node: candidate.Node, Rule: Refused, Text: fmt.Sprintf("%s %s: %v", kind, name, err)}, r.Now())
		r.takeBack(ctx, candidate, before, log)
	case err != nil:
		log.Error("the result of the deletion is unknown", "kind", kind, "name", name, "error", err)
	default:
		log.Info("deleted", "kind", kind, "name", name, "detail", candidate.Message)
		r.event(candidate.Node, kind+"Deleted", fmt.Sprintf("%s %s: %s: %s", kind, name, candidate.Reason, candidate.Message))
	}
}
