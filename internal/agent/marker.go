package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// marker shows on the node that it is not verified in time, for those who provision, repair or replace nodes.
// A verification has its own, one for each policy of ON_TIMEOUT.
type marker interface {
	// Failed shows which checks fail (none: the patch), on a node that has the startup taint: a node that was never gated is
	// never reported. It reports whether it has written anything: never the same twice.
	Failed(ctx context.Context, failed []string, message string) (written bool, err error)
	// ShowsFailed reports whether node shows a failure that the release does not remove.
	ShowsFailed(node *nodepatch.Node) bool
	// Verified shows that all checks pass, on the node as last read.
	Verified(ctx context.Context, node *nodepatch.Node) error
}

// markers are those of ON_TIMEOUT, in use side by side. There are none with keep: the startup taint says enough.
type markers []marker

func newMarkers(v *verification) (list markers) {
	if slices.Contains(v.cfg.OnTimeout, config.OnTimeoutTaint) {
		list = append(list, &taintMarker{verification: v})
	}
	if slices.Contains(v.cfg.OnTimeout, config.OnTimeoutCondition) {
		list = append(list, &conditionMarker{verification: v})
	}
	return list
}

// Failed gives each marker its turn, also after another one has failed.
func (list markers) Failed(ctx context.Context, failed []string, message string) (written bool, err error) {
	var errs []error
	for _, m := range list {
		wrote, err := m.Failed(ctx, failed, message)
		written, errs = written || wrote, append(errs, err)
	}
	return written, errors.Join(errs...)
}

func (list markers) ShowsFailed(node *nodepatch.Node) bool {
	return slices.ContainsFunc(list, func(m marker) bool { return m.ShowsFailed(node) })
}

func (list markers) Verified(ctx context.Context, node *nodepatch.Node) error {
	var errs []error
	for _, m := range list {
		errs = append(errs, m.Verified(ctx, node))
	}
	return errors.Join(errs...)
}

// taintMarker adds the failed taint. The release removes it.
type taintMarker struct {
	*verification
	marked bool
}

func (m *taintMarker) Failed(ctx context.Context, failed []string, _ string) (bool, error) {
	if m.marked || !m.timedOut {
		return false, nil // the taint keeps its value; what the condition takes back before the timeout is not its matter
	}
	value := "unverified"
	if len(failed) > 0 {
		value = failed[0]
	}
	var err error
	m.marked, err = m.patcher.AddFailedTaint(ctx, m.request, value)
	return m.marked, err
}

func (*taintMarker) ShowsFailed(*nodepatch.Node) bool                { return false }
func (*taintMarker) Verified(context.Context, *nodepatch.Node) error { return nil }

// conditionMarker writes a condition of the node.
type conditionMarker struct {
	*verification
	reason string // as it is on the node, "" if this verification has written none
}

func (m *conditionMarker) Failed(ctx context.Context, failed []string, message string) (bool, error) {
	reason := conditionReason(failed)
	if m.reason == reason {
		return false, nil
	}
	node, err := m.patcher.Get(ctx)
	if err != nil || len(nodepatch.StartupTaints(node, m.request)) == 0 || node.DeletionTimestamp != nil {
		return false, err
	}
	err = m.set(ctx, node, "False", reason, message)
	return err == nil, err
}

func (m *conditionMarker) ShowsFailed(node *nodepatch.Node) bool {
	isFalse := func(condition nodepatch.Condition) bool {
		return condition.Type == m.cfg.ConditionType && condition.Status == "False"
	}
	return (m.reason != "" && m.reason != verdict.Verified) || slices.ContainsFunc(node.Status.Conditions, isFalse)
}

func (m *conditionMarker) Verified(ctx context.Context, node *nodepatch.Node) error {
	return m.set(ctx, node, "True", verdict.Verified, allChecksPass)
}

func (m *conditionMarker) set(ctx context.Context, node *nodepatch.Node, status, reason, message string) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.CheckTimeout)
	defer cancel()
	err := m.api.SetCondition(ctx, node, nodepatch.Condition{
		Type: m.cfg.ConditionType, Status: status, Reason: reason, Message: kube.Shorten(message),
	}, m.client.ServerTime())
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
	if len(v.markers) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(2*len(v.markers))*v.cfg.CheckTimeout) // each reads and writes
	defer cancel()
	if ctx.Err() != nil {
		return false
	}
	marked, err := v.markers.Failed(ctx, failed, message)
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

// markVerified shows on the node that it is verified. It reports whether a retry is of no use.
func (v *verification) markVerified(ctx context.Context) bool {
	err := v.markers.Verified(ctx, v.node)
	if err != nil {
		v.log.WithError(err).Warn("cannot write the condition of the verified node (config.onTimeout=condition gives the rights)")
	}
	return err == nil || (nodepatch.IsFinal(err) && !v.markers.ShowsFailed(v.node))
}

// removeLoneFailedTaint removes the failed taint from a node without the startup taint: such a node was never closed,
// or somebody has opened it.
func (v *verification) removeLoneFailedTaint(ctx context.Context) {
	if v.node == nil || !nodepatch.HasFailedTaint(v.node, v.request) || len(nodepatch.StartupTaints(v.node, v.request)) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*v.cfg.CheckTimeout)
	defer cancel()
	if err := v.patcher.RemoveFailedTaint(ctx, v.node, v.request); err != nil {
		v.log.WithError(err).Warn("cannot remove the failed taint, will retry after the next round")
		return
	}
	v.log.Info("failed taint removed: the node has no startup taint")
}
