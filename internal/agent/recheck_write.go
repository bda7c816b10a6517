package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// condition returns the condition as last read. Its status is "" if there is none.
func (r *recheck) condition() (found nodepatch.Condition) {
	for _, condition := range r.node.Status.Conditions {
		if condition.Type == r.cfg.ConditionType {
			found = condition
		}
	}
	return found
}

func (r *recheck) shown() string { return r.condition().Status }

func (r *recheck) closed() bool { return nodepatch.HasFailedTaint(r.node, NewRequest(r.cfg)) }

// wasGated reports whether the node began with a startup taint, or has the condition already. No other node gets a condition, and
// so nobody closes it.
func (r *recheck) wasGated() bool {
	return r.shown() != "" || len(nodepatch.StartupTaints(r.node, NewRequest(r.cfg))) > 0 ||
		verdict.WasGated(r.node.Annotations[annotation], r.cfg.FailedTaintKey)
}

func (r *recheck) isProven() bool {
	return r.status == statusTrue && r.passed >= r.cfg.RecoveryThreshold
}

// wasFailedByController reports whether the condition is the controller's, on a node that it has closed, or is to close.
func (r *recheck) wasFailedByController() bool {
	shown := r.condition()
	return shown.Reason != "" && !verdict.IsAgents(shown.Reason) && (shown.Status == statusFalse || r.closed())
}

// heedController has the rounds prove once more, with large packets, that the node passes, if the controller has written, or
// closed it, since this agent has found that it does.
func (r *recheck) heedController() {
	shown := r.shown()
	if r.status == statusTrue && (r.written || r.closed()) && shown != "" && shown != statusTrue && !r.readAt.IsZero() {
		r.status, r.passed, r.thoroughAt = "", 0, time.Time{}
	}
}

// nextWrite returns when the node is to show more of the verdict than it does: after a restart, after a time in which nothing was
// to be written, or because of a failed taint that was added since. It returns zero if nothing is to be written.
func (r *recheck) nextWrite() time.Time {
	switch {
	case r.isProven() && r.closed(), r.conditionDue() && (r.isProven() || r.status == statusFalse):
		return time.Now()
	case r.status == statusFalse && r.failed > 0 && r.written:
		return r.refreshAt
	default:
		return time.Time{}
	}
}

// conditionDue reports whether the condition is to be written. A False is refreshed only while rounds fail: one that goes stale
// says that the node may be recovering, and the controller does not close it.
func (r *recheck) conditionDue() bool {
	isFresh := r.written && (r.status == statusTrue || time.Now().Before(r.refreshAt))
	goesStale := r.status == statusFalse && r.failed == 0
	return r.status != "" && r.wasGated() && !isFresh && !goesStale
}

// write shows the verdict on the node: with the condition, with the failed taint that it removes, and with an Event.
func (r *recheck) write(ctx context.Context) {
	err := r.readAgain(ctx)
	if err == nil && nodepatch.Untouchable(r.node) != "" {
		r.due = time.Time{}
		return
	}
	if err == nil && r.conditionDue() {
		err = r.setCondition(ctx)
		r.written, r.refreshAt = err == nil, time.Now().Add(r.refresh)
	}
	if r.isProven() && r.closed() { // whatever became of the condition: nothing delays it
		err = errors.Join(err, r.open(ctx))
	}
	sent := r.events.Flush(ctx)
	switch {
	case ctx.Err() != nil:
	case nodepatch.IsFinal(err):
		r.due = time.Now().Add(r.refresh)
	case err != nil && r.status == statusFalse: // the API server may be back, and all well: wait for the next round that fails
		r.due = time.Time{}
	case err != nil || !sent:
		r.due = time.Now().Add(spread(r.reportInterval))
	default:
		r.due = r.nextWrite()
	}
	if err != nil && ctx.Err() == nil {
		r.log.WithError(err).Warn("cannot show the verdict on the node, will retry")
	}
}

// readAgain reads the node if the last read is old: rounds may be an hour apart.
func (r *recheck) readAgain(ctx context.Context) error {
	if time.Since(r.readAt) < time.Minute {
		return nil
	}
	return r.read(ctx)
}

// read reads the node from the API server's cache, between two rounds.
func (r *recheck) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CheckTimeout)
	defer cancel()
	node, err := r.api.GetCached(ctx)
	if err == nil {
		err = r.keep(ctx, node)
	}
	if err == nil && r.written { // else the node shows what was written before the verdict
		r.heedController()
	}
	return err
}

// keep keeps the node as read from the API server's cache. One that is not verified is read again, from etcd: the cache may be
// behind the release.
func (r *recheck) keep(ctx context.Context, node *nodepatch.Node) (err error) {
	if !nodepatch.IsVerified(node, r.held) {
		node, err = r.api.Get(ctx)
	}
	if err == nil {
		r.node, r.readAt = node, time.Now()
	}
	return err
}

func (r *recheck) setCondition(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CheckTimeout)
	defer cancel()
	condition := nodepatch.Condition{Type: r.cfg.ConditionType, Status: r.status}
	condition.Reason, condition.Message = verdict.Verified, verdict.AllChecksPass
	if r.status == statusFalse {
		condition.Reason, condition.Message = r.reasons, kube.Shorten(r.message())
	}
	node, err := r.api.SetCondition(ctx, r.node, condition, r.client.ServerTime())
	if err == nil { // the controller may have closed it since it was read
		r.node, r.readAt = node, time.Now()
	}
	return err
}

// open removes the failed taint.
func (r *recheck) open(ctx context.Context) error {
	request := NewRequest(r.cfg)
	if err := r.patcher.RemoveFailedTaint(ctx, r.node, request); err != nil {
		return err
	}
	r.log.Info("failed taint removed: the node passes its rechecks")
	isFailed := func(taint nodepatch.Taint) bool { return taint.Key == request.FailedTaintKey }
	r.node.Spec.Taints = slices.DeleteFunc(r.node.Spec.Taints, isFailed)
	return nil
}

func (r *recheck) message() string { return "rechecks fail: " + r.failure.Error() }
