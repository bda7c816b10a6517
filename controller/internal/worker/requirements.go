package worker

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// hold withholds a release while node does not show what REQUIRE demands. If the verdict has become too old in that time, another
// worker runs the checks again.
func (r *Reconciler) hold(ctx context.Context, node *corev1.Node, seen memory, decided *step, now time.Time) {
	pod := decided.release
	if pod == nil || r.Require == nil {
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
