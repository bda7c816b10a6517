package agent

import (
	"context"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// marker shows on the node that it is not verified in time, for those who provision, repair or replace nodes:
// ON_TIMEOUT. A verification has one of its own.
type marker interface {
	// Failed shows which checks fail (none: the patch), on a node that has the startup taint: a node that was never gated is
	// never reported. It reports whether it has written anything: never the same twice.
	Failed(ctx context.Context, failed []string, message string) (written bool, err error)
	// ShowsFailed reports whether node shows a failure that the release does not remove.
	ShowsFailed(node *nodepatch.Node) bool
	// Verified shows that all checks pass, on the node as last read.
	Verified(ctx context.Context, node *nodepatch.Node) error
}

func newMarker(a *Agent, request nodepatch.Request) marker {
	switch a.cfg.OnTimeout {
	case config.OnTimeoutTaint:
		return &taintMarker{a.patcher, request, false}
	case config.OnTimeoutCondition:
		return &conditionMarker{Agent: a, request: request}
	default:
		return noMarker{}
	}
}

// noMarker is ON_TIMEOUT=keep: the startup taint says enough.
type noMarker struct{}

func (noMarker) Failed(context.Context, []string, string) (bool, error) { return false, nil }
func (noMarker) ShowsFailed(*nodepatch.Node) bool                       { return false }
func (noMarker) Verified(context.Context, *nodepatch.Node) error        { return nil }

// taintMarker adds the failed taint. The release removes it.
type taintMarker struct {
	patcher *nodepatch.Patcher
	request nodepatch.Request
	marked  bool
}

func (m *taintMarker) Failed(ctx context.Context, failed []string, _ string) (bool, error) {
	if m.marked {
		return false, nil // the taint keeps its value
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
	*Agent
	request nodepatch.Request
	reason  string // as it is on the node, "" if this verification has written none
}

const conditionVerified = "Verified"

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
	return (m.reason != "" && m.reason != conditionVerified) || slices.ContainsFunc(node.Status.Conditions, isFalse)
}

func (m *conditionMarker) Verified(ctx context.Context, node *nodepatch.Node) error {
	return m.set(ctx, node, "True", conditionVerified, allChecksPass)
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

// conditionReason names the failed checks in their order: DNSFailed, or DNSFailed,ServiceFailed.
func conditionReason(failed []string) string {
	if slices.Contains(failed, foreignTaints) {
		return "TaintsOfOthers"
	}
	var reasons []string
	for _, check := range checks.Names() {
		if slices.Contains(failed, check) {
			reasons = append(reasons, reasonOf(check))
		}
	}
	if len(reasons) == 0 {
		return "NotVerified"
	}
	return strings.Join(reasons, ",")
}

// reasonOf returns the reason of a condition for a failed check, a closed set.
func reasonOf(check string) string {
	switch check {
	case checks.DNSName, checks.APIName:
		return strings.ToUpper(check) + "Failed"
	default:
		return strings.ToUpper(check[:1]) + check[1:] + "Failed"
	}
}

// mark shows on the node that it is not verified. It reports whether nothing is left to write.
func (v *verification) mark(ctx context.Context, failed []string, message string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*v.cfg.CheckTimeout)
	defer cancel()
	if ctx.Err() != nil {
		return false
	}
	marked, err := v.marker.Failed(ctx, failed, message)
	log := v.log.WithFields(logrus.Fields{"policy": v.cfg.OnTimeout, "reason": conditionReason(failed)})
	switch {
	case err != nil:
		log.WithError(err).Warn("cannot mark the node as failed, will retry (ON_TIMEOUT needs the rights in the chart)")
	case marked:
		log.Warn("node marked as failed")
	}
	return err == nil
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
	ctx, cancel := context.WithTimeout(ctx, 2*v.cfg.CheckTimeout)
	defer cancel()
	if err := v.patcher.RemoveFailedTaint(ctx, v.node, v.request); err != nil {
		v.log.WithError(err).Warn("cannot remove the failed taint, will retry after the next round")
		return
	}
	v.log.Info("failed taint removed: the node has no startup taint")
}
