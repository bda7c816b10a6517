package loop

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Queue is what a controller takes its requests from.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// OnChange lets add put requests into the queue for each object that is there or has changed, or is gone.
func OnChange(add func(q Queue, object client.Object, gone bool)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q Queue) { add(q, e.Object, false) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q Queue) { add(q, e.ObjectNew, false) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q Queue) { add(q, e.Object, true) },
	}
}

// Changed filters the changes that decisions need: not kubelet's heartbeats, of which 5,000 nodes send 17 a second.
func Changed() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, _ := e.ObjectOld.DeepCopyObject().(client.Object) // the copy of an object is one
		before.SetResourceVersion(e.ObjectNew.GetResourceVersion())
		return !equality.Semantic.DeepEqual(before, e.ObjectNew)
	}}
}
