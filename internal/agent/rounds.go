package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/metrics"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// errRestart starts the round over at once, without a report: the results of the checks do not count any more.
var errRestart = errors.New("the checks start over")

// rounds makes the rounds of a verification.
type rounds struct {
	cfg     config.Config
	log     *logrus.Entry
	metrics *metrics.Recorder
	checks  checklist.List
	own     *ownNode
	notes   chan<- note
	runner  checks.Runner
}

// makeRound makes one pass over all checks, on a node without foreign taints.
func (r *rounds) makeRound(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		r.waitForForeignTaints, r.runChecks, r.waitForStartupTaint, r.mayRelease,
	} {
		err := step(ctx)
		switch {
		case r.own.isReplaced:
			return errRestart
		case err != nil || r.isRechecked():
			return err
		}
	}
	return nil
}

// isRechecked reports whether rechecks, and not a release, are to decide about the node: it is verified, and only its first read
// has failed. A release would remove the failed taint of a node that the controller has re-tainted, after a single round.
func (r *rounds) isRechecked() bool {
	return r.cfg.RecheckInterval > 0 && r.own.node != nil && r.own.isVerified(r.own.node)
}

// waitForForeignTaints waits until no foreign taint of WAIT_FOR_TAINTS is left: results before the CNI is up, for
// example, are meaningless. If the node cannot be read, the checks start and say why.
func (r *rounds) waitForForeignTaints(ctx context.Context) error {
	isNew := r.own.sawForeignTaint.Swap(false) && r.own.node != nil && r.own.foreignTaint() == nil
	if isNew { // it came in the last round, or since
		if node, err := r.own.patcher.Get(ctx); err != nil {
			r.own.forget()
		} else {
			r.own.keep(node, time.Now())
		}
	}
	taint := r.own.foreignTaint()
	if taint == nil {
		return ctx.Err()
	}
	r.own.needsFreshRead = true
	r.log.WithField("taint", taint.String()).Info("waiting for foreign taints")
	r.notes <- note{wait: &failure{foreignTaints, fmt.Errorf("the taint %s is still on the node (WAIT_FOR_TAINTS)", taint)}}
	isGone := func(node *nodepatch.Node) bool { return r.own.request.ForeignTaint(node.Spec.Taints) == nil }
	err := r.own.wait(ctx, time.Time{}, isGone)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		r.log.WithError(err).Debug("cannot read the node while waiting for foreign taints: starting the checks")
		r.own.forget()
		return nil
	}
	r.own.sawForeignTaint.Store(false)
	r.notes <- note{}
	r.log.Info("foreign taints removed")
	return nil
}

func (r *rounds) runChecks(ctx context.Context) error {
	isUnknown := r.own.node == nil
	list := r.checks(checks.API{Get: r.readNode}, checklist.Options{})
	list = checklist.Requirements{List: r.cfg.Require, Client: r.own.client, Node: r.own.recent}.And(list)
	results, err := r.runner.Round(ctx, list)
	if err != nil {
		return err
	}
	if err = judge(results, r.metrics); err == nil && isUnknown {
		err = errRestart // a foreign taint may have been there while the checks ran
	}
	return err
}

// Attempted implements checks.Observer.
func (r *rounds) Attempted(attempt checks.Attempt) {
	if attempt.Err != nil {
		r.own.proof = nil
	}
	r.notes <- note{attempt: &attempt}
}

// readNode is the request of the api check.
func (r *rounds) readNode(ctx context.Context) (checks.Report, error) {
	if report := r.own.reusable; report != nil {
		r.own.reusable = nil
		if r.own.isRecent() {
			return *report, nil
		}
	}
	r.own.client.CloseIdleConnections()
	return r.own.read(ctx)
}

// waitForStartupTaint waits for a startup taint that is added late. After a wait the checks run again.
func (r *rounds) waitForStartupTaint(ctx context.Context) error {
	tainted := func(node *nodepatch.Node) bool {
		_, released := node.Annotations[nodepatch.Annotation]
		return released || len(nodepatch.StartupTaints(node, r.own.request)) > 0
	}
	if r.own.startupDue.IsZero() {
		r.own.startupDue = nodepatch.StartupTaintDue(r.own.node, r.own.request, r.cfg.LateTaintWindow, r.own.client.ServerTime())
	}
	if tainted(r.own.node) || !time.Now().Before(r.own.startupDue) {
		return nil
	}
	r.log.WithField("window", r.cfg.LateTaintWindow.String()).Debug("waiting for the startup taint")
	due := fmt.Errorf("all checks pass, waiting for the startup taint until node age %s (LATE_TAINT_WINDOW)", r.cfg.LateTaintWindow)
	r.notes <- note{wait: &failure{startupTaint, due}}
	err := r.own.wait(ctx, r.own.startupDue, tainted)
	r.notes <- note{}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		r.log.WithError(err).Warn("cannot read the node while waiting for the startup taint: restarting the checks")
	default:
		r.log.Debug("the wait for the startup taint is over: restarting the checks, whose results are old")
	}
	return errRestart
}

// mayRelease fails if the node has got a foreign taint or lost a requirement since the checks started. It reads the node again if
// that may have been missed, or if the patch would be built on an old read.
func (r *rounds) mayRelease(ctx context.Context) error {
	if r.own.needsFreshRead {
		r.own.needsFreshRead, r.own.at = false, time.Time{}
	}
	judged := r.own.node
	node, err := r.own.recent(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the node before its release: %w", err)
	case r.own.isReplaced:
		return errRestart
	case r.own.sawForeignTaint.Load() || r.own.foreignTaint() != nil:
		r.log.Info("a foreign taint was added: restarting the checks")
		return errRestart
	case node != judged && r.own.unmet(ctx, node) != "": // the next round says which, after a pause: no storm of rounds
		return errors.New("the node has lost what REQUIRE demands since the checks ran")
	}
	return nil
}

// waitForRequirements waits until the node meets what REQUIRE demands: no other check can make it do so. It returns false if ctx
// has ended. Where a read fails, a second is all that parts two rounds.
func (r *rounds) waitForRequirements(ctx context.Context, limit time.Duration) bool {
	soonest := time.Now().Add(time.Second)
	_ = r.own.wait(ctx, time.Now().Add(limit), func(node *nodepatch.Node) bool { return r.own.unmet(ctx, node) == "" })
	return sleep(ctx, time.Until(soonest))
}
