package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// retryReport is the time until the next attempt to report a timeout, ±20 %.
const retryReport = 30 * time.Second

// openingsTake is over how long the nodes are opened that have timed out together.
const openingsTake = 10 * time.Second

// opening is what is known when a node may be opened (ON_TIMEOUT=open): its startup taint is removed, without the label.
type opening struct {
	request nodepatch.Request
	timeout time.Duration // INITIAL_TIMEOUT
	failed  []string      // checks
	checked types.UID     // of the Node that they ran for
	now     time.Time     // by the API server's clock; zero: it is not known
}

// withheld says why node is not opened, or "".
func (o opening) withheld(node *nodepatch.Node) string {
	record, _ := verdict.ParseRecord(node.Annotations[o.request.Annotation])
	since, _ := time.Parse(time.RFC3339, record.Opened) // zero: never
	if since.Before(node.CreationTimestamp.Time) {
		since = node.CreationTimestamp.Time
	}
	foreign := o.request.ForeignTaint(node.Spec.Taints)
	_, isLabelled := node.Labels[o.request.Label]
	switch {
	case !slices.ContainsFunc(o.failed, func(name string) bool { return slices.Contains(checks.Names(), name) }):
		return "no network check has failed"
	case node.UID != o.checked || node.DeletionTimestamp != nil:
		return "the checks have run for another Node, or it is being deleted"
	case isLabelled:
		return "it has the label " + o.request.Label
	case o.now.Sub(since) < o.timeout:
		return "INITIAL_TIMEOUT has not passed by the API server's clock"
	case foreign != nil:
		return "the taint " + foreign.String() + " is still on the node (WAIT_FOR_TAINTS)"
	}
	return ""
}

// isLocked reports whether node has a startup taint, under its present key or a former one.
func (r *reporter) isLocked(node *nodepatch.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, r.locks)
}

func (r *reporter) locks(taint nodepatch.Taint) bool {
	return taint.Key != r.cfg.FailedTaintKey && r.api.request.Removes(taint)
}

// follow notes whether node (nil: unknown) is open. A taint that returns begins INITIAL_TIMEOUT again. A read from before the opening
// has another record.
func (r *reporter) follow(node *nodepatch.Node) {
	if node == nil {
		return
	}
	record, _ := verdict.ParseRecord(node.Annotations[nodepatch.Annotation])
	switch {
	case record.Opened == "":
	case !r.isLocked(node):
		r.opened = record.Opened
		r.metrics.Opened(true)
	case record.Opened == r.opened:
		r.log.Warn("the startup taint is back on the opened node: INITIAL_TIMEOUT begins again")
		r.beginTimeout()
	}
}

func (r *reporter) beginTimeout() {
	r.timedOut, r.timeout, r.opened = false, time.After(r.cfg.InitialTimeout), ""
	r.metrics.TimedOut(false)
	r.metrics.Opened(false)
}

// untilRetry is how long reportTimeout waits until it tries again what could not be written.
func (r *reporter) untilRetry() time.Duration {
	if left := time.Until(r.opensAt); left > 0 && r.uses(config.OnTimeoutOpen) {
		return left
	}
	return spread(retryReport)
}

// open opens the node, if it has failed network checks for INITIAL_TIMEOUT. The rounds go on. It reports whether nothing is left to
// do.
func (r *reporter) open(ctx context.Context, failed []string) (done bool) {
	switch {
	case !r.uses(config.OnTimeoutOpen) || r.opened != "":
		return true
	case !r.timedOut || time.Now().Before(r.opensAt):
		return false
	}
	node, err := r.api.patcher.Get(ctx)
	if err == nil {
		if r.follow(node); !r.timedOut || !r.isLocked(node) {
			return true
		}
		err = r.patchOpen(ctx, node, opening{request: r.api.request, timeout: r.cfg.InitialTimeout, failed: failed, checked: r.checked,
			now: r.api.client.ServerTime()})
	}
	if err != nil {
		r.log.WithError(err).Warn("the node is not opened, will retry (ON_TIMEOUT)")
	}
	return err == nil
}

// patchOpen removes the startup taint, former keys and an agent's failed taint, unless something withholds that.
func (r *reporter) patchOpen(ctx context.Context, node *nodepatch.Node, o opening) error {
	withheld := func(node *nodepatch.Node) string { return cmp.Or(o.withheld(node), r.api.unmet(ctx, node)) }
	if why := withheld(node); why != "" {
		return errors.New(why)
	}
	record := verdict.Record{Opened: o.now.UTC().Format(time.RFC3339), Duration: formatDuration(time.Since(r.start)),
		Attempts: r.attempts, Version: r.version}
	o.request.Unmet = withheld
	o.request.AnnotationValue = func(node *nodepatch.Node, removed []nodepatch.Taint) string {
		record.Removed = nodepatch.FormatTaints(removed)
		return record.Keeping(node.Annotations[nodepatch.Annotation], r.cfg.FailedTaintKey).String()
	}
	removes := func(taint nodepatch.Taint) bool { return r.locks(taint) || r.isAgents(taint) }
	now, removed, err := r.api.patcher.Open(ctx, node, o.request, removes)
	if err != nil {
		return err
	}
	if r.follow(now); r.opened == record.Opened { // else somebody else was faster
		what := "removed " + strings.Join(nodepatch.FormatTaints(removed), ", ") + ", failed: " + strings.Join(o.failed, ", ")
		r.log.WithField("reason", what).Warn("node opened: it is not verified, and the checks go on")
		r.events.Add(kube.EventWarning, verdict.NodeOpened, "the node takes pods although it is not verified (ON_TIMEOUT): "+what)
	}
	return nil
}
