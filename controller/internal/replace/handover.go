package replace

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// handOverAfter is how long the leader's own node must not be verified, so that a node which is verified anew, or a leader that
// has got the Lease back, does not change leaders at once.
const handOverAfter = time.Minute

// HandOver gives the Lease to a replica on a verified node: it ends this process, whose manager then releases the Lease. The
// replica does not give it back, because its own node is verified. If the restarted process is faster than the replica, it
// leads for another minute; kubelet then lets it wait longer and longer.
type HandOver struct {
	PodName, PodNamespace string
	Leave                 func() // ends this process
	Log                   *slog.Logger

	since time.Time // of the failure, zero: there is none
}

// consider is called with each decision. unverified is whether the controller's own node is.
func (h *HandOver) consider(ctx context.Context, reader client.Reader, plan fleet.Plan, unverified bool, now time.Time) {
	switch {
	case !unverified:
		h.since = time.Time{}
		return
	case h.since.IsZero():
		h.since = now
		return
	case now.Sub(h.since) < handOverAfter:
		return
	}
	h.since = now // not again before another minute
	name, node, err := h.replica(ctx, reader, plan)
	switch {
	case err != nil:
		h.Log.Warn("the replicas cannot be listed: this one stays the leader", "error", err)
	case name == "":
		h.Log.Warn("no replica is ready on a verified node: this one stays the leader")
	default:
		h.Log.Warn("this node is not verified: the Lease is released for a replica on a verified node", "replica", name, "node", node)
		h.Leave()
	}
}

// replica returns a ready replica on a verified node, or "".
func (h *HandOver) replica(ctx context.Context, reader client.Reader, plan fleet.Plan) (name, node string, err error) {
	var self, replicas corev1.PodList
	namespace := client.InNamespace(h.PodNamespace)
	if err := reader.List(ctx, &self, namespace, client.MatchingFields{"metadata.name": h.PodName}); err != nil {
		return "", "", err
	}
	if len(self.Items) == 0 {
		return "", "", nil
	}
	labels := client.MatchingLabels{}
	for _, key := range []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"} {
		labels[key] = self.Items[0].Labels[key]
	}
	if err := reader.List(ctx, &replicas, namespace, labels); err != nil {
		return "", "", err
	}
	verified := make(map[string]bool)
	for _, status := range plan.Statuses {
		verified[status.Node.Name] = status.State == fleet.Verified && status.Untouchable == ""
	}
	for i := range replicas.Items {
		if pod := &replicas.Items[i]; pod.Name != h.PodName && verified[pod.Spec.NodeName] && isReady(pod) {
			return pod.Name, pod.Spec.NodeName, nil
		}
	}
	return "", "", nil
}
