package agent

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/ownnode"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/internal/verification"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// outcome is how a verification ends.
type outcome int

const (
	interrupted     outcome = iota // by a signal, or by INITIAL_TIMEOUT with --once
	alreadyVerified                // not by this verification
	released
)

// verifier takes one node to its release: rounds, until one passes and the patch is applied. While the loop runs a step, the step
// owns the Node as it was seen, and the rounds.
type verifier struct {
	*loop
	own    *ownnode.Node
	rounds *rounds
}

// verify returns when the node is verified, when ctx ends, or when --once times out.
func (v *verifier) verify(ctx context.Context) outcome {
	if v.readFirst(ctx) {
		return alreadyVerified
	}
	ctx, v.stop = context.WithCancel(ctx)
	defer v.stop()
	v.begin(v.own.Seen())
	defer v.report.end()
	for pauses := checks.Exponential(); ; {
		err := v.during(ctx, v.rounds.makeRound)
		if err == nil || errors.Is(err, errRestart) {
			v.apply(verification.Passed{})
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
			v.restart(v.own.Seen())
			pauses.Reset()
		case !errors.Is(err, errRestart):
			v.pause(ctx, err, pauses.NextBackOff())
		}
	}
}

// pause reports a failed round or patch, and waits before the next round. If only the node's requirements fail, it waits for the
// node to meet them: until the failure is due for another Event.
func (v *verifier) pause(ctx context.Context, err error, pause time.Duration) {
	failed, _ := errors.AsType[round.Failure](err)
	wait := func(ctx context.Context) error {
		v.rounds.pause(ctx, failed.Checks, pause)
		return nil
	}
	if slices.Equal(failed.Checks, []string{checks.NodeName}) {
		pause = repeatAfter
		wait = v.rounds.waitForRequirements
	}
	next := round.FormatDuration(pause)
	v.log.WithFields(logrus.Fields{"reason": brief(err), "next_round_in": next}).Error("node not verified")
	v.failed(ctx, v.own.Seen(), failed, err)
	_ = v.during(ctx, wait)
}

// readFirst reads the node before anything else and reports whether it is verified: a container that was restarted on
// a verified node has nothing to do.
func (v *verifier) readFirst(ctx context.Context) bool {
	if err := v.own.ReadFirst(ctx); err != nil {
		if ctx.Err() == nil {
			v.log.WithError(err).Info("cannot read the node yet: starting with the checks")
		}
		return false
	}
	return v.own.IsVerified(v.own.Last())
}

// foundVerified reports a node that needed no release. Its condition may be one that a container has written that has ended
// since.
func (v *verifier) foundVerified(ctx context.Context) {
	v.log.Info("node is already verified")
	if v.cfg.RecheckInterval > 0 { // they decide what it shows
		return
	}
	v.metrics.SetStatus(true)
	if v.marker.showsFailure(v.own.Last()) {
		v.marker.tryVerified(ctx, v.own.Last())
	}
}

// release removes the startup taint and adds the label.
func (v *verifier) release(ctx context.Context) error {
	node := v.own.Last()
	v.warnOfSurprises(node)
	if err := v.marker.beforeRelease(ctx, node); err != nil {
		return err
	}
	if err := v.rounds.mayRelease(ctx); err != nil { // the condition may have taken long
		return err
	}
	node = v.own.Last()
	release := nodepatch.Release{Keys: v.own.Keys, Value: v.annotation(node, time.Now()),
		Unmet: func(node *nodepatch.Node) string { return v.own.Unmet(ctx, node) }}
	v.apply(verification.Releasing{UID: node.UID})
	var now *nodepatch.Node
	var removed []nodepatch.Taint
	err := v.during(ctx, func(ctx context.Context) (err error) {
		now, removed, err = v.own.Patcher.Release(ctx, node, release)
		return err
	})
	isBlocked := errors.Is(err, nodepatch.ErrBlocked)
	v.apply(verification.Patched{Outdated: isBlocked})
	switch {
	case errors.Is(err, nodepatch.ErrReplaced):
		v.own.Reset()
		return err
	case isBlocked:
		v.log.WithError(err).Info("restarting the checks")
		v.own.Forget()
		return errRestart
	case err != nil:
		v.marker.expectRefusal()
		return err
	}
	v.released(ctx, now, removed)
	return nil
}

// released reports the released node. The DaemonSet controller deletes this pod as soon as it sees the label, so the condition
// and the Event are finished first, whether ctx has ended or not: --once within CHECK_TIMEOUT and 2 s.
func (v *verifier) released(ctx context.Context, node *nodepatch.Node, removed []nodepatch.Taint) {
	limit := v.cfg.CheckTimeout + 2*time.Second
	if !v.cfg.Once {
		limit *= 2
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	took := time.Since(v.state.Began)
	v.metrics.Verified(time.Now(), took)
	what := "no startup taint found"
	if len(removed) > 0 {
		what = "removed " + strings.Join(nodepatch.FormatTaints(removed), ", ")
	}
	log := v.log.WithFields(logrus.Fields{"took": round.FormatDuration(took), "taints": what})
	if left := remaining(node.Spec.Taints, v.cfg.Keys()); len(left) > 0 {
		log = log.WithField("remaining_taints", strings.Join(nodepatch.FormatTaints(left), ", "))
	}
	log.Info("node verified")
	v.own.Keep(v.marker.afterRelease(ctx, node, removed)) // what rechecks begin with
	message := verdict.AllChecksPass + "; verified in " + round.FormatDuration(took) + "; " + what
	select {
	case names := <-v.rounds.wildcards:
		message += "; warning: a wildcard in the node's search domains answers pods for names such as google.com (remove the domain " +
			"from the node's resolv.conf, or the wildcard from the domain): it has " + names
	default: // none, or not in time
	}
	v.events.Add(kube.EventNormal, verdict.NodeVerified, message)
	v.events.Flush(ctx)
}

// annotation says when, how and in which boot the node was verified, and which taints its release removes. A step calls it, so it
// does not read the State.
func (v *verifier) annotation(node *nodepatch.Node, now time.Time) func(*nodepatch.Node, []nodepatch.Taint) string {
	made := record.Record{Time: now.UTC().Format(time.RFC3339), Duration: round.FormatDuration(now.Sub(v.state.Began)),
		Attempts: maps.Clone(v.report.attempts), Required: v.cfg.Require.For(node), Version: v.version,
		BootID: node.Status.NodeInfo.BootID}
	return func(last *nodepatch.Node, removed []nodepatch.Taint) string {
		made.Removed = nodepatch.FormatTaints(removed)
		return made.Keeping(last.Annotations[nodepatch.Annotation], v.cfg.FailedTaintKey).String()
	}
}

// warnOfSurprises logs what is unusual about a node that is to be released.
func (v *verifier) warnOfSurprises(node *nodepatch.Node) {
	for _, taint := range v.own.Keys.StartupTaints(node.Spec.Taints) {
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

// remaining returns the taints that still repel pods after the release.
func remaining(taints []nodepatch.Taint, keys nodepatch.Keys) []nodepatch.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(taint nodepatch.Taint) bool {
		return keys.Removes(taint) || (taint.Effect != "NoSchedule" && taint.Effect != "NoExecute")
	})
}
