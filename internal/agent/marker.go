package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// marker shows on the node that it is not verified in time, for those who provision, repair or replace nodes: with the failed
// taint, with a condition, or with both (ON_TIMEOUT). Each verification has its own.
type marker struct {
	v       *verification
	tainted bool   // it has added the failed taint
	reason  string // of the condition as it is on the node, "" if this verification has written none
}

// notChecked is the value of the failed taint where no check has failed.
const notChecked = "unverified"

// isMarker reports whether an agent has added this failed taint, before or after a restart: its value says what failed. That of
// the controller's is the name of a release.
func (v *verification) isMarker(taint nodepatch.Taint) bool {
	return taint.Key == v.cfg.FailedTaintKey && slices.Contains(append(checks.Names(), foreignTaints, notChecked), taint.Value)
}

// uses reports whether the policy is one of ON_TIMEOUT. With rechecks the condition always is.
func (m *marker) uses(policy string) bool {
	return slices.Contains(m.v.cfg.OnTimeout, policy) || (policy == config.OnTimeoutCondition && m.v.cfg.RecheckInterval > 0)
}

// Failed shows which checks fail (none: the patch), on a node that has the startup taint: a node that was never gated is
// never reported. It reports whether it has written anything: never the same twice.
func (m *marker) Failed(ctx context.Context, failed []string, message string) (written bool, err error) {
	if m.uses(config.OnTimeoutTaint) && m.v.timedOut { // a condition of others may have to be corrected before
		written, err = m.addTaint(ctx, failed)
	}
	if m.uses(config.OnTimeoutCondition) {
		wrote, failure := m.setFalse(ctx, failed, message)
		written, err = written || wrote, errors.Join(err, failure)
	}
	return written, err
}

// addTaint adds the failed taint, which keeps its value then. The release removes it.
func (m *marker) addTaint(ctx context.Context, failed []string) (written bool, err error) {
	if m.tainted {
		return false, nil
	}
	value := notChecked
	if len(failed) > 0 {
		value = failed[0]
	}
	m.tainted, err = m.v.patcher.AddFailedTaint(ctx, m.v.request, value)
	return m.tainted, err
}

func (m *marker) setFalse(ctx context.Context, failed []string, message string) (written bool, err error) {
	reason := conditionReason(failed)
	if m.reason == reason {
		return false, nil
	}
	node, err := m.v.patcher.Get(ctx)
	if err != nil || len(nodepatch.StartupTaints(node, m.v.request)) == 0 || node.DeletionTimestamp != nil {
		return false, err
	}
	err = m.setCondition(ctx, node, "False", reason, message)
	return err == nil, err
}

// ShowsFailed reports whether node shows a failure that the release does not remove.
func (m *marker) ShowsFailed(node *nodepatch.Node) bool {
	isFalse := func(condition nodepatch.Condition) bool {
		return condition.Type == m.v.cfg.ConditionType && condition.Status == "False"
	}
	return m.uses(config.OnTimeoutCondition) &&
		((m.reason != "" && m.reason != verdict.Verified) || slices.ContainsFunc(node.Status.Conditions, isFalse))
}

// Verified shows that all checks pass, on the node as last read.
func (m *marker) Verified(ctx context.Context, node *nodepatch.Node) error {
	if !m.uses(config.OnTimeoutCondition) {
		return nil
	}
	return m.setCondition(ctx, node, "True", verdict.Verified, verdict.AllChecksPass)
}

func (m *marker) setCondition(ctx context.Context, node *nodepatch.Node, status, reason, message string) error {
	ctx, cancel := context.WithTimeout(ctx, m.v.cfg.CheckTimeout)
	defer cancel()
	_, err := m.v.api.SetCondition(ctx, node, nodepatch.Condition{
		Type: m.v.cfg.ConditionType, Status: status, Reason: reason, Message: kube.Shorten(message),
	}, m.v.client.ServerTime())
	if err == nil {
		m.reason = reason
	}
	return err
}

// conditionReason returns the reason of the condition for the failed checks, or for what is reported instead of one.
func conditionReason(failed []string) string {
	if slices.Contains(failed, foreignTaints) {
		return verdict.TaintsOfOthers
	}
	return verdict.Reason(failed)
}

// mark shows on the node that it is not verified. It reports whether nothing is left to write.
func (v *verification) mark(ctx context.Context, failed []string, message string) bool {
	// Each policy reads the node and writes once.
	ctx, cancel := context.WithTimeout(ctx, time.Duration(2*len(v.cfg.OnTimeout))*v.cfg.CheckTimeout)
	defer cancel()
	if ctx.Err() != nil {
		return false
	}
	marked, err := v.marker.Failed(ctx, failed, message)
	policy := strings.Join(v.cfg.OnTimeout, ",")
	log := v.log.WithFields(logrus.Fields{"policy": policy, "reason": conditionReason(failed)})
	if marked {
		log.Warn("node marked as failed")
	}
	if err != nil {
		log.WithError(err).Warn("cannot mark the node as failed, will retry (ON_TIMEOUT needs the rights in the chart)")
	}
	return err == nil
}

// hasCondition reports whether the node has the condition. One that was never gated gets none.
func (v *verification) hasCondition() bool {
	ours := func(condition nodepatch.Condition) bool { return condition.Type == v.cfg.ConditionType }
	return slices.ContainsFunc(v.node.Status.Conditions, ours)
}

// markVerified shows on the node that it is verified. It reports whether a retry is of no use.
func (v *verification) markVerified(ctx context.Context) bool {
	err := v.marker.Verified(ctx, v.node)
	if err != nil {
		v.log.WithError(err).Warn("cannot write the condition of the verified node (config.onTimeout=condition gives the rights)")
	}
	return err == nil || (nodepatch.IsFinal(err) && !v.marker.ShowsFailed(v.node))
}

// removeLoneFailedTaint removes the failed taint from a node without the startup taint: such a node was never closed,
// or somebody has opened it.
func (v *verification) removeLoneFailedTaint(ctx context.Context) {
	if v.node == nil || !nodepatch.HasFailedTaint(v.node, v.request) || len(nodepatch.StartupTaints(v.node, v.request)) > 0 {
		return
	}
	if v.cfg.RecheckInterval > 0 && !slices.ContainsFunc(v.node.Spec.Taints, v.isMarker) {
		return // the controller has closed a node that failed its rechecks: only a release opens it
	}
	ctx, cancel := context.WithTimeout(ctx, 2*v.cfg.CheckTimeout)
	defer cancel()
	if err := v.patcher.RemoveFailedTaint(ctx, v.node, v.request); err != nil {
		v.log.WithError(err).Warn("cannot remove the failed taint, will retry after the next round")
		return
	}
	v.log.Info("failed taint removed: the node has no startup taint")
}
