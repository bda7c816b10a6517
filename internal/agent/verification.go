package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// errRestart starts the round over at once, without a report: the results of the checks do not count any more.
var errRestart = errors.New("the checks start over")

// outcome is how a verification ends.
type outcome int

const (
	interrupted     outcome = iota // by a signal, or by INITIAL_TIMEOUT with --once
	alreadyVerified                // not by this verification
	released
)

// proof is what this process has proven of a Node. It survives into the next verification, until a check fails.
type proof struct {
	uid     types.UID
	request nodepatch.Request
}

// seen is one Node as the agent has seen it. A Node of another uid begins empty.
type seen struct {
	uid  types.UID       // "" before the first read
	node *nodepatch.Node // as last read, nil before, and after forget
	at   time.Time       // when; zero for a read from the API server's cache, on which no patch is built
	// reusable is the report of a read just before the checks. The api check would send the same request, and reuses it:
	// that saves one of five requests on every new node. nil once it is used.
	reusable   *checks.Report
	startupDue time.Time // until when a late startup taint may be added; zero before it is known
	// foreign means that a foreign taint was seen: the release starts from a fresh read.
	foreign bool
	// beside means that a foreign taint was read since the round has begun, gone or not: what passes beside it proves nothing.
	beside bool
	// replaced means that the Node was deleted and created again: nothing that was verified before counts.
	replaced bool
}

// keep takes a Node as it was read at a time, zero from the cache.
func (s *seen) keep(node *nodepatch.Node, at time.Time) {
	if s.uid != "" && s.uid != node.UID {
		*s = seen{replaced: true}
	}
	s.uid, s.node, s.at = node.UID, node, at
}

// forget drops what was read, because it is old. Another Node that is read next is known by its uid.
func (s *seen) forget() { s.node, s.at, s.reusable, s.foreign = nil, time.Time{}, nil, true }

// verification is the way of one node to its release: rounds, until one passes and the patch is applied. A step, which the
// reporter runs beside its own goroutine, owns the verification's fields while it runs.
type verification struct {
	*deps
	seen          seen
	report        *reporter
	runner        checks.Runner
	proof         *proof
	releaseFailed bool
}

func newVerification(d *deps, proven *proof) *verification {
	v := &verification{deps: d, report: newReporter(d), proof: proven}
	v.runner = checklist.Runner(d.cfg, v)
	return v
}

// verify returns when the node is verified, when ctx ends, or when --once times out.
func (v *verification) verify(ctx context.Context) outcome {
	if v.readFirst(ctx) {
		return alreadyVerified
	}
	ctx, end := v.report.begin(ctx)
	defer end()
	for pauses := checks.Exponential(); ; {
		err := v.report.During(ctx, marking, v.round)
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
		case v.seen.replaced:
			v.log.Warn("node was deleted and created again: restarting the checks")
			v.seen.replaced, v.proof = false, nil
			v.report.restart()
		case !errors.Is(err, errRestart):
			pause, wait := pauses.NextBackOff(), v.runner.Pause
			round, _ := errors.AsType[roundFailure](err)
			if slices.Equal(round.checks, []string{checks.NodeName}) {
				pause, wait = repeatAfter, v.waitForRequirements // then all checks run again, and the failure is due for another Event
			}
			v.report.Failed(ctx, v.seen.node, err, pause)
			_ = v.report.During(ctx, marking, func(ctx context.Context) error {
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
	report, err := v.read(readCtx)
	if err != nil {
		if ctx.Err() == nil {
			v.log.WithError(err).Info("cannot read the node yet: starting with the checks")
		}
		return false
	}
	report.Took = v.seen.at.Sub(start)
	v.seen.reusable = &report
	return v.isVerified(v.seen.node)
}

// foundVerified reports a node that needed no release. Its condition may be one that a container has written that has ended
// since.
func (v *verification) foundVerified(ctx context.Context) {
	v.log.Info("node is already verified")
	if v.cfg.RecheckInterval > 0 { // they decide what it shows
		return
	}
	v.metrics.SetStatus(true)
	if v.report.marker.ShowsFailed(v.seen.node) {
		v.report.markVerified(ctx, v.seen.node)
	}
}

// isRechecked reports whether rechecks, and not a release, are to decide about the node: it is verified, and only its first read
// has failed. A release would remove the failed taint of a node that the controller has re-tainted, after a single round.
func (v *verification) isRechecked() bool {
	return v.cfg.RecheckInterval > 0 && v.seen.node != nil && v.isVerified(v.seen.node)
}

// round is one pass over all checks, on a node without foreign taints.
func (v *verification) round(ctx context.Context) error {
	for _, step := range []func(*verification, context.Context) error{
		(*verification).waitForForeignTaints, (*verification).runChecks,
		(*verification).waitForStartupTaint, (*verification).mayRelease,
	} {
		err := step(v, ctx)
		switch {
		case v.seen.replaced:
			return errRestart
		case err != nil || v.isRechecked():
			return err
		}
	}
	return nil
}

func (v *verification) runChecks(ctx context.Context) error {
	isUnknown := v.seen.node == nil
	list := v.checks(checks.API{Get: v.readNode}, checklist.Options{})
	results, err := v.runner.Round(ctx, checklist.Requirements{List: v.cfg.Require, Client: v.client, Node: v.recentNode}.And(list))
	if err != nil {
		return err
	}
	if err = v.judge(results); err == nil && isUnknown {
		err = errRestart // a foreign taint may have been there while the checks ran
	}
	return err
}

// Attempted implements checks.Observer.
func (v *verification) Attempted(attempt checks.Attempt) {
	if attempt.Err != nil {
		v.proof = nil
	}
	v.report.notes <- note{attempt: &attempt}
}

// readNode is the request of the api check.
func (v *verification) readNode(ctx context.Context) (checks.Report, error) {
	if report := v.seen.reusable; report != nil {
		v.seen.reusable = nil
		if v.isRecent() {
			return *report, nil
		}
	}
	v.client.CloseIdleConnections()
	return v.read(ctx)
}

// read reads the node with a request that is larger than a packet. The patch is built on the answer.
func (v *verification) read(ctx context.Context) (checks.Report, error) {
	node, report, err := checklist.ReadNode(ctx, v.cfg.NodeName, v.api.Get)
	if err == nil {
		v.keep(node)
	}
	return report, err
}

// keep takes the Node as it was read just now.
func (v *verification) keep(node *nodepatch.Node) {
	v.seen.keep(node, time.Now())
	v.seen.beside = v.seen.beside || v.foreignTaint() != nil
}

// release removes the startup taint and adds the label. If the node shows a failure that would stay, the marker takes
// that back first: a stale False could get a healthy node replaced. Once a release has failed, the marker waits for the
// next one to succeed: a condition that is True for a moment in each round would hide the failure.
//
// With CONDITION=always the condition comes first, and there is no release without it: another client waits for True, and a
// verified node has no agent left that could write it. A patch that is refused then leaves it True: the checks pass.
func (v *verification) release(ctx context.Context) error {
	node, request := v.seen.node, v.request
	for _, taint := range nodepatch.StartupTaints(node, request) {
		if taint.Effect != v.cfg.TaintEffect {
			v.log.WithField("taint", taint.String()).WithField("expected", v.cfg.TaintEffect).
				Warn("startup taint has an unexpected effect: removing it anyway")
		}
	}
	if boot, own := node.Status.NodeInfo.BootID, bootID(); boot != "" && own != "" && boot != own {
		v.log.WithField("node_boot_id", boot).
			Warn("the Node's boot id is not this kernel's: two machines have one name, or this pod has a kernel of its own (Kata)")
	}
	if v.always() {
		if err := v.report.marker.Verified(ctx, node); err != nil {
			return fmt.Errorf("cannot write the condition %s before the release (CONDITION=always): %w", v.cfg.ConditionType, err)
		}
	} else if !v.releaseFailed && v.report.marker.ShowsFailed(node) {
		v.report.markVerified(ctx, node)
	}
	if err := v.mayRelease(ctx); err != nil { // the condition may have taken long
		return err
	}
	node = v.seen.node
	request.AnnotationValue = v.report.annotation(node, time.Now())
	request.Unmet = func(node *nodepatch.Node) string { return v.unmet(ctx, node) }
	v.proof = &proof{node.UID, request}
	var now *nodepatch.Node
	var removed []nodepatch.Taint
	err := v.report.During(ctx, holding, func(ctx context.Context) (err error) {
		now, removed, err = v.patcher.Release(ctx, node, request)
		return err
	})
	switch {
	case errors.Is(err, nodepatch.ErrBlocked), errors.Is(err, nodepatch.ErrReplaced):
		v.log.WithError(err).Info("restarting the checks")
		if v.seen.forget(); errors.Is(err, nodepatch.ErrReplaced) {
			v.seen = seen{replaced: true}
		}
		v.proof = nil
		return errRestart
	case err != nil:
		v.releaseFailed = true
		return err
	}
	v.seen.keep(now, time.Now()) // what rechecks begin with
	v.report.Released(ctx, now, removed, v.releaseFailed)
	return nil
}

// bootID returns the boot id of this kernel, "" if it cannot be read.
func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}
