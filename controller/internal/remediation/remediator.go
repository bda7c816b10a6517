package remediation

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// refusedFor is how long a candidate waits whose live objects have withheld its deletion.
const refusedFor = 5 * time.Minute

// Remediator replaces one node at a time.
type Remediator struct {
	breaker.Actor
	Settings Settings
	// Client reads and writes without a cache.
	Client     client.Client
	LedgerName string
	DryRun     bool
	// ServerTime returns the time by the API server's clock, zero if it is not known yet.
	ServerTime func() time.Time
	Self       runtime.Object // what Events about the whole fleet are about

	store   store
	notices breaker.Recent[notice]
	refused breaker.Recent[types.UID]
	frozen  bool
}

// Start decides and acts until ctx ends. The manager calls it when this process has become the leader.
func (r *Remediator) Start(ctx context.Context) error { return r.Run(ctx, r.Settings.Settings, r.act) }

func (r *Remediator) act(ctx context.Context, plan fleet.Plan, now time.Time) {
	serverNow := r.ServerTime()
	if serverNow.IsZero() {
		return
	}
	r.refused.Forget(refusedFor, now)
	decision, err := r.decide(ctx, plan, serverNow, now)
	switch {
	case apierrors.IsConflict(err):
		return // somebody has changed the ledger: decide again
	case err != nil:
		r.Log.Error("the ledger cannot be used: nothing is deleted", "error", err)
		decision = Decision{Breakers: map[Rule]string{LedgerFailed: err.Error()}}
	}
	r.report(decision, now)
	for _, candidate := range decision.Candidates {
		if _, refused := r.refused[candidate.Node.UID]; refused {
			continue
		}
		r.replace(ctx, candidate, plan, decision.Ledger, serverNow, now)
		return
	}
}

// decide decides with the ledger as it is, and writes it if it has to change.
func (r *Remediator) decide(ctx context.Context, plan fleet.Plan, serverNow, now time.Time) (Decision, error) {
	in := Input{Statuses: plan.Statuses, Ledger: r.store.ledger, ControlGroup: r.ControlGroup(), ServerNow: serverNow}
	decision := r.Settings.Decide(in, now)
	isIdle := len(decision.Candidates)+len(decision.Withheld) == 0 && !decision.Changed && !r.store.ledger.isHalted()
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
		in.Ledger.clear(clears, serverNow)
		r.Log.Info("halt cleared", "scopes", clears)
	}
	decision = r.Settings.Decide(in, now)
	if decision.Changed || clears != "" {
		return decision, r.store.write(ctx, decision.Ledger)
	}
	return decision, nil
}

// confirm reads a candidate live, and returns the NodeClaim to delete, or the rule that withholds the deletion.
func (r *Remediator) confirm(ctx context.Context, candidate fleet.Status, seen fleet.Memory, serverNow, now time.Time) (
	*unstructured.Unstructured, Rule, string) {
	live, err := r.readLive(ctx, candidate)
	if err != nil {
		return nil, Unreadable, err.Error()
	}
	claim, rule, text := r.Settings.Confirm(candidate, live, seen, serverNow, now)
	if rule == "" && r.DryRun {
		return nil, DryRun, "NodeClaim " + claim.GetName() + " would be deleted"
	}
	return claim, rule, text
}

// replace confirms the deletion of a candidate, writes it into the ledger, and deletes the NodeClaim.
func (r *Remediator) replace(ctx context.Context, candidate fleet.Status, plan fleet.Plan, ledger Ledger,
	serverNow, now time.Time) {
	log := r.Log.With("node", candidate.Node.Name, "nodepool", nodePool(candidate.Node), "reason", candidate.Reason)
	claim, rule, text := r.confirm(ctx, candidate, plan.Seen, serverNow, now)
	if rule != "" {
		r.refused.Add(candidate.Node.UID, now)
		r.withheld(breaker.Withheld{Node: candidate.Node, Rule: rule, Text: text}, now)
		return
	}
	if !r.MayAct(plan) { // the live reads may have taken long
		return
	}
	node := candidate.Node
	entry := Deletion{Time: serverNow.UTC(), NodePool: nodePool(claim), Node: node.Name, NodeUID: node.UID,
		NodeClaim: claim.GetName(), Reason: candidate.Reason}
	with := ledger.clone()
	with.Deletions = append(with.Deletions, entry)
	if err := r.store.write(ctx, with); err != nil {
		log.Warn("the deletion cannot be written into the ledger: nothing is deleted", "error", err)
		return
	}
	r.carryOut(ctx, candidate, claim, ledger, log)
}

// carryOut deletes a NodeClaim whose deletion is in the ledger. before is the ledger without it.
func (r *Remediator) carryOut(ctx context.Context, candidate fleet.Status, claim *unstructured.Unstructured, before Ledger,
	log *slog.Logger) {
	err := r.delete(ctx, claim)
	switch {
	case isRefused(err):
		log.Warn("the NodeClaim is not deleted", "nodeclaim", claim.GetName(), "error", err)
		r.refused.Add(candidate.Node.UID, r.Now())
		if err := r.store.write(ctx, before); err != nil {
			log.Warn("the deletion stays in the ledger", "error", err)
		}
	case err != nil:
		log.Error("it is not known whether the NodeClaim is deleted", "nodeclaim", claim.GetName(), "error", err)
	default:
		log.Info("NodeClaim deleted", "nodeclaim", claim.GetName(), "detail", candidate.Message)
		message := fmt.Sprintf("NodeClaim %s: %s: %s", claim.GetName(), candidate.Reason, candidate.Message)
		r.event(candidate.Node, NodeClaimDeleted, message)
	}
}
