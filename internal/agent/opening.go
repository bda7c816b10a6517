package agent

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
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

// opensOver is over how long the nodes are opened that begin to fail together.
const opensOver = 10 * time.Second

// opener opens one Node whose network fails (ON_TIMEOUT=open): it removes the startup taint without adding the label.
type opener struct {
	cfg     config.Config
	version string
	log     *logrus.Entry
	metrics *metrics.Recorder
	events  *kube.Events
	access  *nodeAccess
	checked *nodepatch.Node // the one that the last round has read; nil: nobody knows
	at      time.Time       // when the node may be opened; zero: its network checks have not failed
	why     string          // a patch was sent that opens the node for this reason, and that is not reported yet
	before  time.Time       // the opening that the record had then
	done    time.Time       // when the node was opened, as its record has it; zero: it is not open
}

// begin forgets all about the Node before.
func (o *opener) begin(checked *nodepatch.Node) {
	o.checked, o.at, o.why, o.done = checked, time.Time{}, "", time.Time{}
}

// noteNetwork notes when the node may be opened: INITIAL_TIMEOUT after the first network check has failed since all of them
// passed. It reports whether this attempt was the first to fail.
func (o *opener) noteNetwork(attempt checks.Attempt) (isFirst bool) {
	hasFailed := attempt.Err != nil && isNetworkCheck(attempt.Check)
	if !slices.Contains(o.cfg.OnTimeout, config.OnTimeoutOpen) || !hasFailed || !o.at.IsZero() {
		return false
	}
	o.at = time.Now().Add(o.cfg.InitialTimeout - attempt.Took + rand.N(opensOver))
	return true
}

// forgetFailure forgets when the network checks have begun to fail.
func (o *opener) forgetFailure() { o.at = time.Time{} }

// takeRound takes the Node that a round has read (nil: unknown). See follow.
func (o *opener) takeRound(node *nodepatch.Node) (isTaintBack bool) {
	o.checked = node
	return node != nil && o.follow(node)
}

// follow notes from a read whether node is open. An opening is reported once, also where the answer to its patch was lost. It
// reports whether the startup taint is back on the opened node: then it is not open any more. A read that is older than the
// opening also shows the startup taint, but not the record of the opening.
func (o *opener) follow(node *nodepatch.Node) (isTaintBack bool) {
	last, _ := record.Parse(node.Annotations[nodepatch.Annotation])
	isLocked := o.isLocked(node)
	isTaintBack = isLocked && !o.done.IsZero() && o.done.Equal(last.Opened)
	switch {
	case isTaintBack:
		o.begin(o.checked)
	case !isLocked:
		o.done = last.Opened
	}
	isOpen := !o.done.IsZero()
	o.metrics.Opened(isOpen)
	if isOpen && o.why != "" && !o.done.Equal(o.before) {
		o.log.WithField("reason", o.why).Warn("node opened: it is not verified, and the checks go on")
		o.events.Add(kube.EventWarning, verdict.NodeOpened, "the node takes pods although it is not verified (ON_TIMEOUT): "+o.why)
		o.why = ""
	}
	return isTaintBack
}

// isLocked reports whether node has a startup taint, under its present key or a former one.
func (o *opener) isLocked(node *nodepatch.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, o.access.keys.WithoutFailedTaint().Removes)
}

// isDue reports whether the node may be opened now, and is not open.
func (o *opener) isDue() bool { return o.done.IsZero() && !o.at.IsZero() && !time.Now().Before(o.at) }

// open opens the node, if nothing withholds that. The rounds go on.
func (o *opener) open(ctx context.Context, failed []string) error {
	node, err := o.access.patcher.Get(ctx)
	if err == nil {
		o.follow(node) // the answer to the last patch may have been lost, or somebody else has removed the taint
		if o.isLocked(node) {
			err = o.patch(ctx, node, failed)
		}
	}
	if err != nil {
		o.log.WithError(err).Warn("the node is not opened, will retry (ON_TIMEOUT)")
	}
	return err
}

// patch removes what a release removes, but not the controller's failed taint. A Node that changes is judged again.
func (o *opener) patch(ctx context.Context, node *nodepatch.Node, failed []string) error {
	now := o.access.kube.ServerTime()
	unmet := func(n *nodepatch.Node) string {
		return cmp.Or(withheld(o.cfg, n, o.checked, now), o.access.unmet(ctx, n))
	}
	if why := unmet(node); why != "" {
		return errors.New(why)
	}
	keys := o.access.keys
	if !slices.ContainsFunc(node.Spec.Taints, o.access.isAgents) {
		keys = keys.WithoutFailedTaint()
	}
	keys.Label = "" // not verified
	value := func(node *nodepatch.Node, removed []nodepatch.Taint) string {
		opening := record.Record{Opened: now.UTC().Truncate(time.Second), Removed: nodepatch.FormatTaints(removed), Version: o.version}
		return opening.Keeping(node.Annotations[nodepatch.Annotation], o.cfg.FailedTaintKey).String()
	}
	earlier, _ := record.Parse(node.Annotations[nodepatch.Annotation])
	o.why, o.before = "failed: "+strings.Join(failed, ", "), earlier.Opened
	opened, _, err := o.access.patcher.ReleaseCached(ctx, node, nodepatch.Release{Keys: keys, Unmet: unmet, Value: value})
	if err == nil {
		o.follow(opened)
	}
	return err
}

// withheld says why node is not opened (ON_TIMEOUT=open), or "": its startup taint may be removed, without the label. The checks
// have run for the Node as checked (nil: nobody knows). now is by the API server's clock; zero: it is not known.
func withheld(cfg config.Config, node, checked *nodepatch.Node, now time.Time) string {
	last, _ := record.Parse(node.Annotations[nodepatch.Annotation])
	switch {
	case checked == nil || checked.UID != node.UID:
		return "the checks have run for another Node"
	case cfg.Keys().IsVerified(node.Labels, nil) || node.DeletionTimestamp != nil:
		return "the node has the label, or is being deleted"
	case min(now.Sub(node.CreationTimestamp.Time), now.Sub(last.Opened)) < cfg.InitialTimeout:
		return "INITIAL_TIMEOUT has not passed by the API server's clock"
	case cfg.Keys().ForeignTaint(node.Spec.Taints) != nil:
		return "a foreign taint is still on the node (WAIT_FOR_TAINTS)"
	}
	return ""
}
