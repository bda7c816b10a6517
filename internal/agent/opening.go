package agent

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// withheld says why node is not opened (ON_TIMEOUT=open), or "": its startup taint may be removed, without the label. The failed
// checks have run for the Node as checked (nil: nobody knows). now is by the API server's clock; zero: it is not known.
func withheld(cfg config.Config, node, checked *nodepatch.Node, failed []string, now time.Time) string {
	record, _ := verdict.ParseRecord(node.Annotations[nodepatch.Annotation])
	switch {
	case !slices.ContainsFunc(failed, func(name string) bool { return slices.Contains(checks.Names(), name) }):
		return "no network check has failed"
	case checked == nil || checked.UID != node.UID:
		return "the checks have run for another Node"
	case cfg.Keys().IsVerified(node.Labels, nil) || node.DeletionTimestamp != nil:
		return "the node has the label, or is being deleted"
	case min(now.Sub(node.CreationTimestamp.Time), now.Sub(record.Opened)) < cfg.InitialTimeout:
		return "INITIAL_TIMEOUT has not passed by the API server's clock"
	case cfg.Keys().ForeignTaint(node.Spec.Taints) != nil:
		return "a foreign taint is still on the node (WAIT_FOR_TAINTS)"
	}
	return ""
}

// beginTimeout starts INITIAL_TIMEOUT.
func (r *reporter) beginTimeout() {
	wait := r.cfg.InitialTimeout
	if r.marker.uses(config.OnTimeoutOpen) {
		wait += rand.N(10 * time.Second) // for nodes that time out together
	}
	r.marker.timedOut, r.timeout, r.opened = false, time.After(wait), time.Time{}
	r.metrics.TimedOut(false)
}

// follow notes from a read whether node (nil: unknown) is open, and reports whether it has a startup taint, under its present
// key or a former one. A startup taint that returns begins INITIAL_TIMEOUT again. A read that is older than the opening also
// shows the startup taint, but not the record of the opening.
func (r *reporter) follow(node *nodepatch.Node) (isLocked bool) {
	if node == nil {
		return false
	}
	isLocked = slices.ContainsFunc(node.Spec.Taints, r.access.keys.WithoutFailedTaint().Removes)
	record, _ := verdict.ParseRecord(node.Annotations[nodepatch.Annotation])
	if !isLocked {
		r.opened = record.Opened
	} else if !r.opened.IsZero() && r.opened.Equal(record.Opened) {
		r.log.Warn("the startup taint is back on the opened node: INITIAL_TIMEOUT begins again")
		r.beginTimeout()
	}
	r.metrics.Opened(!r.opened.IsZero())
	return isLocked
}

// open opens the node, if INITIAL_TIMEOUT has passed and nothing withholds that. The rounds go on. It reports whether nothing is
// left to do.
func (r *reporter) open(ctx context.Context, failed []string) (done bool) {
	if !r.marker.uses(config.OnTimeoutOpen) || !r.marker.timedOut || !r.opened.IsZero() {
		return true
	}
	node, err := r.access.patcher.Get(ctx)
	if err == nil && r.follow(node) && r.marker.timedOut { // follow may have begun INITIAL_TIMEOUT again
		err = r.patchOpen(ctx, node, failed)
	}
	if err != nil {
		r.log.WithError(err).Warn("the node is not opened, will retry (ON_TIMEOUT)")
	}
	return err == nil
}

// patchOpen removes what a release removes, but not the controller's failed taint. A Node that changes is judged again.
func (r *reporter) patchOpen(ctx context.Context, node *nodepatch.Node, failed []string) error {
	now := r.access.kube.ServerTime()
	unmet := func(n *nodepatch.Node) string {
		return cmp.Or(withheld(r.cfg, n, r.checked, failed, now), r.access.unmet(ctx, n))
	}
	if why := unmet(node); why != "" {
		return errors.New(why)
	}
	keys := r.access.keys
	if !slices.ContainsFunc(node.Spec.Taints, r.marker.isAgents) {
		keys = keys.WithoutFailedTaint()
	}
	keys.Label = "" // not verified
	value := func(node *nodepatch.Node, removed []nodepatch.Taint) string {
		record := verdict.Record{Opened: now.UTC().Truncate(time.Second), Removed: nodepatch.FormatTaints(removed), Version: r.version}
		return record.Keeping(node.Annotations[nodepatch.Annotation], r.cfg.FailedTaintKey).String()
	}
	opened, removed, err := r.access.patcher.ReleaseCached(ctx, node, nodepatch.Release{Keys: keys, Unmet: unmet, Value: value})
	if err != nil {
		return err
	}
	r.follow(opened)
	what := "removed " + strings.Join(nodepatch.FormatTaints(removed), ", ") + ", failed: " + strings.Join(failed, ", ")
	r.log.WithField("reason", what).Warn("node opened: it is not verified, and the checks go on")
	r.events.Add(kube.EventWarning, verdict.NodeOpened, "the node takes pods although it is not verified (ON_TIMEOUT): "+what)
	return nil
}
