package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// waitForForeignTaints waits until no foreign taint of WAIT_FOR_TAINTS is left: results before the CNI is up, for
// example, are meaningless. If the node cannot be read, the checks start and say why.
func (v *verification) waitForForeignTaints(ctx context.Context) error {
	v.seen.beside = false
	taint := v.foreignTaint()
	if taint == nil {
		return ctx.Err()
	}
	v.seen.foreign = true
	v.log.WithField("taint", taint.String()).Info("waiting for foreign taints")
	v.report.notes <- note{wait: &failure{foreignTaints, fmt.Errorf("the taint %s is still on the node (WAIT_FOR_TAINTS)", taint)}}
	err := v.wait(ctx, time.Time{}, func(node *nodepatch.Node) bool { return v.request.ForeignTaint(node.Spec.Taints) == nil })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		v.log.WithError(err).Debug("cannot read the node while waiting for foreign taints: starting the checks")
		v.seen.forget()
		return nil
	}
	v.report.notes <- note{}
	v.log.Info("foreign taints removed")
	return nil
}

// foreignTaint returns a taint that must be gone before the checks start, or nil. A prefix may cover the agent's own taints too,
// which nobody else removes.
func (v *verification) foreignTaint() *nodepatch.Taint {
	if v.seen.node == nil {
		return nil
	}
	return v.request.ForeignTaint(v.seen.node.Spec.Taints)
}

// waitForStartupTaint waits for a startup taint that is added late. After a wait the checks run again.
func (v *verification) waitForStartupTaint(ctx context.Context) error {
	tainted := func(node *nodepatch.Node) bool {
		_, released := node.Annotations[nodepatch.Annotation]
		return released || len(nodepatch.StartupTaints(node, v.request)) > 0
	}
	if v.seen.startupDue.IsZero() {
		v.seen.startupDue = nodepatch.StartupTaintDue(v.seen.node, v.request, v.cfg.LateTaintWindow, v.client.ServerTime())
	}
	if tainted(v.seen.node) || !time.Now().Before(v.seen.startupDue) {
		return nil
	}
	v.log.WithField("window", v.cfg.LateTaintWindow.String()).Debug("waiting for the startup taint")
	due := fmt.Errorf("all checks pass, waiting for the startup taint until node age %s (LATE_TAINT_WINDOW)", v.cfg.LateTaintWindow)
	v.report.notes <- note{wait: &failure{startupTaint, due}}
	err := v.wait(ctx, v.seen.startupDue, tainted)
	v.report.notes <- note{}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		v.log.WithError(err).Warn("cannot read the node while waiting for the startup taint: restarting the checks")
	default:
		v.log.Debug("the wait for the startup taint is over: restarting the checks, whose results are old")
	}
	return errRestart
}

// waitForRequirements waits until the node meets what REQUIRE demands: no other check can make it do so. It returns false if ctx
// has ended. Where a read fails, a second is all that parts two rounds.
func (v *verification) waitForRequirements(ctx context.Context, limit time.Duration) bool {
	soonest := time.Now().Add(time.Second)
	_ = v.wait(ctx, time.Now().Add(limit), func(node *nodepatch.Node) bool { return v.unmet(ctx, node) == "" })
	return sleep(ctx, time.Until(soonest))
}

// unmet says what node does not show although REQUIRE demands it, or "".
func (v *verification) unmet(ctx context.Context, node *nodepatch.Node) string {
	return checklist.Requirements{List: v.cfg.Require, Client: v.client, Timeout: v.cfg.CheckTimeout}.Unmet(ctx, node)
}

// isRecent reports whether the Node is judged and released as it was read: CHECK_TIMEOUT may be minutes.
func (v *verification) isRecent() bool {
	return time.Since(v.seen.at) < min(3*time.Second, v.cfg.CheckTimeout)
}

// recentNode returns the Node, and reads it again if that was long ago.
func (v *verification) recentNode(ctx context.Context) (*nodepatch.Node, error) {
	if !v.isRecent() {
		node, err := v.patcher.Get(ctx)
		if err != nil {
			return nil, err
		}
		v.keep(node)
	}
	return v.seen.node, nil
}

// wait reads the node until it is done, or until the deadline (zero: no limit).
func (v *verification) wait(ctx context.Context, deadline time.Time, done func(*nodepatch.Node) bool) error {
	node, err := v.patcher.Wait(ctx, v.seen.node, deadline, done)
	switch {
	case err == nil:
		v.seen.keep(node, time.Time{})
	case errors.Is(err, nodepatch.ErrReplaced):
		v.seen = seen{replaced: true}
	}
	return err
}

// mayRelease fails if the node has got a foreign taint or lost a requirement since the checks started. It reads the node again if
// that may have been missed, or if the patch would be built on an old read.
func (v *verification) mayRelease(ctx context.Context) error {
	if v.seen.foreign {
		v.seen.foreign, v.seen.at = false, time.Time{}
	}
	judged := v.seen.node
	node, err := v.recentNode(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the node before its release: %w", err)
	case v.seen.replaced:
		return errRestart
	case v.seen.beside || v.foreignTaint() != nil:
		v.log.Info("a foreign taint was added: restarting the checks")
		return errRestart
	case node != judged && v.unmet(ctx, node) != "": // the next round says which, after a pause: no storm of rounds
		return errors.New("the node has lost what REQUIRE demands since the checks ran")
	}
	return nil
}
