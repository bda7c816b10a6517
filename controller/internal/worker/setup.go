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
	// atOnce is how many nodes are looked at together. Each look waits for its requests: with 10, and an API server that takes half
	// a second for one, six nodes a second are released.
	atOnce = 50
	// firstError and longestError are the waits after an error, which double.
	firstError   = 100 * time.Millisecond
	longestError = 10 * time.Second
)

// SetupWithManager lets every change of a node or worker lead to a step at once. Only the leader takes steps.
func (r *Reconciler) SetupWithManager(ctx context.Context, manager ctrl.Manager) error {
	r.prepare()
	if err := manager.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeIndex, byNode); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(manager).Named("worker").
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(loop.Changed())).
		Watches(&corev1.Pod{}, loop.OnChange(r.changed)).
		WatchesRawSource(source.Func(func(_ context.Context, q loop.Queue) error {
			r.queue = q
			return nil
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: atOnce,
			RecoverPanic:            new(false), // one that is logged only would look like nodes that wait
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstError, longestError),
		}).
		Complete(r)
}

// prepare makes what Reconcile works with.
func (r *Reconciler) prepare() {
	r.nodes, r.patching = make(map[string]memory), make(chan struct{}, atOnce/2)
	r.slots = newSlots(r.Settings.MaxWorkers, r.Now, func(node string) { add(r.queue, node, 0) })
}

func byNode(object client.Object) []string {
	pod, _ := object.(*corev1.Pod) // the index is of pods
	if !isWorker(pod) {
		return nil
	}
	return []string{fleet.NodeOf(pod)}
}

// changed turns a change of a worker into a step about its node. It counts the slots: no node is looked at before each worker of
// the cache was here once.
func (r *Reconciler) changed(q loop.Queue, object client.Object, gone bool) {
	pod, _ := object.(*corev1.Pod) // nothing else is watched with it
	node, priority := fleet.NodeOf(pod), 0
	r.mu.Lock()
	defer r.mu.Unlock()
	outcome := r.nodes[node].states[pod.Name].outcome(pod)
	hadSlot := r.slots.see(pod, outcome, gone)
	if outcome == fleet.Passed {
		priority = 1
		if hadSlot && fleet.Attempt(pod) > 2 { // a second attempt says little: the network of new nodes comes late
			r.healed = r.Now().Mark()
		}
	}
	add(q, node, priority)
}

// add puts a node into the queue. Nodes whose workers have passed come before all others: their priority is 1.
func add(q loop.Queue, node string, priority int) {
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
	queue, _ := q.(priorityqueue.PriorityQueue[reconcile.Request]) // controller-runtime has no other queue
	queue.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, request)
}
