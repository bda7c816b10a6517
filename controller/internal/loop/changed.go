package loop

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Changed filters the changes that decisions need: not kubelet's heartbeats, of which 5,000 nodes send 17 a second.
func Changed() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		switch after := e.ObjectNew.(type) {
		case *corev1.Node:
			if before, ok := e.ObjectOld.(*corev1.Node); ok {
				same := *before
				same.ResourceVersion = after.ResourceVersion
				return !equality.Semantic.DeepEqual(&same, after)
			}
		case *corev1.Pod:
			if before, ok := e.ObjectOld.(*corev1.Pod); ok {
				same := *before
				same.ResourceVersion = after.ResourceVersion
				return !equality.Semantic.DeepEqual(&same, after)
			}
		}
		return true
	}}
}
