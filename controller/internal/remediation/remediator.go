package remediation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/controlgroup"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// interval is how often the remediator decides.
	interval = 10 * time.Second
	// refusedFor is how long a candidate waits whose live objects have withheld its deletion.
	refusedFor = 5 * time.Minute
)

// Remediator replaces one node at a time. It runs beside the loop, so that it never delays the release of a node. Not safe for
// concurrent use.
type Remediator struct {
	Settings Settings
	// Plan returns the last plan of the loop, none where this process is not the leader.
	Plan func() (fleet.Plan, error)
	// Client reads and writes without a cache.
	Client       client.Client
	LedgerName   string
	DryRun       bool
	ControlGroup func() controlgroup.State
	// ServerTime returns the time by the API server's clock, zero if it is not known yet.
	ServerTime func() time.Time
	Now        func() time.Time // this process's monotonic clock
	Timeout    time.Duration    // of all requests about one decision
	Events     events.EventRecorder
	Self       runtime.Object // what Events about the whole fleet are about
	// SetBreaker says for each of Breakers whether it holds every deletion now.
	SetBreaker func(rule string, holds bool)
	HandOver   *breaker.HandOver // nil: none
	Log        *slog.Logger

	store   store
	notices breaker.Notices[notice]
	refused map[types.UID]time.Time
	frozen  bool
}

// Start decides and acts until ctx ends. The manager calls it when this process has become the leader.
func (r *Remediator) Start(ctx context.Context) error {
	wait.NonSlidingUntilWithContext(ctx, r.once, interval)
	return nil
}

// once decides and acts. What fails is decided again the next time.
func (r *Remediator) once(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	plan, err := r.Plan()
	now, serverNow := r.Now(), r.ServerTime()
	if err != nil || plan.At.IsZero() || serverNow.IsZero() {
		return // the loop logs the error
	}
	decision, err := r.decide(ctx, plan, serverNow, now)
	switch {
	case apierrors.IsConflict(err):
		return // somebody has changed the ledger: decide again
	case err != nil:
		r.Log.Error("the ledger cannot be used: nothing is deleted", "error", err)
		decision = Decision{Breakers: map[Rule]string{LedgerFailed: err.Error()}}
	}
	r.report(decision, now)
	r.HandOver.Consider(ctx, r.Client, r.Settings.breaker().Unfit(plan.Statuses), r.Settings.NodeName, now)
	if len(decision.Candidates) > 0 && !plan.IsFresh(now) {
		r.Log.Warn("no node is replaced: the last plan is too old", "made", plan.At)
		return
	}
	for _, candidate := range decision.Candidates {
		if at, refused := r.refused[candidate.Node.UID]; !refused || now.Sub(at) >= refusedFor {
			r.replace(ctx, candidate, plan.Seen, decision.Ledger, serverNow, now)
			return
		}
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
	clears := r.store.clears()
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
func (r *Remediator) replace(ctx context.Context, candidate fleet.Status, seen fleet.Memory, ledger Ledger,
	serverNow, now time.Time) {
	log := r.Log.With("node", candidate.Node.Name, "nodepool", nodePool(candidate.Node), "reason", candidate.Reason)
	claim, rule, text := r.confirm(ctx, candidate, seen, serverNow, now)
	if rule != "" {
		r.refuse(candidate, now)
		r.withheld(Withheld{Node: candidate.Node, Rule: rule, Text: text}, now)
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
		r.refuse(candidate, r.Now())
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

func (r *Remediator) refuse(candidate fleet.Status, now time.Time) {
	if r.refused == nil {
		r.refused = make(map[types.UID]time.Time)
	}
	maps.DeleteFunc(r.refused, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= refusedFor })
	r.refused[candidate.Node.UID] = now
}
