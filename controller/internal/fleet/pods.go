package fleet

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// nodeKey is whom a pod is for: the name of a node, and for workers its uid.
type nodeKey struct{ name, uid string }

// podsByNode returns the agent's pod of each node: the one that is not being deleted, and of those the newest.
func podsByNode(pods []corev1.Pod) map[nodeKey]*corev1.Pod {
	found := make(map[nodeKey]*corev1.Pod, len(pods))
	for i := range pods {
		pod := &pods[i]
		node := nodeKey{NodeOf(pod), pod.Annotations[NodeUIDAnnotation]}
		if other := found[node]; other == nil || Newer(pod, other) > 0 {
			found[node] = pod
		}
	}
	return found
}

// key is what podsByNode knows a node by. A worker of an earlier Node of its name says nothing about it.
func (s Settings) key(node *corev1.Node) nodeKey {
	if s.Workers {
		return nodeKey{node.Name, string(node.UID)}
	}
	return nodeKey{name: node.Name}
}

// Newer compares two pods of a node: one that is not being deleted is newer than one that is, and one that has not ended than one
// that has. The later attempt is newer. Only then the time of the creation counts: the API server's clock may have been set back.
func Newer(a, b *corev1.Pod) int {
	is := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	return cmp.Or(is(b.DeletionTimestamp != nil)-is(a.DeletionTimestamp != nil),
		is(HasEnded(b))-is(HasEnded(a)), Attempt(a)-Attempt(b),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// NodeOf returns the node that a pod runs on, or that it is made for: the DaemonSet controller names it as the controller does.
func NodeOf(pod *corev1.Pod) string {
	for _, term := range requiredTerms(pod.Spec.Affinity) {
		for _, field := range term.MatchFields {
			if pod.Spec.NodeName == "" && field.Key == "metadata.name" && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return pod.Spec.NodeName
}

// LastTime returns when an event has happened last.
func LastTime(event corev1.Event) time.Time {
	if event.Series != nil {
		return event.Series.LastObservedTime.Time
	}
	return cmp.Or(event.LastTimestamp.Time, event.EventTime.Time, event.FirstTimestamp.Time, event.CreationTimestamp.Time)
}

// IsReady reports whether kubelet says that pod is ready, and nobody deletes it.
func IsReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && podCondition(pod, corev1.PodReady).Status == corev1.ConditionTrue
}

// podCondition returns one of a pod's conditions, or an empty one.
func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	return firstOf(pod.Status.Conditions, func(condition corev1.PodCondition) bool { return condition.Type == kind })
}

// Component is the label that tells agents, workers and controllers of a release apart.
const Component = "app.kubernetes.io/component"

// OwnLabels returns the labels that the chart selects a pod by, without the user's.
func OwnLabels(all map[string]string) labels.Set {
	return pick(all, "app.kubernetes.io/name", "app.kubernetes.io/instance", Component)
}
