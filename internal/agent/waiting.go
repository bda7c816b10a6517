package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// waitForForeignTaints waits until no foreign taint of WAIT_FOR_TAINTS is left: results before the CNI is up, for
// example, are meaningless. If the node cannot be read, the checks start and say why.
func (v *verification) waitForForeignTaints(ctx context.Context) error {
	taint := v.foreignTaint(v.node)
	if taint == nil {
		return ctx.Err()
	}
	v.foreignSeen = true
	v.log.WithField("taint", taint.String()).Info("waiting for foreign taints")
	v.lastFailure = &failure{foreignTaints, fmt.Errorf("%s is still on (WAIT_FOR_TAINTS)", taint)}
	noLimit := time.Time{}
	err := v.waitForNode(ctx, noLimit, func(node *nodepatch.Node) bool { return v.foreignTaint(node) == nil })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		v.log.WithError(err).Debug("cannot read the node while waiting for foreign taints: starting the checks")
		v.node, v.reusable = nil, nil
		return nil
	}
	v.lastFailure = nil
	v.log.Info("foreign taints removed")
	return nil
}

// foreignTaint returns a taint of node that must be gone before the checks start, or nil. A prefix may cover the
// agent's own taints too, which nobody else removes.
func (v *verification) foreignTaint(node *nodepatch.Node) *nodepatch.Taint {
	if node == nil {
		return nil
	}
	i := slices.IndexFunc(node.Spec.Taints, v.request.Blocks)
	if i < 0 {
		return nil
	}
	return &node.Spec.Taints[i]
}

// waitForStartupTaint waits for a startup taint that is added late. After a wait the checks run again.
func (v *verification) waitForStartupTaint(ctx context.Context) error {
	tainted := func(node *nodepatch.Node) bool {
		_, released := node.Annotations[annotation]
		return released || len(nodepatch.StartupTaints(node, v.request)) > 0
	}
	if v.startupDue.IsZero() {
		v.startupDue = nodepatch.StartupTaintDue(v.node, v.request, v.cfg.LateTaintWindow, v.client.ServerTime())
	}
	if tainted(v.node) || !time.Now().Before(v.startupDue) {
		return nil
	}
	v.log.WithField("window", v.cfg.LateTaintWindow.String()).Debug("waiting for the startup taint")
	young := fmt.Errorf("all checks pass, and the node is not yet %s old (LATE_TAINT_WINDOW)", v.cfg.LateTaintWindow)
	v.lastFailure = &failure{startupTaint, young}
	err := v.waitForNode(ctx, v.startupDue, tainted)
	v.lastFailure = nil
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

// waitForNode waits until the node is done, or until the deadline.
func (v *verification) waitForNode(ctx context.Context, deadline time.Time, done func(*nodepatch.Node) bool) error {
	return v.await(ctx, func(ctx context.Context) error {
		node, err := v.patcher.Wait(ctx, v.node, deadline, done)
		if err == nil {
			v.node, v.readAt = node, time.Time{}
		}
		return err
	})
}

// lookForForeignTaint fails with errRestart if the node has got a foreign taint since the checks started. Before the
// release it reads the node again if that may have been missed, or if the patch would be built on an old read.
func (v *verification) lookForForeignTaint(ctx context.Context, beforeRelease bool) error {
	if beforeRelease && (v.foreignSeen || time.Since(v.readAt) > v.cfg.CheckTimeout) {
		err := v.await(ctx, func(ctx context.Context) error {
			node, err := v.patcher.Get(ctx)
			if err == nil {
				v.node, v.readAt = node, time.Now()
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("cannot read the node before its release: %w", err)
		}
	}
	if taint := v.foreignTaint(v.node); taint != nil {
		v.log.WithField("taint", taint.String()).Info("foreign taint added: restarting the checks")
		return errRestart
	}
	return nil
}
