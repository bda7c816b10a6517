package agent

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/metrics"
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
	cfg     config.Config
	version string
	log     *logrus.Entry
	metrics *metrics.Recorder
	events  *kube.Events
	own     *ownNode
	rounds  *rounds
	report  *reporter
	marker  *marker
}

// verify returns when the node is verified, when ctx ends, or when --once times out.
func (v *verification) verify(ctx context.Context) outcome {
	if v.readFirst(ctx) {
		return alreadyVerified
	}
	ctx, end := v.report.begin(ctx, v.own.seen)
	defer end()
	for pauses := checks.Exponential(); ; {
		err := v.report.during(ctx, true, v.rounds.makeRound)
		if err == nil || errors.Is(err, errRestart) { // the checks have passed, or do not count
			v.report.forgetNetwork()
		}
		if err == nil {
			err = v.release(ctx)
		}
		switch {
		case err == nil:
			return released
		case errors.Is(err, errRechecked):
			return alreadyVerified
		case ctx.Err() != nil:
			return interrupted
		case errors.Is(err, nodepatch.ErrReplaced):
			v.log.Warn("node was deleted and created again: restarting the checks")
			v.own.seen.isReplaced, v.own.proven = false, ""
			v.report.restart(v.own.seen)
			pauses.Reset()
		case !errors.Is(err, errRestart):
			v.pause(ctx, err, pauses.NextBackOff())
		}
	}
}

// pause reports a failed round or patch, and waits before the next round. Where only the node's requirements fail, it waits for
// the node to meet them: for so long that the failure is due for another Event.
func (v *verification) pause(ctx context.Context, err error, pause time.Duration) {
	round, _ := errors.AsType[roundFailure](err)
	wait := func(ctx context.Context) error {
		v.rounds.runner.Pause(ctx, round.checks, pause)
		return nil
	}
	if slices.Equal(round.checks, []string{checks.NodeName}) {
		pause = repeatAfter
		wait = v.rounds.waitForRequirements
	}
	v.report.failed(ctx, v.own.seen, err, pause)
	_ = v.report.during(ctx, true, wait)
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
	report.Took = v.own.seen.at.Sub(start)
	v.own.seen.reusable = &report
	return v.own.access.isVerified(v.own.seen.node)
}

// foundVerified reports a node that needed no release. Its condition may be one that a container has written that has ended
// since.
func (v *verification) foundVerified(ctx context.Context) {
	v.log.Info("node is already verified")
	if v.cfg.RecheckInterval > 0 { // they decide what it shows
		return
	}
	v.metrics.SetStatus(true)
	if v.marker.showsFailure(v.own.seen.node) {
		v.marker.tryVerified(ctx, v.own.seen.node)
	}
}

// release removes the startup taint and adds the label.
func (v *verification) release(ctx context.Context) error {
	node := v.own.seen.node
	v.warnOfSurprises(node)
	if err := v.marker.beforeRelease(ctx, node); err != nil {
		return err
	}
	if err := v.rounds.mayRelease(ctx); err != nil { // the condition may have taken long
		return err
	}
	node = v.own.seen.node
	release := nodepatch.Release{Keys: v.own.access.keys, Value: v.annotation(node, time.Now()),
		Unmet: func(node *nodepatch.Node) string { return v.own.access.unmet(ctx, node) }}
	v.own.proven = node.UID
	var now *nodepatch.Node
	var removed []nodepatch.Taint
	err := v.report.during(ctx, false, func(ctx context.Context) (err error) {
		now, removed, err = v.own.access.patcher.Release(ctx, node, release)
		return err
	})
	switch {
	case errors.Is(err, nodepatch.ErrReplaced):
		v.own.seen = seen{}
		return err
	case errors.Is(err, nodepatch.ErrBlocked):
		v.log.WithError(err).Info("restarting the checks")
		v.own.seen.forget()
		v.own.proven = ""
		return errRestart
	case err != nil:
		v.marker.releaseFailed = true
		return err
	}
	v.own.seen.keep(now, time.Now()) // what rechecks begin with
	v.released(ctx, now, removed)
	return nil
}

// released reports the released node. The DaemonSet controller deletes this pod as soon as it sees the label, so the condition
// and the Event are finished first, whether ctx has ended or not: --once within CHECK_TIMEOUT and 2 s.
func (v *verification) released(ctx context.Context, node *nodepatch.Node, removed []nodepatch.Taint) {
	limit := v.cfg.CheckTimeout + 2*time.Second
	if !v.cfg.Once {
		limit *= 2
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	took := time.Since(v.report.start)
	v.metrics.Verified(time.Now(), took)
	what := "no startup taint found"
	if len(removed) > 0 {
		what = "removed " + strings.Join(nodepatch.FormatTaints(removed), ", ")
	}
	log := v.log.WithFields(logrus.Fields{"took": formatDuration(took), "taints": what})
	if left := remaining(node.Spec.Taints, v.cfg.Keys()); len(left) > 0 {
		log = log.WithField("remaining_taints", strings.Join(nodepatch.FormatTaints(left), ", "))
	}
	log.Info("node verified")
	v.marker.afterRelease(ctx, node, removed)
	message := verdict.AllChecksPass + "; verified in " + formatDuration(took) + "; " + what
	select {
	case names := <-v.rounds.wildcards:
		message += "; warning: a wildcard in the node's search domains answers pods for names such as google.com (remove the domain " +
			"from the node's resolv.conf, or the wildcard from the domain): it has " + names
	default: // none, or not in time
	}
	v.events.Add(kube.EventNormal, verdict.NodeVerified, message)
	v.events.Flush(ctx)
}

// annotation says when, how and in which boot the node was verified, and which taints its release removes.
func (v *verification) annotation(node *nodepatch.Node, now time.Time) func(*nodepatch.Node, []nodepatch.Taint) string {
	return func(last *nodepatch.Node, removed []nodepatch.Taint) string {
		return record.Record{Time: now.UTC().Format(time.RFC3339), Duration: formatDuration(now.Sub(v.report.start)),
			Attempts: v.report.attempts, Removed: nodepatch.FormatTaints(removed), Required: v.cfg.Require.For(node), Version: v.version,
			BootID: node.Status.NodeInfo.BootID}.Keeping(last.Annotations[nodepatch.Annotation], v.cfg.FailedTaintKey).String()
	}
}

// warnOfSurprises logs what is unusual about a node that is to be released.
func (v *verification) warnOfSurprises(node *nodepatch.Node) {
	for _, taint := range v.own.access.keys.StartupTaints(node.Spec.Taints) {
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
