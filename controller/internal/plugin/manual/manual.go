// Package manual verifies nodes again and removes their taints on request.
package manual

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/livenode"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Patcher changes nodes, one after another. A node that cannot be changed is reported, and the others are changed all the same.
type Patcher struct {
	Settings fleet.Settings
	Client   client.Client
	Now      func() time.Time // by the API server's clock
	Out      io.Writer
}

// Verify removes the label of nodes, so that they are verified again. It leaves nodes alone that no agent would verify.
func (p Patcher) Verify(ctx context.Context, names []string) error {
	return p.each(names, func(name string, patcher *nodepatch.Patcher) (string, error) {
		var node corev1.Node
		if err := p.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return "", err
		}
		if !p.Settings.Rules.Select(&node) {
			return "", errors.New("the release's node rules or its tolerations exclude this node: nobody would verify it again")
		}
		unlabelled := node.DeepCopy()
		delete(unlabelled.Labels, p.Settings.Keys.Label)
		if p.Settings.Workers && !p.Settings.IsGated(unlabelled) {
			return "", errors.New("no startup taint was removed from it by a release or by `open`: with deploymentMode=controller " +
				"it would get no worker; add the startup taint to verify it")
		}
		removed, err := patcher.RemoveLabel(ctx, fleet.PatchNode(&node), p.Settings.Keys)
		if err == nil && !removed {
			return "has no label " + p.Settings.Keys.Label + ": nothing to do, it is not verified", nil
		}
		return "label " + p.Settings.Keys.Label + " removed: its checks start again", err
	})
}

// Open removes the startup taint and the failed taint of nodes, and notes the time on them: re-taint waits for its cool-down.
func (p Patcher) Open(ctx context.Context, names []string) error {
	return p.each(names, func(_ string, patcher *nodepatch.Patcher) (string, error) {
		base, err := patcher.Get(ctx)
		if err != nil {
			return "", err
		}
		removed, err := patcher.RemoveTaints(ctx, base, p.Settings.Keys, p.Now().UTC().Format(time.RFC3339))
		if err == nil && len(removed) == 0 {
			return "has none of the taints: nothing to do", nil
		}
		return "removed " + strings.Join(nodepatch.FormatTaints(removed), ", "), err
	})
}

// Tainted returns the names of the nodes that Open would change, a text for each node that is left to another release, and the
// names of those that may be of a release that could not be read.
func Tainted(nodes []corev1.Node, of installation.Release) (names, left, doubtful []string) {
	for i := range nodes {
		var other *installation.Release
		isTainted, isOwn, isDoubtful := false, false, false
		for _, taint := range fleet.Taints(&nodes[i]) {
			if of.Settings.Keys.Removes(taint) {
				elsewhere, unseen := of.RemovedElsewhere(&nodes[i], taint.Key)
				// If the release does not know its own nodes either, all that may be its own are opened.
				isUnseen := elsewhere == nil && unseen != nil && of.Known >= installation.NodeRules
				isOwn = isOwn || elsewhere == nil && !isUnseen
				isTainted, isDoubtful, other = true, isDoubtful || isUnseen, cmp.Or(elsewhere, other)
			}
		}
		switch name := nodes[i].Name; { // Open removes every taint, so a single one of another release's counts
		case isOwn && (of.Selects(&nodes[i]) || other == nil && !isDoubtful):
			names = append(names, name)
		case other != nil:
			left = append(left, "node "+name+": left to the release "+other.Name)
		case isTainted:
			doubtful = append(doubtful, name)
		}
	}
	return names, left, doubtful
}

// each changes each node, prints what was done, and returns all errors.
func (p Patcher) each(names []string, do func(name string, patcher *nodepatch.Patcher) (string, error)) (failures error) {
	for _, name := range names {
		node := livenode.API{Client: p.Client, Name: name}
		done, err := do(name, &nodepatch.Patcher{Node: node, Timeout: 10 * time.Second, Deadline: 30 * time.Second})
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("node %s: %w", name, err))
			continue
		}
		_, _ = fmt.Fprintf(p.Out, "node %s: %s\n", name, done)
	}
	return failures
}
