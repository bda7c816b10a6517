// Package handover gives the Lease to a replica on a better node.
package handover

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
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
	act.Actor
	Fleet     fleet.Settings
	NodeName  string        // of this process
	Client    client.Reader // without a cache
	Namespace string
	Replicas  labels.Set // of the controller's pods
	Leave     func()     // ends this process

	since clock.Mark // of the failure, zero: there is none
}

// Start decides and acts until ctx ends. The manager calls it when this process has become the leader.
func (h *HandOver) Start(ctx context.Context) error { return h.Run(ctx, h.act) }

func (h *HandOver) act(ctx context.Context, plan fleet.Plan, now clock.Now) {
	unfit := breaker.Unfit(h.Fleet, plan.Statuses)
	switch {
	case unfit[h.NodeName] == "":
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

// replica returns a ready replica whose node is not one of unfit, as this process's node is, or "".
func (h *HandOver) replica(ctx context.Context, unfit map[string]string) (name, node string, err error) {
	var replicas corev1.PodList
	if err := h.Client.List(ctx, &replicas, client.InNamespace(h.Namespace), client.MatchingLabels(h.Replicas)); err != nil {
		return "", "", err
	}
	for i := range replicas.Items {
		pod := &replicas.Items[i]
		if unfit[pod.Spec.NodeName] == "" && fleet.IsReady(pod) {
			return pod.Name, pod.Spec.NodeName, nil
		}
	}
	return "", "", nil
}
