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

// opensOver is over how long the nodes are opened that begin to fail together.
const opensOver = 10 * time.Second

// opening is what an agent knows of the opening of its node (ON_TIMEOUT=open).
type opening struct {
	at   time.Time // when the node may be opened; zero: its network checks have not failed
	why  string    // a patch was sent that opens the node for this reason, and that is not reported yet
	done time.Time // when the node was opened, as its record has it; zero: it is not open
}

// withheld says why node is not opened (ON_TIMEOUT=open), or "": its startup taint may be removed, without the label. The checks
// have run for the Node as checked (nil: nobody knows). now is by the API server's clock; zero: it is not known.
func withheld(cfg config.Config, node, checked *nodepatch.Node, now time.Time) string {
	record, _ := verdict.ParseRecord(node.Annotations[nodepatch.Annotation])
	switch {
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
	r.marker.timedOut, r.timeout, r.opening = false, time.After(r.cfg.InitialTimeout), opening{}
	r.metrics.TimedOut(false)
}

// noteNetwork notes when the node may be opened: INITIAL_TIMEOUT after the first network check has failed since all of them
// passed.
func (r *reporter) noteNetwork(attempt checks.Attempt) {
	fails := attempt.Err != nil && isNetworkCheck(attempt.Check)
	if !r.marker.uses(config.OnTimeoutOpen) || !fails || !r.opening.at.IsZero() {
		return
	}
	r.opening.at = time.Now().Add(r.cfg.InitialTimeout - attempt.Took + rand.N(opensOver))
	if r.marker.timedOut && r.timeout == nil { // else reportTimeout is due, and looks at it
		r.timeout = time.After(time.Until(r.opening.at))
	}
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
		r.opening.done = record.Opened
	} else if !r.opening.done.IsZero() && r.opening.done.Equal(record.Opened) {
		r.log.Warn("the startup taint is back on the opened node: INITIAL_TIMEOUT begins again")
		r.beginTimeout()
	}
	r.metrics.Opened(!r.opening.done.IsZero())
	return isLocked
}

// open opens the node, if it is time and nothing withholds that. The rounds go on. It reports whether nothing is left to do now.
func (r *reporter) open(ctx context.Context, failed []string) (done bool) {
	if !r.marker.timedOut || !r.opening.done.IsZero() || r.opening.at.IsZero() || time.Now().Before(r.opening.at) {
		return true
	}
	node, err := r.access.patcher.Get(ctx)
	if err == nil && r.follow(node) && r.marker.timedOut { // follow may have begun INITIAL_TIMEOUT again
		err = r.patchOpen(ctx, node, failed)
	}
	if err != nil {
		r.log.WithError(err).Warn("the node is not opened, will retry (ON_TIMEOUT)")
	}
	if r.opening.why != "" && !r.opening.done.IsZero() { // a patch whose answer was lost may have opened it
		r.log.WithField("reason", r.opening.why).Warn("node opened: it is not verified, and the checks go on")
		r.events.Add(kube.EventWarning, verdict.NodeOpened,
			"the node takes pods although it is not verified (ON_TIMEOUT): "+r.opening.why)
		r.opening.why = ""
	}
	return err == nil
}

// patchOpen removes what a release removes, but not the controller's failed taint. A Node that changes is judged again.
func (r *reporter) patchOpen(ctx context.Context, node *nodepatch.Node, failed []string) error {
	now := r.access.kube.ServerTime()
	unmet := func(n *nodepatch.Node) string {
		return cmp.Or(withheld(r.cfg, n, r.checked, now), r.access.unmet(ctx, n))
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
	r.opening.why = "failed: " + strings.Join(failed, ", ")
	opened, _, err := r.access.patcher.ReleaseCached(ctx, node, nodepatch.Release{Keys: keys, Unmet: unmet, Value: value})
	if err == nil {
		r.follow(opened)
	}
	return err
}
