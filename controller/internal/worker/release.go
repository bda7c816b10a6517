package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// patchAttempts is the time limit of all attempts of one patch together, in timeouts of one request.
const patchAttempts = 10

// release releases node by the verdict of a worker, which was created at since.
func (r *Reconciler) release(ctx context.Context, node *corev1.Node, worker *corev1.Pod, since time.Time) error {
	_, said := fleet.WorkerOutcome(worker)
	request := r.Fleet.Request
	took := time.Since(since).Round(time.Millisecond)
	request.Unmet = func(node *nodepatch.Node) string { return r.Require(ctx, node) } // the cache may be behind
	request.AnnotationValue = func(removed []nodepatch.Taint) string {
		return verdict.Record{Time: time.Now().UTC().Format(time.RFC3339), Duration: took.String(), Attempts: said.Attempts,
			Removed: nodepatch.FormatTaints(removed), Version: r.Version, Worker: worker.UID, BootID: node.Status.NodeInfo.BootID,
		}.Keeping(node.Annotations[request.Annotation], request.FailedTaintKey).String()
	}
	log := r.Log.With("node", node.Name, "worker", worker.Name)
	released, removed, err := r.patcher(node.Name).ReleaseCached(ctx, fleet.PatchNode(node), request)
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
	r.remember(node.Name, func(m *memory) {
		m.released, m.releasedVersion, m.releasedAt = worker.UID, released.ResourceVersion, time.Now()
	})
	what := "no startup taint found"
	if len(removed) > 0 {
		what = "removed " + strings.Join(nodepatch.FormatTaints(removed), ", ")
	}
	log.Info("node verified", "took", took.String(), "taints", what)
	r.Events.Eventf(node, worker, corev1.EventTypeNormal, verdict.NodeVerified, "Verify",
		"%s; verified in %s; %s", verdict.AllChecksPass, took, what)
	return nil
}

// removeTaint removes a startup taint that was added again after the release.
func (r *Reconciler) removeTaint(ctx context.Context, node *corev1.Node) error {
	removed, err := r.patcher(node.Name).RemoveAgain(ctx, node.UID, r.Fleet.Request)
	if err != nil {
		return fmt.Errorf("node %s: cannot remove the startup taint that was added again: %w", node.Name, err)
	}
	if len(removed) > 0 {
		r.Log.Warn("startup taint was added again after the release: removed it", "node", node.Name,
			"taints", strings.Join(nodepatch.FormatTaints(removed), ", "))
	}
	return nil
}

func (r *Reconciler) patcher(node string) *nodepatch.Patcher {
	return &nodepatch.Patcher{
		Node: r.Node(node), Timeout: r.Timeout, Deadline: patchAttempts * r.Timeout,
		Retried: func(err error) {
			r.Log.Warn("patch not applied, will retry with the current node", "node", node, "error", err)
		},
	}
}

// hold withholds a release while node does not show what REQUIRE demands. If the verdict has become too old in that time, another
// worker runs the checks again.
func (r *Reconciler) hold(ctx context.Context, node *corev1.Node, seen memory, decided *step, now time.Time) {
	pod := decided.release
	if pod == nil {
		return
	}
	worker, unmet := seen.workers[pod.Name], r.Require(ctx, fleet.PatchNode(node))
	switch age := now.Sub(worker.ended); {
	case unmet != "":
		if !worker.held {
			r.Log.Error("node not verified", "node", node.Name, "worker", pod.Name, "reason", unmet)
			r.warn(node, pod, unmet)
		}
		r.rememberWorker(node.Name, pod.Name, func(s *workerState) { s.held = true })
		// A pod that becomes ready changes nothing in the caches.
		decided.release, decided.wait = nil, wait.Jitter(min(max(age/5, 2*time.Second), 8*time.Second), 0.2)
	case age >= countsFor:
		decided.release, decided.create, decided.first = nil, fleet.Attempt(pod), pod.Annotations[fleet.FirstAnnotation]
	}
	r.remember(node.Name, func(m *memory) { m.unmet = unmet })
}

// Unmet says what node does not show although its worker has passed, or "".
func (r *Reconciler) Unmet(node string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[node].unmet
}
