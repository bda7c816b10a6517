package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// outcome is how a verification ends.
type outcome int

const (
	interrupted     outcome = iota // by a signal, or by INITIAL_TIMEOUT with --once
	alreadyVerified                // not by this verification
	released
)

// verification is the way of one node to its release: rounds, until one passes and the patch is applied.
type verification struct {
	*rounds
	report *reporter
}

// verify returns when the node is verified, when ctx ends, or when --once times out.
func (v *verification) verify(ctx context.Context) outcome {
	if v.readFirst(ctx) {
		return alreadyVerified
	}
	ctx, end := v.report.begin(ctx)
	defer end()
	v.report.checked = v.own.node
	v.report.follow(v.own.node)
	for pauses := checks.Exponential(); ; {
		err := v.report.During(ctx, withMarkers, v.makeRound)
		if v.isRechecked() {
			return alreadyVerified
		}
		if err == nil {
			err = v.release(ctx)
		}
		switch {
		case err == nil:
			return released
		case ctx.Err() != nil:
			return interrupted
		case v.own.isReplaced:
			v.log.Warn("node was deleted and created again: restarting the checks")
			v.own.isReplaced, v.own.proof = false, nil
			v.report.restart(v.own.node)
		case !errors.Is(err, errRestart):
			round, _ := errors.AsType[roundFailure](err)
			pause, wait := pauses.NextBackOff(), func(ctx context.Context, d time.Duration) bool {
				return v.runner.Pause(ctx, round.checks, d)
			}
			if slices.Equal(round.checks, []string{checks.NodeName}) {
				pause, wait = repeatAfter, v.waitForRequirements // then all checks run again, and the failure is due for an Event
			}
			v.report.Failed(ctx, v.own.node, err, pause)
			_ = v.report.During(ctx, withMarkers, func(ctx context.Context) error {
				wait(ctx, pause)
				return nil
			})
		}
	}
}

// readFirst reads the node before anything else and reports whether it is verified: a container that was restarted on
// a verified node has nothing to do.
func (v *verification) readFirst(ctx context.Context) bool {
	readCtx, cancel := context.WithTimeout(ctx, v.cfg.CheckTimeout)
	defer cancel()
	start := time.Now()
	report, err := v.own.read(readCtx)
	if err != nil {
		if ctx.Err() == nil {
			v.log.WithError(err).Info("cannot read the node yet: starting with the checks")
		}
		return false
	}
	report.Took = v.own.at.Sub(start)
	v.own.reusable = &report
	return v.own.isVerified(v.own.node)
}

// foundVerified reports a node that needed no release. Its condition may be one that a container has written that has ended
// since.
func (v *verification) foundVerified(ctx context.Context) {
	v.log.Info("node is already verified")
	if v.cfg.RecheckInterval > 0 { // they decide what it shows
		return
	}
	v.metrics.SetStatus(true)
	if v.report.showsFailure(v.own.node) {
		v.report.markVerified(ctx, v.own.node)
	}
}

// release removes the startup taint and adds the label. If the node shows a failure that would stay, the marker takes
// that back first: a stale False could get a healthy node replaced. Once a release has failed, the marker waits for the
// next one to succeed: a condition that is True for a moment in each round would hide the failure.
//
// With CONDITION=always the condition comes first, and there is no release without it: another client waits for True, and a
// verified node has no agent left that could write it. A patch that is refused then leaves it True: the checks pass.
func (v *verification) release(ctx context.Context) error {
	node, request := v.own.node, v.own.request
	v.warnOfSurprises(node)
	if v.cfg.ShowsEachVerdict() {
		if err := v.report.showVerified(ctx, node); err != nil {
			return fmt.Errorf("cannot write the condition %s before the release (CONDITION=always): %w", v.cfg.ConditionType, err)
		}
	} else if !v.report.releaseFailed && v.report.showsFailure(node) {
		v.report.markVerified(ctx, node)
	}
	if err := v.mayRelease(ctx); err != nil { // the condition may have taken long
		return err
	}
	node = v.own.node
	request.AnnotationValue = v.report.annotation(node, time.Now())
	request.Unmet = func(node *nodepatch.Node) string { return v.own.unmet(ctx, node) }
	v.own.proof = &proof{node.UID, request}
	var now *nodepatch.Node
	var removed []nodepatch.Taint
	err := v.report.During(ctx, withoutMarkers, func(ctx context.Context) (err error) {
		now, removed, err = v.own.patcher.Release(ctx, node, request)
		return err
	})
	switch {
	case errors.Is(err, nodepatch.ErrBlocked), errors.Is(err, nodepatch.ErrReplaced):
		v.log.WithError(err).Info("restarting the checks")
		if v.own.forget(); errors.Is(err, nodepatch.ErrReplaced) {
			v.own.seen = seen{isReplaced: true}
		}
		v.own.proof = nil
		return errRestart
	case err != nil:
		v.report.releaseFailed = true
		return err
	}
	v.own.keep(now, time.Now()) // what rechecks begin with
	v.report.Released(ctx, now, removed)
	return nil
}

// warnOfSurprises logs what is unusual about a node that is to be released.
func (v *verification) warnOfSurprises(node *nodepatch.Node) {
	for _, taint := range nodepatch.StartupTaints(node, v.own.request) {
		if taint.Effect != v.cfg.TaintEffect {
			v.log.WithField("taint", taint.String()).WithField("expected", v.cfg.TaintEffect).
				Warn("startup taint has an unexpected effect: removing it anyway")
		}
	}
	if boot, own := node.Status.NodeInfo.BootID, bootID(); boot != "" && own != "" && boot != own {
		v.log.WithField("node_boot_id", boot).
			Warn("the Node's boot id is not this kernel's: two machines have one name, or this pod has a kernel of its own (Kata)")
	}
}

// bootID returns the boot id of this kernel, "" if it cannot be read.
func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}
