package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// firstRelease and longestRelease are the waits after a release that failed.
	firstRelease   = 100 * time.Millisecond
	longestRelease = 30 * time.Second
	// firstRemoval and longestRemoval are the waits after the removal of a startup taint that is put back.
	firstRemoval   = 2 * time.Second
	longestRemoval = 5 * time.Minute
	// reportedRemoval is the removal that an Event tells of.
	reportedRemoval = 5
)

// patch releases a node, or removes its startup taint again. Nodes whose last patch did not help have half of the places at most:
// the answer to the next one may take as long as a request may.
func (r *Reconciler) patch(ctx context.Context, node *corev1.Node, seen memory, decided *step) (err error) {
	if seen.patches > 0 {
		select {
		case r.slots.patching <- struct{}{}:
			defer func() { <-r.slots.patching }()
		default:
			decided.wait = wait.Jitter(firstRelease, 100)
			return nil
		}
	}
	patches := seen.patches + 1
	if decided.removeTaint {
		decided.wait, err = firstRemoval, r.removeTaint(ctx, node, patches) // the cache may show the taint all the time
	} else if err = r.release(ctx, node, decided.release, seen.workers[decided.release.Name].first); err == nil {
		patches, decided.delete = 0, append(decided.delete, decided.release)
	}
	r.remember(node.Name, func(m *memory) { m.patches, m.patchedAt = patches, clock.Own() })
	return err
}

// release releases node by the verdict of a worker, which was created at since.
func (r *Reconciler) release(ctx context.Context, node *corev1.Node, worker *corev1.Pod, since clock.Mark) error {
	_, said := fleet.WorkerOutcome(worker)
	request := r.Fleet.Request
	took := r.Now().Since(since).Round(time.Millisecond)
	request.Unmet = func(node *nodepatch.Node) string { return r.Require(ctx, node) } // the cache may be behind
	request.AnnotationValue = func(_ *nodepatch.Node, removed []nodepatch.Taint) string {
		return verdict.Record{Time: time.Now().UTC().Format(time.RFC3339), Duration: took.String(), Attempts: said.Attempts,
			Removed: nodepatch.FormatTaints(removed), Version: r.Version, Worker: worker.UID, BootID: node.Status.NodeInfo.BootID,
		}.Keeping(node.Annotations[request.Annotation], request.FailedTaintKey).String()
	}
	log := r.Log.With("node", node.Name, "worker", worker.Name)
	now, removed, err := r.patcher(node.Name).ReleaseCached(ctx, fleet.PatchNode(node), request)
	r.rememberNewest(node.Name, now)
	switch {
	case errors.Is(err, nodepatch.ErrBlocked), errors.Is(err, nodepatch.ErrReplaced), errors.Is(err, nodepatch.ErrOutdated):
		log.Info("the controller ignores the verdict: the checks start over", "reason", err)
		r.rememberWorker(node.Name, worker.Name, func(s *workerState) { s.void = true })
		return nil
	case err != nil:
		if ctx.Err() == nil {
			r.warn(node, worker, "all checks pass, but the release failed: "+err.Error())
		}
		return fmt.Errorf("release of node %s: %w", node.Name, err)
	}
	r.remember(node.Name, func(m *memory) { m.released, m.releasedAt = worker.UID, clock.Own() })
	what := "no startup taint found"
	if len(removed) > 0 {
		what = "removed " + strings.Join(nodepatch.FormatTaints(removed), ", ")
	}
	log.Info("node verified", "took", took.String(), "taints", what)
	r.Events.Eventf(node, worker, corev1.EventTypeNormal, verdict.NodeVerified, "Verify",
		"%s; verified in %s; %s", verdict.AllChecksPass, took, what)
	return nil
}

// removeTaint removes a startup taint that was added again after the release, which it does for the n-th time in a row.
func (r *Reconciler) removeTaint(ctx context.Context, node *corev1.Node, n int) error {
	request := r.Fleet.Request
	// The record stays.
	request.AnnotationValue = func(*nodepatch.Node, []nodepatch.Taint) string { return node.Annotations[request.Annotation] }
	if n == reportedRemoval {
		r.Events.Eventf(node, nil, corev1.EventTypeWarning, verdict.NodeNotVerified, "Verify", "the startup taint is put back again "+
			"and again, or cannot be removed: pauses grow to %s; read metadata.managedFields and the controller's log", longestRemoval)
	}
	now, removed, err := r.patcher(node.Name).ReleaseCached(ctx, fleet.PatchNode(node), request)
	r.rememberNewest(node.Name, now)
	if err != nil {
		return fmt.Errorf("node %s: cannot remove the startup taint that was added again: %w", node.Name, err)
	}
	r.Log.Warn("startup taint was added again after the release: removed it", "node", node.Name,
		"taints", strings.Join(nodepatch.FormatTaints(removed), ", "))
	return nil
}

// rememberNewest remembers that the API server has shown a Node, nil: none.
func (r *Reconciler) rememberNewest(name string, node *nodepatch.Node) {
	if node != nil {
		r.remember(name, func(m *memory) { m.newest, m.newestAt = node.ResourceVersion, clock.Own() })
	}
}

func (r *Reconciler) patcher(node string) *nodepatch.Patcher {
	return &nodepatch.Patcher{
		Node: r.Node(node), Timeout: r.Timeout, Deadline: r.Timeout,
		Retried: func(err error) {
			r.Log.Warn("patch not applied, will retry with the current node", "node", node, "error", err)
		},
	}
}

// hold withholds a release while node does not show what REQUIRE demands. If the verdict has become too old in that time, another
// worker runs the checks again.
func (r *Reconciler) hold(ctx context.Context, node *corev1.Node, workers []*corev1.Pod, seen memory, decided *step) {
	pod := decided.release
	if pod == nil {
		return
	}
	worker, unmet := seen.workers[pod.Name], r.Require(ctx, fleet.PatchNode(node))
	switch age := r.Now().Since(worker.ended); {
	case unmet != "":
		if !worker.held {
			r.Log.Error("node not verified", "node", node.Name, "worker", pod.Name, "reason", unmet)
			r.warn(node, pod, unmet)
		}
		r.rememberWorker(node.Name, pod.Name, func(s *workerState) { s.held = true })
		// A pod that becomes ready changes nothing in the caches.
		decided.release, decided.wait = nil, wait.Jitter(min(max(age/5, 2*time.Second), 8*time.Second), 0.2)
	case age >= countsFor:
		decided.release, decided.wait = nil, cacheDelay
		if !seen.expectsWorker(workers) {
			decided.create, decided.first = fleet.Attempt(pod), pod.Annotations[fleet.FirstAnnotation]
		}
	}
	r.remember(node.Name, func(m *memory) { m.unmet = unmet })
}

// Unmet says what node does not show although its worker has passed, or "".
func (r *Reconciler) Unmet(node string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[node].unmet
}
