package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// mark is what ON_TIMEOUT puts on the node once INITIAL_TIMEOUT has passed: a taint or a condition, for those who provision,
// repair or replace nodes. Its mutex is held while the node is marked and while it is opened, so that no mark can come behind the
// patch that opens the node.
type mark struct {
	mu     sync.Mutex
	late   bool   // INITIAL_TIMEOUT has passed
	opened bool   // nothing is marked any more
	failed bool   // the patch that opens the node has
	reason string // as it is on the node, "" where nothing is
}

func (m *mark) startOver() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late, m.opened, m.failed, m.reason = false, false, false, ""
}

// watchTimeout reports once that INITIAL_TIMEOUT has passed, even while an attempt is under way.
// The rounds go on, except with --once. The function it returns ends the watch.
func (a *agent) watchTimeout(ctx context.Context, giveUp context.CancelFunc) (stop func()) {
	watching, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if !sleep(watching, a.cfg.initialTimeout) {
			return
		}
		if a.cfg.once {
			giveUp()
		}
		a.metrics.TimedOut(true)
		message := "not verified within " + a.cfg.initialTimeout.String()
		if last := a.trouble.Load(); last != nil {
			message += ": " + describe(*last)
		}
		a.log.WithField("reason", message).Error("initial timeout passed")
		a.events.add(eventWarning, reasonTimedOut, message)
		a.events.flush(ctx)
		a.markLate(ctx, message)
	}()
	return func() {
		cancel()
		<-done
	}
}

// markLate marks the node because INITIAL_TIMEOUT has passed.
func (a *agent) markLate(ctx context.Context, message string) {
	a.mark.mu.Lock()
	defer a.mark.mu.Unlock()
	a.mark.late = true
	var failed []string
	switch last := a.trouble.Load(); {
	case last == nil, last.Check == patchName:
	case last.Check == lateName:
		return // no check fails
	default:
		failed = []string{last.Check}
	}
	a.putMark(ctx, failed, message)
}

// markAgain marks a late node after a round that failed with err: because the API could not be reached before, or because other
// checks fail now. One whose condition has been True too early is marked, late or not.
func (a *agent) markAgain(ctx context.Context, err error) {
	a.mark.mu.Lock()
	defer a.mark.mu.Unlock()
	if !a.mark.late && !a.mark.failed {
		return
	}
	var round notVerified
	_ = errors.As(err, &round)
	a.putMark(ctx, round.checks, err.Error())
}

// putMark puts the mark on the node, unless it bears the very same. The caller holds the mutex.
func (a *agent) putMark(ctx context.Context, failed []string, message string) {
	reason := conditionReason(failed)
	if a.mark.opened || a.mark.reason == reason || ctx.Err() != nil {
		return
	}
	var err error
	switch a.cfg.onTimeout {
	case onTimeoutTaint:
		if a.mark.reason != "" {
			return // the taint stays what it is
		}
		value := "unverified"
		if len(failed) > 0 {
			value = failed[0]
		}
		err = a.patcher.Fail(ctx, a.cfg.request(), value)
	case onTimeoutCondition:
		err = a.setCondition(ctx, nil, "False", reason, message)
	default:
		return
	}
	log := a.log.WithFields(logrus.Fields{"policy": a.cfg.onTimeout, "reason": reason})
	if err != nil {
		log.WithError(err).Warn("node could not be marked as failed: trying again after the next round (ON_TIMEOUT needs the rights that the chart gives for it)")
		return
	}
	a.mark.reason = reason
	log.Warn("node marked as failed")
}

// unmark opens the node, which takes the failed taint off in the same patch. The condition says so before the node is open: one that
// stayed False would have somebody take a good node away. It says so afterwards where that patch has failed before: one that is True, and
// False again after each failure, would never be False for long.
func (a *agent) unmark(ctx context.Context, request nodepatch.Request) error {
	a.mark.mu.Lock()
	defer a.mark.mu.Unlock()
	conditioned, afterwards := a.cfg.onTimeout == onTimeoutCondition, a.mark.failed
	if conditioned && !afterwards {
		if err := a.setVerified(ctx); err != nil {
			return err
		}
	}
	err := a.patcher.Apply(ctx, a.base, request)
	a.mark.opened = err == nil
	if !conditioned {
		return err
	}
	switch {
	case err != nil:
		a.mark.failed = true // see markAgain
	case afterwards:
		insist(func() bool {
			err := a.setVerified(context.WithoutCancel(ctx))
			if err != nil {
				a.log.WithError(err).Warn("node is open, and its condition cannot be written")
			}
			return err == nil
		})
	}
	return err
}

// setVerified makes the condition of the node as it was read last True. Rights that are missing for it are no error.
func (a *agent) setVerified(ctx context.Context) error {
	err := a.setCondition(ctx, a.base, "True", "Verified", "DNS, API, network and service discovery work")
	if apierrors.IsForbidden(err) {
		a.log.WithError(err).Warn("condition refused: apply the chart with config.onTimeout=condition")
		return nil
	}
	if err == nil {
		a.mark.reason = ""
	}
	return err
}

// setCondition writes the condition of ON_TIMEOUT, on node as it was read last, or read now where that is nil.
func (a *agent) setCondition(ctx context.Context, node *nodepatch.Node, status, reason, message string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.checkTimeout)
	defer cancel()
	if node == nil {
		if node, err = a.node.Get(ctx); err != nil {
			return err
		}
	}
	return a.node.SetCondition(ctx, node, nodepatch.Condition{
		Type: a.cfg.conditionType, Status: status, Reason: reason, Message: shorten(message),
	})
}

// conditionReason names the checks that failed, in their order: DNSFailed, or DNSFailed,ServiceFailed.
func conditionReason(failed []string) string {
	if slices.Contains(failed, waitingName) {
		return "TaintsOfOthers"
	}
	var reasons []string
	for _, each := range []struct{ check, reason string }{
		{checks.DNSName, "DNSFailed"}, {checks.APIName, "APIFailed"}, {checks.NetworkName, "NetworkFailed"}, {checks.ServiceName, "ServiceFailed"},
	} {
		if slices.Contains(failed, each.check) {
			reasons = append(reasons, each.reason)
		}
	}
	if len(reasons) == 0 {
		return "NotVerified"
	}
	return strings.Join(reasons, ",")
}
