package retaint

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Reasons of the Events.
const (
	FailedTaintAdded   = "FailedTaintAdded"
	FailedTaintRemoved = "FailedTaintRemoved"
	TaintWithheld      = "TaintWithheld"
)

// failedFor is how long a node whose patch has failed comes after the others.
const failedFor = time.Hour

// Tainter adds and removes failed taints. It re-taints at most one node with each decision.
type Tainter struct {
	act.Actor
	Settings Settings
	// Patcher reads and patches a node without a cache.
	Patcher func(node string) *nodepatch.Patcher
	// CountAdded and CountRemoved count the failed taints.
	CountAdded, CountRemoved func()

	retainted act.Recent[types.UID] // by this process
	unsettled *corev1.Node          // the node whose re-taint was tried last, until it is known whether the node has the taint
	isNoted   bool                  // the unsettled re-taint is counted and reported
	failed    act.Recent[types.UID] // patches that were tried, and failed
}

// Start decides and acts until ctx ends. The manager calls it when this process has become the leader.
func (t *Tainter) Start(ctx context.Context) error { return t.Run(ctx, t.act) }

func (t *Tainter) act(ctx context.Context, plan fleet.Plan, now clock.Now) {
	t.retainted.Forget(t.Settings.CoolDown, now)
	t.failed.Forget(failedFor, now)
	t.settle(ctx, plan.Statuses, now)
	decision := t.Settings.Decide(Input{Statuses: plan.Statuses, ControlGroup: t.ControlGroup(), Retainted: t.retainted,
		Behind: t.unsettled != nil}, now)
	if t.Settings.Enabled {
		t.SetBreakers(Rules().Breakers(), decision.Breakers)
	}
	// A node that cannot be patched holds no other node.
	failedLast := func(a, b fleet.Status) int { return t.failed[a.Node.UID].Compare(t.failed[b.Node.UID]) }
	slices.SortStableFunc(decision.RemoveTaint, failedLast)
	for _, status := range decision.RemoveTaint { // first: nothing delays it, not even an old plan
		t.removeTaint(ctx, status, now)
	}
	for _, withheld := range decision.Withheld {
		t.ReportWithheld(withheld, TaintWithheld, now)
	}
	slices.SortStableFunc(decision.Candidates, failedLast)
	for _, candidate := range decision.Candidates {
		if t.retaint(ctx, plan, candidate, now) {
			break
		}
	}
}

// settle forgets the last re-taint once the cache shows it, or the live node does not have the taint: the answer to the patch may
// be lost. Until then nobody knows how much of the budget is left.
func (t *Tainter) settle(ctx context.Context, statuses []fleet.Status, now clock.Now) {
	last := t.unsettled
	if last == nil {
		return
	}
	isShown := func(status fleet.Status) bool { return status.Node.UID == last.UID && status.Retainted }
	if slices.ContainsFunc(statuses, isShown) {
		t.noteRetainted(last, now)
		t.unsettled = nil
		return
	}
	live, err := t.Patcher(last.Name).Get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		t.unsettled = nil
	case err == nil && (live.UID != last.UID || !t.Settings.Fleet.IsRetainted(live.Spec.Taints)):
		t.unsettled = nil // the taint may be there with the value of somebody else
	case err == nil: // the answer was lost, and the cache is behind
		t.noteRetainted(last, now)
	}
}

// retaint reads a candidate live, and re-taints it if it is still one. It reports whether no other node may be re-tainted by this
// decision: it has sent a patch, or the plan is too old.
func (t *Tainter) retaint(ctx context.Context, plan fleet.Plan, candidate fleet.Status, now clock.Now) bool {
	log := t.Log.With("node", candidate.Node.Name)
	patcher := t.Patcher(candidate.Node.Name)
	live, err := patcher.Get(ctx)
	if err != nil {
		log.Warn("cannot read a node that fails its rechecks, will retry", "error", err)
		return false
	}
	if why := t.Settings.changed(candidate, live); why != "" {
		t.ReportWithheld(act.Withheld{Node: candidate.Node, Rule: Changed, Text: why}, TaintWithheld, now)
		return false
	}
	if !t.MayAct(plan) {
		return true
	}
	t.unsettled, t.isNoted = candidate.Node, false
	if err := patcher.Retaint(ctx, live, t.Settings.Fleet.Keys, t.Settings.Fleet.FailedTaintValue); err != nil {
		t.noteFailure(ctx, candidate, live, err, now)
		return true
	}
	t.noteRetainted(candidate.Node, now)
	return true
}

// noteRetainted counts and reports, once, that the unsettled re-taint was applied.
func (t *Tainter) noteRetainted(node *corev1.Node, now clock.Now) {
	if t.isNoted {
		return
	}
	t.isNoted = true
	t.retainted.Add(node.UID, now)
	delete(t.failed, node.UID)
	t.CountAdded()
	condition := t.Settings.Fleet.Condition(node)
	t.Log.Warn("failed taint added: the node fails its rechecks", "node", node.Name,
		"reason", condition.Reason, "detail", condition.Message)
	t.Event(node, corev1.EventTypeWarning, FailedTaintAdded, condition.Reason+": "+condition.Message)
}

// noteFailure notes that a patch has failed, and reports it if the API server refuses it.
func (t *Tainter) noteFailure(ctx context.Context, candidate fleet.Status, sent *nodepatch.Node, err error, now clock.Now) {
	t.failed.Add(candidate.Node.UID, now)
	t.Log.Warn("cannot add the failed taint, will retry", "node", candidate.Node.Name, "error", err)
	if t.isRefused(ctx, sent, err) {
		t.ReportWithheld(act.Withheld{Node: candidate.Node, Rule: Refused, Text: err.Error()}, TaintWithheld, now)
	}
}

// isRefused reports whether an admission policy or a webhook has refused a patch. A policy may answer 422, and so does a test of
// the patch where the node has changed: it reads the node again.
func (t *Tainter) isRefused(ctx context.Context, sent *nodepatch.Node, err error) bool {
	if !apierrors.IsInvalid(err) {
		return nodepatch.IsFinal(err)
	}
	current, err := t.Patcher(sent.Name).Get(ctx)
	return err == nil && current.ResourceVersion == sent.ResourceVersion
}

// changed says what is different on the live node, so that it must not be re-tainted, or "".
func (s Settings) changed(candidate fleet.Status, live *nodepatch.Node) string {
	seen := s.Fleet.Condition(candidate.Node)
	if live.UID != candidate.Node.UID {
		return "it was deleted and created again"
	}
	if why := nodepatch.Untouchable(live); why != "" {
		return why
	}
	if !s.Fleet.Keys.IsVerified(live.Labels, live.Spec.Taints) { // without any of the taints that a release removes
		return "it has lost the label, or already has a taint that a release removes"
	}
	condition := live.Status.Conditions.Of(s.Fleet.ConditionType)
	switch {
	case live.Annotations[nodepatch.Opened] != candidate.Node.Annotations[nodepatch.Opened]:
		return "somebody has opened it"
	case condition.Type == "":
		return "its condition is gone"
	case condition.Status != string(corev1.ConditionFalse), condition.LastHeartbeatTime.Before(&seen.LastHeartbeatTime):
		return "its condition is " + condition.Status + " now"
	}
	return ""
}

// removeTaint removes the failed taint of a node, if it is still the one that this release has added.
func (t *Tainter) removeTaint(ctx context.Context, status fleet.Status, now clock.Now) {
	name := status.Node.Name
	removed, err := removeFailedTaint(ctx, t.Patcher(name), t.Settings.Fleet)
	switch {
	case err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err):
		t.failed.Add(status.Node.UID, now)
		t.Log.Warn("cannot remove the failed taint, will retry", "node", name, "error", err)
	case removed:
		t.CountRemoved()
		t.Log.Info("failed taint removed", "node", name, "detail", t.Settings.whyRemoved(status))
		t.Event(status.Node, corev1.EventTypeNormal, FailedTaintRemoved, t.Settings.whyRemoved(status))
	}
}

// whyRemoved says why a failed taint is removed.
func (s Settings) whyRemoved(status fleet.Status) string {
	switch {
	case !s.Enabled:
		return "re-tainting is switched off"
	case s.Fleet.Condition(status.Node).Status == corev1.ConditionTrue:
		return "the node passes its rechecks"
	default:
		return fmt.Sprintf("no agent has checked the node for %s", s.Fleet.NoAgentFor)
	}
}
