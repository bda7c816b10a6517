package breaker

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// handOverAfter is how long the leader's own node must not be verified, so that a node which is verified again, or a leader that
// has got the Lease back, does not change leaders at once.
const handOverAfter = time.Minute

// HandOver gives the Lease to a replica on a verified node, or on one that was never gated: it ends this process, whose manager
// then releases the Lease. The replica does not give it back. If the restarted process is faster than the replica, it leads for
// another minute; kubelet then lets it wait longer and longer.
type HandOver struct {
	Client    client.Reader // without a cache
	Namespace string
	Replicas  labels.Set // of the controller's pods
	Leave     func()     // ends this process
	Log       *slog.Logger

	since clock.Mark // of the failure, zero: there is none
}

// Consider is called with each decision; it does nothing if h is nil. unfit are the nodes that the controller must not decide
// from, own is its own.
func (h *HandOver) Consider(ctx context.Context, unfit map[string]string, own string, now clock.Now) {
	if h == nil {
		return
	}
	_, isUnfit := unfit[own]
	switch {
	case !isUnfit:
		h.since = clock.Mark{}
		return
	case h.since.IsZero():
		h.since = now.Mark()
		return
	case now.Since(h.since) < handOverAfter:
		return
	}
	h.since = now.Mark() // not again before another minute
	name, node, err := h.replica(ctx, unfit)
	switch {
	case err != nil:
		h.Log.Warn("cannot list the replicas: this replica stays the leader", "error", err)
	case name == "":
		h.Log.Warn("no replica is ready on a verified node: this replica stays the leader")
	default:
		h.Log.Warn("the controller's node is not verified, or fails its rechecks: a replica on a verified node becomes the leader",
			"replica", name, "node", node)
		h.Leave()
	}
}

// replica returns a ready replica on another node than those, which this process's own is one of, or "".
func (h *HandOver) replica(ctx context.Context, unfit map[string]string) (name, node string, err error) {
	var replicas corev1.PodList
	if err := h.Client.List(ctx, &replicas, client.InNamespace(h.Namespace), client.MatchingLabels(h.Replicas)); err != nil {
		return "", "", err
	}
	for i := range replicas.Items {
		pod := &replicas.Items[i]
		if _, isUnfit := unfit[pod.Spec.NodeName]; !isUnfit && fleet.IsReady(pod) {
			return pod.Name, pod.Spec.NodeName, nil
		}
	}
	return "", "", nil
}
