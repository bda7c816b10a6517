package agent

import (
	"context"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// marker shows on the node that it is not verified in time, for those who provision, repair or replace nodes:
// ON_TIMEOUT. A verification has one of its own.
type marker interface {
	// Failed shows which checks fail (none: the patch). It reports whether it has written anything: never the same twice.
	Failed(ctx context.Context, failed []string, message string) (written bool, err error)
	// Verified shows that all checks pass, on the node as last read (nil: it is read now).
	Verified(ctx context.Context, node *nodepatch.Node) (written bool, err error)
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

func (noMarker) Failed(context.Context, []string, string) (bool, error)  { return false, nil }
func (noMarker) Verified(context.Context, *nodepatch.Node) (bool, error) { return false, nil }

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

func (*taintMarker) Verified(context.Context, *nodepatch.Node) (bool, error) { return false, nil }

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
	if err != nil {
		return false, err
	}
	if m.reason == "" && !nodepatch.IsGated(node, m.request) {
		return false, nil // never report a node that was not gated
	}
	return m.set(ctx, node, "False", reason, message)
}

func (m *conditionMarker) Verified(ctx context.Context, node *nodepatch.Node) (written bool, err error) {
	if node == nil {
		if node, err = m.patcher.Get(ctx); err != nil {
			return false, err
		}
	}
	written, err = m.set(ctx, node, "True", conditionVerified, allChecksPass)
	if apierrors.IsForbidden(err) { // no reason to hold the node back
		m.log.WithError(err).Warn("condition refused: apply the chart with config.onTimeout=condition")
		return false, nil
	}
	return written, err
}

func (m *conditionMarker) set(ctx context.Context, node *nodepatch.Node, status, reason, message string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.CheckTimeout)
	defer cancel()
	err := m.api.SetCondition(ctx, node, nodepatch.Condition{
		Type: m.cfg.ConditionType, Status: status, Reason: reason, Message: kube.Shorten(message),
	})
	if err != nil {
		return false, err
	}
	m.reason = reason
	return true, nil
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

// mark shows on the node that it is not verified. What cannot be written is tried again after the next round.
func (v *verification) mark(ctx context.Context, failed []string, message string) {
	ctx, cancel := context.WithTimeout(ctx, 2*v.cfg.CheckTimeout)
	defer cancel()
	if ctx.Err() != nil {
		return
	}
	marked, err := v.marker.Failed(ctx, failed, message)
	log := v.log.WithFields(logrus.Fields{"policy": v.cfg.OnTimeout, "reason": conditionReason(failed)})
	switch {
	case err != nil:
		log.WithError(err).
			Warn("cannot mark the node as failed, will retry after the next round (ON_TIMEOUT needs the rights in the chart)")
	case marked:
		log.Warn("node marked as failed")
	}
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
