package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/nodecheck"
	"github.com/imunhatep/kube-node-ready/internal/ownnode"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/internal/verification"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// errRestart starts the round over at once, without a report: the results of the checks do not count any more.
var errRestart = errors.New("the checks start over")

// errRechecked ends the verification: rechecks, and not a release, are to decide about the node.
var errRechecked = errors.New("the node is rechecked")

// rounds makes the rounds of a verification.
type rounds struct {
	*common
	own       *ownnode.Node
	newChecks checklist.List
	happened  chan<- verification.Event
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
		err := r.own.OrReplaced(step(ctx))
		switch {
		case r.isRechecked():
			return errRechecked
		case err != nil:
			return err
		}
	}
	return nil
}

// isRechecked reports whether rechecks are to decide about the node: it is verified, and only its first read has failed. A
// release would remove the failed taint of a node that the controller has re-tainted, after a single round.
func (r *rounds) isRechecked() bool {
	return r.cfg.RecheckInterval > 0 && r.own.Last() != nil && r.own.IsVerified(r.own.Last())
}

// waitForForeignTaints waits until no foreign taint of WAIT_FOR_TAINTS is left: results before the CNI is up, for
// example, are meaningless. If the node cannot be read, the checks start and say why.
func (r *rounds) waitForForeignTaints(ctx context.Context) error {
	wasSeen := r.own.ForgetForeignTaint()
	isOutdated := wasSeen && r.own.ForeignTaint() == nil // it came and went in the last round, or came with the release
	if isOutdated {
		if err := r.own.Refresh(ctx); err != nil {
			return err
		}
	}
	taint := r.own.ForeignTaint()
	if taint == nil {
		return ctx.Err()
	}
	r.own.RequireFreshRead()
	r.log.WithField("taint", taint.String()).Info("waiting for foreign taints")
	r.waits(condition.ForeignTaints, fmt.Errorf("the taint %s is still on the node (WAIT_FOR_TAINTS)", taint))
	isGone := func(node *nodepatch.Node) bool { return r.own.Keys.ForeignTaint(node.Spec.Taints) == nil }
	err := r.own.Wait(ctx, time.Time{}, isGone)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil: // what the node waited for stays its failure until an attempt fails
		r.log.WithError(err).Debug("cannot read the node while waiting for foreign taints: starting the checks")
		r.own.Forget()
		return nil
	}
	r.own.ForgetForeignTaint()
	r.happened <- verification.Waits{}
	r.log.Info("foreign taints removed")
	return nil
}

func (r *rounds) runChecks(ctx context.Context) error {
	isUnknown := r.own.Last() == nil
	list := r.newChecks(checks.API{Get: r.own.ReadForCheck}, checklist.Options{})
	list = nodecheck.Requirements{List: r.cfg.Require, Client: r.own.Kube, Node: r.own.Recent}.And(list)
	results, err := r.runner.Round(ctx, list)
	if err != nil {
		return err
	}
	if err = r.countFailures(round.FailureOf(results)); err == nil && isUnknown {
		err = errRestart // a foreign taint may have been there while the checks ran
	}
	if err == nil && r.wildcards == nil {
		r.lookForWildcards(ctx, list)
	}
	return err
}

// lookForWildcards lets the dns check look for wildcards. The release does not wait for it.
func (r *rounds) lookForWildcards(ctx context.Context, list []checks.Check) {
	r.wildcards = make(chan string, 1)
	for _, check := range list {
		if dns, isDNS := check.(wildcardFinder); isDNS {
			go func() {
				if names := dns.Wildcards(ctx); names != "" {
					r.wildcards <- names
				}
			}()
		}
	}
}

// waits sends what the node waits for.
func (r *rounds) waits(subject string, why error) {
	r.happened <- verification.Waits{Failure: verification.FailureOf(subject, why), UID: r.own.Seen().UID}
}

// attempted sends an attempt of a check.
func (r *rounds) attempted(attempt checks.Attempt) {
	r.happened <- verification.Attempted{Attempt: attempt}
}

// waitForStartupTaint waits for a startup taint that is added late. After a wait the checks run again.
func (r *rounds) waitForStartupTaint(ctx context.Context) error {
	tainted := func(node *nodepatch.Node) bool {
		_, released := node.Annotations[nodepatch.Annotation]
		return released || len(r.own.Keys.StartupTaints(node.Spec.Taints)) > 0
	}
	until := r.own.StartupTaintDue()
	if tainted(r.own.Last()) || !time.Now().Before(until) {
		return nil
	}
	r.log.WithField("window", r.cfg.LateTaintWindow.String()).Debug("waiting for the startup taint")
	due := fmt.Errorf("all checks pass, waiting for the startup taint until node age %s (LATE_TAINT_WINDOW)", r.cfg.LateTaintWindow)
	r.waits(verification.LateTaint, due)
	err := r.own.Wait(ctx, until, tainted)
	r.happened <- verification.Waits{}
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
	judged := r.own.Last()
	node, err := r.own.BeforeRelease(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the node before its release: %w", err)
	case r.own.SawForeignTaint() || r.own.ForeignTaint() != nil:
		r.log.Info("a foreign taint was added: restarting the checks")
		return errRestart
	case node == judged:
		return nil
	}
	if unmet := r.own.Unmet(ctx, node); unmet != "" {
		return round.Failure{Checks: []string{checks.NodeName}, Reasons: []string{unmet + " (lost since the checks ran)"}}
	}
	return nil
}

// pause waits before the next round, or until a failed check sees a sign of recovery.
func (r *rounds) pause(ctx context.Context, failed []string, pause time.Duration) {
	r.runner.Pause(ctx, failed, pause)
}

// waitForRequirements waits until the node meets what REQUIRE demands: no other check can make it do so. Where a read fails, a
// second is all that parts two rounds.
func (r *rounds) waitForRequirements(ctx context.Context) error {
	soonest := time.Now().Add(time.Second)
	_ = r.own.Wait(ctx, time.Now().Add(repeatAfter), func(node *nodepatch.Node) bool { return r.own.Unmet(ctx, node) == "" })
	round.Sleep(ctx, time.Until(soonest))
	return nil
}
