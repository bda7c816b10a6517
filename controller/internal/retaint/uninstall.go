package retaint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/pages"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// RemoveFailedTaints removes the failed taints that this release's controller has added, from all nodes: the release is being
// uninstalled. A node that cannot be patched keeps no other from losing its taint.
func RemoveFailedTaints(ctx context.Context, live client.Reader, patcher func(node string) *nodepatch.Patcher,
	settings fleet.Settings, log *slog.Logger) (failures error) {
	for nodes, err := range pages.Of(ctx, live, new(corev1.NodeList)) {
		if err != nil {
			return errors.Join(failures, fmt.Errorf("nodes: %w", err))
		}
		for i := range nodes.Items {
			name := nodes.Items[i].Name
			if !settings.IsRetainted(fleet.Taints(&nodes.Items[i])) {
				continue
			}
			if _, err := removeFailedTaint(ctx, patcher(name), settings); err != nil {
				failures = errors.Join(failures, fmt.Errorf("node %s: %w", name, err))
				continue
			}
			log.Info("failed taint removed", "node", name)
		}
	}
	return failures
}

// removeFailedTaint removes the failed taint of a node, if it is the one that this release's controller has added, and reports
// whether it was there.
func removeFailedTaint(ctx context.Context, patcher *nodepatch.Patcher, settings fleet.Settings) (removed bool, err error) {
	live, err := patcher.Get(ctx)
	if err != nil || !settings.IsRetainted(live.Spec.Taints) {
		return false, err
	}
	return true, patcher.RemoveFailedTaint(ctx, live, settings.Keys)
}
