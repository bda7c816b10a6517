package worker

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
)

const (
	// nodeIndex is the cache's index of workers by the name of their node.
	nodeIndex = "node"
	// atOnce is how many nodes are looked at together.
	atOnce = 10
	// firstError and longestError are the waits after an error, which double.
	firstError   = 100 * time.Millisecond
	longestError = 10 * time.Second
)

// SetupWithManager lets every change of a node or worker lead to a step at once. Only the leader takes steps.
func (r *Reconciler) SetupWithManager(ctx context.Context, manager ctrl.Manager) error {
	r.passed = make(chan event.GenericEvent)
	r.nodes, r.waiting = make(map[string]memory), make(map[string]waiting)
	if err := manager.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeIndex, byNode); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(manager).Named("worker").
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}).
		Watches(&corev1.Pod{}, loop.OnChange(r.changed)).
		WatchesRawSource(source.Channel(r.passed, &handler.EnqueueRequestForObject{})).
		WithEventFilter(loop.Changed()).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: atOnce,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstError, longestError),
		}).
		Complete(r)
}

func byNode(object client.Object) []string {
	pod, _ := object.(*corev1.Pod) // the index is of pods
	return []string{fleet.NodeOf(pod)}
}

// changed turns a change of a worker into a step about its node. A worker that has ended gives its slot to the next node.
func (r *Reconciler) changed(q loop.Queue, object client.Object, gone bool) {
	pod, _ := object.(*corev1.Pod) // nothing else is watched with it
	add := func(node string) {
		if node != "" {
			q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
		}
	}
	add(fleet.NodeOf(pod))
	if gone || fleet.HasEnded(pod) {
		add(r.nextWaiting())
	}
}

// nextWaiting returns the node that may have the next slot, or "". It keeps its place where another one is faster.
func (r *Reconciler) nextWaiting() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	node := longest(r.waiting)
	if node != "" {
		called := r.waiting[node]
		called.called = true
		r.waiting[node] = called
	}
	return node
}
