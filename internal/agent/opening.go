package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/internal/verification"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// opener opens one Node whose network fails (ON_TIMEOUT=open): it removes the startup taint without adding the label.
type opener struct{ *common }

// open opens the node, if nothing withholds that. The rounds go on.
func (o *opener) open(ctx context.Context, state verification.State, failed []string) (opened verification.Opened, err error) {
	node, err := o.access.Patcher.Get(ctx)
	if err != nil {
		return opened, err
	}
	now := o.access.Kube.ServerTime()
	unmet := func(n *nodepatch.Node) string { return cmp.Or(state.Withheld(n, now), o.access.Unmet(ctx, n)) }
	opened.Before = verification.Read(node, o.access.Keys)
	if !opened.Before.Locked {
		return opened, nil
	}
	if why := unmet(node); why != "" {
		return opened, errors.New(why)
	}
	opened.Why = "failed: " + strings.Join(failed, ", ")
	release := nodepatch.Release{Keys: o.keys(node), Unmet: unmet, Value: o.record(now)}
	node, _, err = o.access.Patcher.ReleaseCached(ctx, node, release)
	if err == nil {
		opened.Now = verification.Read(node, o.access.Keys)
	}
	return opened, err
}

// keys are those of a release, without the label, and without the failed taint of the controller.
func (o *opener) keys(node *nodepatch.Node) nodepatch.Keys {
	keys := o.access.Keys
	if !slices.ContainsFunc(node.Spec.Taints, o.access.IsAgents) {
		keys = keys.WithoutFailedTaint()
	}
	keys.Label = "" // not verified
	return keys
}

// record returns the annotation of a node that is opened now.
func (o *opener) record(now time.Time) func(*nodepatch.Node, []nodepatch.Taint) string {
	return func(node *nodepatch.Node, removed []nodepatch.Taint) string {
		made := record.Record{Opened: now.UTC().Truncate(time.Second), Removed: nodepatch.FormatTaints(removed), Version: o.version}
		return made.Keeping(node.Annotations[nodepatch.Annotation], o.cfg.FailedTaintKey).String()
	}
}
