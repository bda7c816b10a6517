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
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Reasons of the Events.
const (
	FailedTaintAdded   = "FailedTaintAdded"
	FailedTaintRemoved = "FailedTaintRemoved"
	TaintWithheld      = "TaintWithheld"
)

const (
	// failedFor is how long a node whose patch has failed comes after the others.
	failedFor = time.Hour
	// Timeout is for all requests about one decision.
	Timeout = time.Minute
)

// Tainter adds and removes failed taints. It re-taints at most one node with each decision.
type Tainter struct {
	act.Actor
	Settings Settings
	// Node reads and patches a node without a cache.
	Node           func(name string) nodepatch.NodeAPI
	RequestTimeout time.Duration // of one request
	// Count counts failed taints: "added" or "removed".
	Count func(change string)

	retainted act.Recent[types.UID] // by this process
	last      *corev1.Node          // the last re-taint that was tried, until it is known whether it was applied
	failed    act.Recent[types.UID] // patches that were tried, and failed
	notices   act.Recent[breaker.Rule]
}

// Start decides and acts until ctx ends. The manager calls it when this process has become the leader.
func (t *Tainter) Start(ctx context.Context) error { return t.Run(ctx, t.act) }

func (t *Tainter) act(ctx context.Context, plan fleet.Plan, now clock.Now) {
	t.retainted.Forget(t.Settings.CoolDown, now)
	t.failed.Forget(failedFor, now)
	decision := t.Settings.Decide(Input{Statuses: plan.Statuses, ControlGroup: t.ControlGroup(), Retainted: t.retainted,
		Behind: t.isBehind(ctx, plan.Statuses)}, now)
	for _, rule := range Rules().Breakers() {
		if _, holds := decision.Breakers[rule]; t.Settings.Enabled {
			t.SetBreaker(string(rule), holds)
		}
	}
	// A node that cannot be patched holds no other node.
	failedLast := func(a, b fleet.Status) int { return t.failed[a.Node.UID].Compare(t.failed[b.Node.UID]) }
	slices.SortStableFunc(decision.RemoveTaint, failedLast)
	for _, status := range decision.RemoveTaint { // first: nothing delays it, not even an old plan
		t.removeTaint(ctx, status, now)
	}
	for _, withheld := range decision.Withheld {
		t.withheld(withheld, now)
	}
	slices.SortStableFunc(decision.Candidates, failedLast)
	for _, candidate := range decision.Candidates {
		if t.retaint(ctx, plan, candidate, now) {
			break
		}
	}
}

// isBehind reports whether the cache does not show a node that this process has re-tainted, or may have: an answer may be lost.
func (t *Tainter) isBehind(ctx context.Context, statuses []fleet.Status) bool {
	isShown := func(status fleet.Status) bool { return status.Node.UID == t.last.UID && status.Retainted }
	if t.last == nil || slices.ContainsFunc(statuses, isShown) {
		t.last = nil
		return false
	}
	live, err := t.patcher(t.last.Name).Get(ctx)
	if err != nil && !apierrors.IsNotFound(err) {
		return true
	}
	if err != nil || live.UID != t.last.UID || !t.Settings.Fleet.IsRetainted(live.Spec.Taints) {
		t.last = nil // it is gone, or does not have the taint, which may be there with the value of somebody else
	}
	return t.last != nil
}

// retaint reads a candidate live, and re-taints it if it is still one. It reports whether no other one
// may be, because it has sent a patch, or the plan is too old.
func (t *Tainter) retaint(ctx context.Context, plan fleet.Plan, candidate fleet.Status, now clock.Now) bool {
	log := t.Log.With("node", candidate.Node.Name)
	patcher := t.patcher(candidate.Node.Name)
	live, err := patcher.Get(ctx)
	if err != nil {
		log.Warn("cannot read a node that fails its rechecks, will retry", "error", err)
		return false
	}
	if why := t.Settings.changed(candidate, live); why != "" {
		t.withheld(act.Withheld{Node: candidate.Node, Rule: Changed, Text: why}, now)
		return false
	}
	if !t.MayAct(plan) {
		return true
	}
	t.last = candidate.Node
	if err := patcher.Retaint(ctx, live, t.Settings.Fleet.Request, t.Settings.Fleet.FailedTaintValue); err != nil {
		t.noteFailure(ctx, candidate, live, err, now)
		return true
	}
	t.retainted.Add(candidate.Node.UID, now)
	delete(t.failed, candidate.Node.UID)
	t.Count("added")
	condition := t.Settings.Fleet.Condition(candidate.Node)
	log.Warn("failed taint added: the node fails its rechecks", "reason", condition.Reason, "detail", condition.Message)
	t.event(candidate.Node, corev1.EventTypeWarning, FailedTaintAdded, condition.Reason+": "+condition.Message)
	return true
}

// noteFailure notes that a patch has failed, and reports it if the API server refuses it: an admission policy may answer 422 too,
// as a test of the patch does.
func (t *Tainter) noteFailure(ctx context.Context, candidate fleet.Status, sent *nodepatch.Node, err error, now clock.Now) {
	t.failed.Add(candidate.Node.UID, now)
	t.Log.Warn("cannot add the failed taint, will retry", "node", candidate.Node.Name, "error", err)
	switch {
	case apierrors.IsInvalid(err):
		current, readErr := t.patcher(candidate.Node.Name).Get(ctx)
		if readErr != nil || current.ResourceVersion != sent.ResourceVersion {
			return
		}
	case !nodepatch.IsFinal(err):
		return
	}
	t.withheld(act.Withheld{Node: candidate.Node, Rule: Refused, Text: err.Error()}, now)
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
	if !nodepatch.IsVerified(live, s.Fleet.Request) { // without any of the taints that a release removes
		return "it has lost the label, or already has a taint that a release removes"
	}
	switch condition := live.Status.Conditions.Of(s.Fleet.ConditionType); {
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
	removed, err := RemoveFailedTaint(ctx, t.patcher(name), t.Settings.Fleet)
	switch {
	case err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err):
		t.failed.Add(status.Node.UID, now)
		t.Log.Warn("cannot remove the failed taint, will retry", "node", name, "error", err)
	case removed:
		t.Count("removed")
		t.Log.Info("failed taint removed", "node", name, "detail", t.Settings.whyRemoved(status))
		t.event(status.Node, corev1.EventTypeNormal, FailedTaintRemoved, t.Settings.whyRemoved(status))
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

// RemoveFailedTaint removes the failed taint of a node, if it is the one that this release's controller has added, and reports
// whether it was there.
func RemoveFailedTaint(ctx context.Context, patcher *nodepatch.Patcher, settings fleet.Settings) (removed bool, err error) {
	live, err := patcher.Get(ctx)
	if err != nil || !settings.IsRetainted(live.Spec.Taints) {
		return false, err
	}
	return true, patcher.RemoveFailedTaint(ctx, live, settings.Request)
}

func (t *Tainter) patcher(node string) *nodepatch.Patcher {
	return Patcher(t.Node(node), t.RequestTimeout)
}

// Patcher returns what RemoveFailedTaint patches with. timeout is that of one request.
func Patcher(node nodepatch.NodeAPI, timeout time.Duration) *nodepatch.Patcher {
	return &nodepatch.Patcher{Node: node, Timeout: timeout, Deadline: 2 * timeout, Retried: func(error) {}}
}

func (t *Tainter) withheld(w act.Withheld, now clock.Now) {
	if !t.notices.IsDue(w.Rule, now) {
		return
	}
	t.Log.Info("failed taint withheld", "node", w.Node.Name, "rule", w.Rule, "detail", w.Text)
	t.event(w.Node, corev1.EventTypeWarning, TaintWithheld, string(w.Rule)+": "+w.Text)
}

func (t *Tainter) event(node *corev1.Node, kind, reason, message string) {
	t.Events.Eventf(node, nil, kind, reason, "Recheck", "%s", kube.Shorten(message))
}
