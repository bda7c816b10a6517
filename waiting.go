package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// waitingName and lateName stand where a check's name would in what is said of a node that waits for the taints of others to go, and
	// for our own to come.
	waitingName, lateName = "taints", "late taint"
	// waitingPoll is how often the node is read meanwhile.
	waitingPoll = 2 * time.Second
)

// awaitOthers waits until no taint of WAIT_FOR_TAINTS is on the node: what has put it there (a network plugin, for example) does not
// own the node yet, and what a check proved would be about something else. A node that cannot be read is left to the checks, which
// say why. False means that ctx has ended.
func (a *agent) awaitOthers(ctx context.Context) bool {
	for waiting := false; ; waiting = true {
		taint := a.taintOfOthers()
		if taint == nil {
			if waiting {
				a.trouble.Store(nil)
				a.log.Info("the taints of WAIT_FOR_TAINTS are gone")
			}
			return ctx.Err() == nil
		}
		if !waiting {
			a.log.WithField("taint", taint.String()).Info("waiting until others have taken their taint off")
			a.trouble.Store(&checks.Attempt{Check: waitingName, Err: fmt.Errorf("%s is still on (WAIT_FOR_TAINTS)", taint)})
		}
		if !sleep(ctx, waitingPoll) {
			return false
		}
		if err := a.lookAtNode(ctx); err != nil {
			a.log.WithError(err).Debug("node cannot be read while waiting for the taints of others")
			return ctx.Err() == nil
		}
	}
}

// taintOfOthers returns a taint of WAIT_FOR_TAINTS that is on the node as it was read last, or nil. A prefix may cover the agent's own
// taints as well, which nobody else takes off.
func (a *agent) taintOfOthers() *nodepatch.Taint {
	if a.base == nil {
		return nil
	}
	own := a.cfg.request()
	for _, taint := range a.base.Spec.Taints {
		if own.TakesOff(taint) {
			continue
		}
		for _, prefix := range a.cfg.waitForTaints {
			if strings.HasPrefix(taint.Key, prefix) {
				return &taint
			}
		}
	}
	return nil
}

// awaitTaint waits for a taint that comes late. The node as it was read last is what the patch is built on from then on.
func (a *agent) awaitTaint(ctx context.Context) error {
	request := a.cfg.request()
	if len(nodepatch.Taints(a.base, request)) == 0 {
		a.log.WithField("window", a.cfg.lateTaintWindow.String()).Debug("node has no taint to take off")
		a.trouble.Store(&checks.Attempt{Check: lateName, Err: fmt.Errorf("all checks pass, and the node is not yet %s old (LATE_TAINT_WINDOW)", a.cfg.lateTaintWindow)})
		defer a.trouble.Store(nil)
	}
	node, err := a.patcher.AwaitTaint(ctx, a.base, request, a.cfg.lateTaintWindow)
	if err == nil {
		a.base = node
	}
	return err
}
