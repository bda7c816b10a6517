package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/nodecheck"
	"github.com/imunhatep/kube-node-ready/metrics"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// errRestart starts the round over at once, without a report: the results of the checks do not count any more.
var errRestart = errors.New("the checks start over")

// errRechecked ends the verification: rechecks, and not a release, are to decide about the node.
var errRechecked = errors.New("the node is rechecked")

// rounds makes the rounds of a verification.
type rounds struct {
	cfg       config.Config
	log       *logrus.Entry
	metrics   *metrics.Recorder
	own       *ownNode
	newChecks checklist.List
	notes     chan<- note
	runner    checks.Runner
	wildcards chan string // receives what Wildcards finds, if anything; nil until a round has passed
}

// wildcardFinder is the dns check.
type wildcardFinder interface{ Wildcards(context.Context) string }

// makeRound makes one pass over all checks, on a node without foreign taints.
func (r *rounds) makeRound(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		r.waitForForeignTaints, r.runChecks, r.waitForStartupTaint, r.mayRelease,
	} {
		err := step(ctx)
		switch {
		case r.isRechecked():
			return errRechecked
		case r.own.seen.isReplaced:
			return nodepatch.ErrReplaced
		case err != nil:
			return err
		}
	}
	return nil
}

// isRechecked reports whether rechecks are to decide about the node: it is verified, and only its first read has failed. A
// release would remove the failed taint of a node that the controller has re-tainted, after a single round.
func (r *rounds) isRechecked() bool {
	return r.cfg.RecheckInterval > 0 && r.own.seen.node != nil && r.own.access.isVerified(r.own.seen.node)
}

// waitForForeignTaints waits until no foreign taint of WAIT_FOR_TAINTS is left: results before the CNI is up, for
// example, are meaningless. If the node cannot be read, the checks start and say why.
func (r *rounds) waitForForeignTaints(ctx context.Context) error {
	wasSeen := r.own.access.sawForeignTaint.Swap(false)
	isOutdated := wasSeen && r.own.foreignTaint() == nil // it came and went in the last round, or came with the release
	if isOutdated {
		r.own.seen.at = time.Time{}
		if _, err := r.own.recent(ctx); err != nil {
			r.own.seen.forget()
		}
		if r.own.seen.isReplaced {
			return nodepatch.ErrReplaced
		}
	}
	taint := r.own.foreignTaint()
	if taint == nil {
		return ctx.Err()
	}
	r.own.seen.needsFreshRead = true
	r.log.WithField("taint", taint.String()).Info("waiting for foreign taints")
	r.notes <- note{wait: failure{condition.ForeignTaints, fmt.Errorf("the taint %s is still on the node (WAIT_FOR_TAINTS)", taint)}}
	isGone := func(node *nodepatch.Node) bool { return r.own.access.keys.ForeignTaint(node.Spec.Taints) == nil }
	err := r.own.wait(ctx, time.Time{}, isGone)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		r.log.WithError(err).Debug("cannot read the node while waiting for foreign taints: starting the checks")
		r.own.seen.forget()
		return nil
	}
	r.own.access.sawForeignTaint.Store(false)
	r.notes <- note{}
	r.log.Info("foreign taints removed")
	return nil
}

func (r *rounds) runChecks(ctx context.Context) error {
	isUnknown := r.own.seen.node == nil
	list := r.newChecks(checks.API{Get: r.readNode}, checklist.Options{})
	list = nodecheck.Requirements{List: r.cfg.Require, Client: r.own.access.kube, Node: r.own.recent}.And(list)
	results, err := r.runner.Round(ctx, list)
	if err != nil {
		return err
	}
	if err = judge(failuresOf(results), r.metrics); err == nil && isUnknown {
		err = errRestart // a foreign taint may have been there while the checks ran
	}
	if dns, isDNS := list[0].(wildcardFinder); isDNS && err == nil && r.wildcards == nil {
		r.wildcards = make(chan string, 1)
		go func() { // the release does not wait for it
			if names := dns.Wildcards(ctx); names != "" {
				r.wildcards <- names
			}
		}()
	}
	return err
}

// attempted notes an attempt of a check.
func (r *rounds) attempted(attempt checks.Attempt) {
	if attempt.Err != nil {
		r.own.proven = ""
	}
	r.notes <- note{attempt: &attempt}
}

// readNode is the request of the api check.
func (r *rounds) readNode(ctx context.Context) (checks.Report, error) {
	if report := r.own.seen.reusable; report != nil {
		r.own.seen.reusable = nil
		if r.own.isRecent() {
			return *report, nil
		}
	}
	r.own.access.kube.CloseIdleConnections()
	return r.own.read(ctx)
}

// waitForStartupTaint waits for a startup taint that is added late. After a wait the checks run again.
func (r *rounds) waitForStartupTaint(ctx context.Context) error {
	tainted := func(node *nodepatch.Node) bool {
		_, released := node.Annotations[nodepatch.Annotation]
		return released || len(r.own.access.keys.StartupTaints(node.Spec.Taints)) > 0
	}
	if r.own.seen.startupDue.IsZero() {
		r.own.seen.startupDue = nodepatch.StartupTaintDue(r.own.seen.node, r.cfg.LateTaintWindow, r.own.access.kube.ServerTime())
	}
	if tainted(r.own.seen.node) || !time.Now().Before(r.own.seen.startupDue) {
		return nil
	}
	r.log.WithField("window", r.cfg.LateTaintWindow.String()).Debug("waiting for the startup taint")
	due := fmt.Errorf("all checks pass, waiting for the startup taint until node age %s (LATE_TAINT_WINDOW)", r.cfg.LateTaintWindow)
	r.notes <- note{wait: failure{startupTaint, due}}
	err := r.own.wait(ctx, r.own.seen.startupDue, tainted)
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
	if r.own.seen.needsFreshRead {
		r.own.seen.needsFreshRead, r.own.seen.at = false, time.Time{}
	}
	judged := r.own.seen.node
	node, err := r.own.recent(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the node before its release: %w", err)
	case r.own.seen.isReplaced:
		return nodepatch.ErrReplaced
	case r.own.access.sawForeignTaint.Load() || r.own.foreignTaint() != nil:
		r.log.Info("a foreign taint was added: restarting the checks")
		return errRestart
	case node == judged:
		return nil
	}
	if unmet := r.own.access.unmet(ctx, node); unmet != "" {
		return roundFailure{[]string{checks.NodeName}, []string{unmet + " (lost since the checks ran)"}}
	}
	return nil
}

// waitForRequirements waits until the node meets what REQUIRE demands: no other check can make it do so. Where a read fails, a
// second is all that parts two rounds.
func (r *rounds) waitForRequirements(ctx context.Context) error {
	soonest := time.Now().Add(time.Second)
	_ = r.own.wait(ctx, time.Now().Add(repeatAfter), func(node *nodepatch.Node) bool { return r.own.access.unmet(ctx, node) == "" })
	sleep(ctx, time.Until(soonest))
	return nil
}
