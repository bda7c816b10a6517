package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/ownnode"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/internal/verification"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// marker shows on one Node that it is not verified in time, for those who provision, repair or replace nodes: with the failed
// taint, with a condition, or with both (ON_TIMEOUT). With CONDITION=always the condition shows each verdict.
// Each verification has a marker of its own.
type marker struct {
	*common
	uid           types.UID // of the Node that the rounds have read; "" before the first read
	tainted       bool      // it has added the failed taint
	shown         belief    // what the condition shows
	writtenAt     time.Time // when this marker last wrote the condition
	releaseFailed bool      // the next release may be refused too, so True is written only after it
}

// belief is what the condition of the Node shows, as far as the marker knows: the reasons that it has written, zero if it has not
// written it, or hidden.
type belief condition.Reasons

// hidden means that the condition shows no failure, so that the next one is written, whatever was written last.
const hidden = belief(condition.Verified)

func (b belief) isWritten() bool    { return b != 0 }
func (b belief) hidesFailure() bool { return b == hidden }
func (b belief) showsFailure() bool { return b.isWritten() && !b.hidesFailure() }

// maxConflicts is how often a False is retried at once after a conflict.
const maxConflicts = 3

// forget drops what was written to a Node that was deleted.
func (m *marker) forget() { m.uid, m.tainted, m.shown, m.releaseFailed = "", false, 0, false }

// notice checks whether the condition that a round has read hides a failure: another client has removed it, a True whose answer
// was lost has arrived late, or an earlier agent ended between its True and the release. The next failed round then writes False.
func (m *marker) notice(s ownnode.Seen) {
	m.uid = s.UID
	if s.Node == nil || !s.At.After(m.writtenAt) {
		return
	}
	shown := s.Node.Status.Conditions.Of(m.cfg.ConditionType).Status
	_, isLabelled := s.Node.Labels[m.cfg.VerifiedLabel]
	_, hasRecord := s.Node.Annotations[nodepatch.Annotation]
	isLeftover := shown == recheck.True && !isLabelled && !hasRecord
	if isLeftover || m.shown.isWritten() && (shown == "" || shown == recheck.True) {
		m.shown = hidden
	}
}

// expectRefusal notes that a release has failed.
func (m *marker) expectRefusal() { m.releaseFailed = true }

// uses reports whether the policy is one of ON_TIMEOUT. With rechecks and with CONDITION=always the condition is.
func (m *marker) uses(policy string) bool {
	always := m.cfg.RecheckInterval > 0 || m.cfg.ShowsEachVerdict()
	return slices.Contains(m.cfg.OnTimeout, policy) || (policy == config.OnTimeoutCondition && always)
}

// showFailure shows which checks fail (none: the patch), on a node that has the startup taint: a node that was never gated is
// reported with CONDITION=always only. The failed taint waits for INITIAL_TIMEOUT; a condition may have to be corrected before.
// It reports whether it has written anything: never the same twice.
func (m *marker) showFailure(ctx context.Context, found verification.Finding, hasTimedOut bool) (written bool, err error) {
	anotherNodeHelps := !slices.Equal(found.Failed, []string{checks.NodeName})
	isTaintDue := hasTimedOut && !m.tainted && anotherNodeHelps
	if m.uses(config.OnTimeoutTaint) && isTaintDue {
		written, err = m.addTaint(ctx, found.Failed)
	}
	isTrue := m.cfg.ShowsEachVerdict() && m.shown.hidesFailure() && len(found.Failed) == 0 // a refused patch is no verdict
	if m.uses(config.OnTimeoutCondition) && !isTrue {
		wrote, failure := m.setFalse(ctx, found)
		written, err = written || wrote, errors.Join(err, failure)
	}
	return written, err
}

// addTaint adds the failed taint, which keeps its value then. The release removes it.
func (m *marker) addTaint(ctx context.Context, failed []string) (written bool, err error) {
	value := verdict.NotChecked
	if len(failed) > 0 {
		value = failed[0]
	}
	if node, err := m.access.Patcher.Get(ctx); err != nil || m.isNew(node) {
		return false, err
	}
	m.tainted, err = m.access.Patcher.AddFailedTaint(ctx, m.access.Keys, value)
	return m.tainted, err
}

// setFalse reads the Node and writes False. After a conflict it reads and judges the Node again, which may have been released.
func (m *marker) setFalse(ctx context.Context, found verification.Finding) (written bool, err error) {
	reasons := condition.OfChecks(found.Failed)
	if m.shown == belief(reasons) {
		return false, nil
	}
	for tries := 0; tries == 0 || tries <= maxConflicts && apierrors.IsConflict(err); tries++ {
		var node *nodepatch.Node
		if node, err = m.access.Patcher.Get(ctx); err != nil || !m.showsFailuresOf(node) {
			return false, err
		}
		_, err = m.setCondition(ctx, node, recheck.False, reasons, found.Message)
	}
	return err == nil, err
}

// showsFailuresOf reports whether the condition of node may say that checks fail.
func (m *marker) showsFailuresOf(node *nodepatch.Node) bool {
	isGated := len(m.access.Keys.StartupTaints(node.Spec.Taints)) > 0 || record.IsOpened(node.Annotations[nodepatch.Annotation])
	return node.DeletionTimestamp == nil && !m.isNew(node) && (isGated || m.cfg.ShowsEachVerdict() && !m.access.IsVerified(node))
}

// isNew reports whether node has replaced the one that the rounds have read, and is younger than INITIAL_TIMEOUT.
func (m *marker) isNew(node *nodepatch.Node) bool {
	isAnother := m.uid != "" && m.uid != node.UID
	return isAnother && m.access.Kube.ServerTime().Sub(node.CreationTimestamp.Time) < m.cfg.InitialTimeout
}

// showsFailure reports whether node shows a failure that the release does not remove.
func (m *marker) showsFailure(node *nodepatch.Node) bool {
	isFalse := m.shown.showsFailure() || node.Status.Conditions.Of(m.cfg.ConditionType).Status == recheck.False
	return isFalse && m.uses(config.OnTimeoutCondition)
}

// beforeRelease writes True first if the node shows a failure that would stay: a stale False could get a healthy node replaced.
// Once a release has failed, it waits until one has succeeded: a condition that is True for a moment in each round would hide the
// failure.
//
// With CONDITION=always the condition comes first, and there is no release without it: another client waits for True, and a
// verified node has no agent left that could write it. A patch that is refused then leaves it True: the checks pass.
func (m *marker) beforeRelease(ctx context.Context, node *nodepatch.Node) error {
	if m.cfg.ShowsEachVerdict() {
		if _, err := m.showVerified(ctx, node); err != nil {
			return fmt.Errorf("cannot write the condition %s before the release (CONDITION=always): %w", m.cfg.ConditionType, err)
		}
	} else if !m.releaseFailed && m.showsFailure(node) {
		m.tryVerified(ctx, node)
	}
	return nil
}

// afterRelease shows on the released node that it is verified, and returns the node as it is then. A node that was never gated
// gets no condition.
func (m *marker) afterRelease(ctx context.Context, node *nodepatch.Node, removed []nodepatch.Taint) *nodepatch.Node {
	isStartup := func(taint nodepatch.Taint) bool { return !m.access.Keys.IsFailed(taint) }
	hasCondition := node.Status.Conditions.Of(m.cfg.ConditionType).Type != ""
	wasGated := hasCondition || slices.ContainsFunc(removed, isStartup)
	isShown := node.Status.Conditions.Of(m.cfg.ConditionType).Status == recheck.True
	if isShown || !wasGated {
		return node
	}
	for range 3 {
		now, isDone := m.tryVerified(ctx, node)
		if isDone || !round.Sleep(ctx, time.Second) {
			return now
		}
	}
	return node
}

// tryVerified shows on the node that it is verified, and returns the node as it is then. It reports whether a retry is of no use.
func (m *marker) tryVerified(ctx context.Context, node *nodepatch.Node) (now *nodepatch.Node, isDone bool) {
	now, err := m.showVerified(ctx, node)
	if err != nil {
		m.log.WithError(err).Warn("cannot write the condition of the verified node (CONDITION needs rights that the chart grants)")
		return node, nodepatch.IsFinal(err) && !m.showsFailure(node)
	}
	return now, true
}

// showVerified shows that all checks pass, on the node as last read. It returns the node as it is then.
func (m *marker) showVerified(ctx context.Context, node *nodepatch.Node) (*nodepatch.Node, error) {
	if !m.uses(config.OnTimeoutCondition) {
		return node, nil
	}
	return m.setCondition(ctx, node, recheck.True, condition.Verified, verdict.AllChecksPass)
}

// setCondition writes the condition, and returns the Node as it is then. A False requires that the Node has not changed since it
// was read: if it arrives late, after its answer was given up, it must not overwrite the True of the release.
func (m *marker) setCondition(ctx context.Context, node *nodepatch.Node, status string, reasons condition.Reasons,
	message string) (*nodepatch.Node, error) {
	wanted := nodepatch.Condition{Status: status, Reason: reasons.String(), Message: verdict.Shorten(message)}
	client := m.access.Client
	client.IfUnchanged = status == recheck.False
	now, err := m.access.SetCondition(ctx, client, node, wanted)
	if err == nil {
		m.shown, m.writtenAt = belief(reasons), time.Now()
	}
	return now, err
}

// removeStrayFailedTaint removes the failed taint from a node without the startup taint (nil: unknown): nobody has
// re-tainted such a node, or somebody has released it by hand.
func (m *marker) removeStrayFailedTaint(ctx context.Context, node *nodepatch.Node) {
	keys := m.access.Keys
	if node == nil || !keys.HasFailedTaint(node.Spec.Taints) || len(keys.StartupTaints(node.Spec.Taints)) > 0 {
		return
	}
	if m.cfg.RecheckInterval > 0 && !slices.ContainsFunc(node.Spec.Taints, m.access.IsAgents) {
		return // the controller has re-tainted a node that failed its rechecks: only a release removes that
	}
	ctx, cancel := context.WithTimeout(ctx, 2*m.cfg.CheckTimeout)
	defer cancel()
	if err := m.access.Patcher.RemoveFailedTaint(ctx, node, keys); err != nil {
		m.log.WithError(err).Warn("cannot remove the failed taint, will retry after the next round")
		return
	}
	m.tainted = false
	m.log.Info("failed taint removed: the node has no startup taint")
}
