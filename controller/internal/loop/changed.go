package loop

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Changed filters the changes that decisions need: not kubelet's heartbeats, of which 5,000 nodes send 17 a second.
func Changed() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.DeepCopyObject().(client.Object)
		if ok {
			before.SetResourceVersion(e.ObjectNew.GetResourceVersion())
		}
		return !equality.Semantic.DeepEqual(before, e.ObjectNew)
	}}
}
