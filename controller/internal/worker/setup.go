package worker

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
)

const (
	// nodeIndex is the cache's index of workers by the name of their node.
	nodeIndex = "node"
	// atOnce is how many nodes are reconciled together. Each call waits for its requests: with 10, and an API server that takes half
	// a second for one, six nodes a second are released.
	atOnce = 50
	// firstError and longestError are the waits after an error, which double.
	firstError   = 100 * time.Millisecond
	longestError = 10 * time.Second
)

// SetupWithManager queues a node with every change of it or of its workers. Only the leader reconciles.
func (r *Reconciler) SetupWithManager(ctx context.Context, manager ctrl.Manager) error {
	r.prepare()
	if err := manager.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeIndex, byNode); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(manager).Named("worker").
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(loop.Changed())).
		Watches(&corev1.Pod{}, loop.OnChange(r.workerChanged)).
		WatchesRawSource(source.Func(func(_ context.Context, q loop.Queue) error {
			r.queue = q
			return nil
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: atOnce,
			RecoverPanic:            new(false), // a panic that is only logged would look like nodes that wait
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstError, longestError),
		}).
		Complete(r)
}

// prepare makes the state that outlives a call.
func (r *Reconciler) prepare() {
	r.memories, r.patching = &memories{now: r.Now, nodes: make(map[string]memory)}, make(chan struct{}, atOnce/2)
	r.slots = newSlots(r.Settings.MaxWorkers, r.Now, r.memories.outcome, func(node string) { add(r.queue, node, 0) })
}

func byNode(object client.Object) []string {
	pod, _ := object.(*corev1.Pod) // the index is of pods
	if !isWorker(pod) {
		return nil
	}
	return []string{fleet.NodeOf(pod)}
}

// workerChanged notes a change of a worker in slots, and queues its node. No node is reconciled before each worker in the cache
// was here once.
func (r *Reconciler) workerChanged(q loop.Queue, object client.Object, gone bool) {
	pod, _ := object.(*corev1.Pod) // nothing else is watched with it
	priority := 0
	outcome, hadSlot := r.slots.observe(pod, gone)
	if outcome == fleet.Passed {
		priority = 1
		if hadSlot {
			r.memories.attemptPassed(fleet.Attempt(pod))
		}
	}
	add(q, fleet.NodeOf(pod), priority)
}

// add queues a node. Nodes whose workers have passed come before all others, with priority 1.
func add(q loop.Queue, node string, priority int) {
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
	queue, _ := q.(priorityqueue.PriorityQueue[reconcile.Request]) // controller-runtime has no other queue
	queue.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, request)
}
