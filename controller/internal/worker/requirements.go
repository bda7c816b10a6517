package worker

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// hold withholds a release while node does not show what REQUIRE demands. If the verdict has become too old in that time, another
// worker runs the checks again.
func (r *Reconciler) hold(ctx context.Context, node *corev1.Node, seen memory, decided *step, now time.Time) {
	pod := decided.release
	if pod == nil || r.Require == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	err, worker, unmet := r.Require(ctx, fleet.PatchNode(node)), seen.workers[pod.Name], ""
	if err != nil {
		unmet = checks.NodeName + ": " + err.Error() + " (" + checks.Remedy(err) + ")"
		r.rememberWorker(node.Name, pod.Name, func(s *workerState) { s.held = true })
		decided.release, decided.wait = nil, wait.Jitter(8*time.Second, 0.2) // a pod that becomes ready changes nothing in the caches
		if now.Sub(worker.ended) < 10*time.Second {
			decided.wait = wait.Jitter(2*time.Second, 0.2)
		}
		if !worker.held {
			r.Log.Error("node not verified", "node", node.Name, "worker", pod.Name, "reason", unmet)
			r.warn(node, pod, unmet)
		}
	} else if now.Sub(worker.ended) >= countsFor {
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
