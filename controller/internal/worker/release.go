package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// reportedRemoval is the removal in a row that an Event reports.
const reportedRemoval = 5

// patch releases a node, or removes its startup taint again. It returns the step with the wait that follows, and with the worker
// that has released the node among those to delete.
func (r *Reconciler) patch(ctx context.Context, v view, decided step) (after step, err error) {
	if v.memory.tries.inARow > 0 {
		select {
		case r.patching <- struct{}{}:
			defer func() { <-r.patching }()
		default:
			decided.wait = jitter(firstRelease, 100*firstRelease)
			return decided, nil
		}
	}
	hasHelped := false
	switch action := decided.action.(type) {
	case removal:
		decided.wait = firstRemoval // the cache may show the taint all the time
		err = r.removeTaint(ctx, v)
	case release:
		err = r.release(ctx, v, action.by)
		if hasHelped = err == nil; hasHelped {
			decided.delete = append(decided.delete, action.by)
		}
	}
	r.memories.nodePatched(v.node.Name, hasHelped)
	return decided, err
}

// release releases a node by the verdict of a worker.
func (r *Reconciler) release(ctx context.Context, v view, pod *corev1.Pod) error {
	node, keys := v.node, r.Settings.Fleet.Keys
	_, said := fleet.WorkerOutcome(pod)
	took := r.Now().Since(v.memory.workers[pod.Name].first).Round(time.Millisecond)
	unmet := func(node *nodepatch.Node) string { return r.Require(ctx, node) } // the cache may be behind
	value := func(now *nodepatch.Node, removed []nodepatch.Taint) string {
		return record.Record{Time: time.Now().UTC().Format(time.RFC3339), Duration: took.String(), Attempts: said.Attempts,
			Removed: nodepatch.FormatTaints(removed), Version: r.Settings.Version, Worker: pod.UID, BootID: node.Status.NodeInfo.BootID,
			Required: r.Settings.Required.For(now),
		}.Keeping(node.Annotations[nodepatch.Annotation], keys.FailedTaintKey).String()
	}
	log := r.Log.With("node", node.Name, "worker", pod.Name)
	removed, err := r.send(ctx, node, nodepatch.Release{Keys: keys, Unmet: unmet, Value: value})
	switch {
	case errors.Is(err, nodepatch.ErrBlocked), errors.Is(err, nodepatch.ErrReplaced), errors.Is(err, nodepatch.ErrOutdated):
		log.Info("the controller ignores the verdict: the checks start over", "reason", err)
		r.memories.raiseFate(node.Name, pod.Name, voided)
		return nil
	case err != nil:
		if ctx.Err() == nil {
			r.warn(node, pod, "all checks pass, but the release failed: "+err.Error())
		}
		return fmt.Errorf("release of node %s: %w", node.Name, err)
	}
	r.memories.nodeReleased(node.Name)
	what := "no startup taint found"
	if len(removed) > 0 {
		what = "removed " + strings.Join(nodepatch.FormatTaints(removed), ", ")
	}
	log.Info("node verified", "took", took.String(), "taints", what)
	r.Events.Eventf(node, pod, corev1.EventTypeNormal, verdict.NodeVerified, "Verify",
		"%s; verified in %s; %s", verdict.AllChecksPass, took, what)
	return nil
}

// removeTaint removes a startup taint that was added again after the release.
func (r *Reconciler) removeTaint(ctx context.Context, v view) error {
	node := v.node
	keepRecord := func(now *nodepatch.Node, _ []nodepatch.Taint) string { return now.Annotations[nodepatch.Annotation] }
	if v.memory.tries.inARow+1 == reportedRemoval {
		r.Events.Eventf(node, nil, corev1.EventTypeWarning, verdict.NodeNotVerified, "Verify", "the startup taint is put back again "+
			"and again, or cannot be removed: pauses grow to %s; read metadata.managedFields and the controller's log", longestRemoval)
	}
	removed, err := r.send(ctx, node, nodepatch.Release{Keys: r.Settings.Fleet.Keys, Value: keepRecord})
	if err != nil {
		return fmt.Errorf("node %s: cannot remove the startup taint that was added again: %w", node.Name, err)
	}
	r.Log.Warn("startup taint was added again after the release: removed it", "node", node.Name,
		"taints", strings.Join(nodepatch.FormatTaints(removed), ", "))
	return nil
}

// send sends a release, and notes the Node that the API server has shown.
func (r *Reconciler) send(ctx context.Context, node *corev1.Node, release nodepatch.Release) ([]nodepatch.Taint, error) {
	patcher := &nodepatch.Patcher{Node: r.Node(node.Name), Timeout: r.Timeout, Deadline: r.Timeout, Retried: func(err error) {
		r.Log.Warn("patch not applied, will retry with the current node", "node", node.Name, "error", err)
	}}
	shown, removed, err := patcher.ReleaseCached(ctx, fleet.PatchNode(node), release)
	if shown != nil {
		r.memories.nodeShown(node.Name, shown.ResourceVersion)
	}
	return removed, err
}
