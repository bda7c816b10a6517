package fleet

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/imunhatep/kube-node-ready/internal/requirement"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// SlimNode returns the transform that keeps what decisions need of a Node: a tenth of it. Conditions keep their type, status,
// reason and message, but not kubelet's heartbeats, which would count as changes. The heartbeat of our own condition is kept,
// because it shows that the condition is still being written, and so is all that a requirement may refer to, if there is one.
func SlimNode(conditionType string, isRequired bool, annotations ...string) cache.TransformFunc {
	annotations = append(annotations, nodepatch.Opened)
	if isRequired {
		annotations = append(annotations, requirement.CSIDrivers)
	}
	return func(object any) (any, error) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return object, nil // a tombstone
		}
		slim := &corev1.Node{
			ObjectMeta: slimMeta(node.ObjectMeta, annotations...),
			Spec:       corev1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
		}
		slim.Status.NodeInfo.BootID = node.Status.NodeInfo.BootID
		for _, condition := range node.Status.Conditions {
			isOwn := string(condition.Type) == conditionType
			if isOwn || condition.Type == corev1.NodeReady || isRequired {
				if !isOwn {
					condition.LastHeartbeatTime = metav1.Time{}
				}
				slim.Status.Conditions = append(slim.Status.Conditions, condition)
			}
		}
		if isRequired {
			slim.Status.Allocatable = node.Status.Allocatable
		}
		return slim, nil
	}
}

// SlimPod is the transform for the pods of agents or workers.
func SlimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	meta := slimMeta(pod.ObjectMeta, AttemptAnnotation, FirstAnnotation, NodeUIDAnnotation, BootIDAnnotation, TemplateAnnotation)
	slim := &corev1.Pod{ObjectMeta: meta, Status: corev1.PodStatus{
		Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, Reason: pod.Status.Reason, Message: pod.Status.Message,
		Conditions: pod.Status.Conditions, ContainerStatuses: pod.Status.ContainerStatuses, StartTime: pod.Status.StartTime,
	}}
	slim.Spec.NodeName = pod.Spec.NodeName
	if pod.Spec.NodeName == "" {
		slim.Spec.Affinity = pod.Spec.Affinity // which names the node that it is for
	}
	return slim, nil
}

func slimMeta(meta metav1.ObjectMeta, annotations ...string) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, UID: meta.UID, ResourceVersion: meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
		Labels: meta.Labels, OwnerReferences: meta.OwnerReferences,
	}
	if meta.Annotations != nil { // a patch needs to know whether there is a map
		slim.Annotations = pick(meta.Annotations, annotations...)
	}
	return slim
}

// pick returns the labels or annotations that have one of the keys.
func pick(all map[string]string, keys ...string) map[string]string {
	picked := make(map[string]string, len(keys))
	for _, key := range keys {
		if value, found := all[key]; found {
			picked[key] = value
		}
	}
	return picked
}

// PatchNode converts a Node for package nodepatch: it has then what a nodepatch.Client would have read of it.
func PatchNode(node *corev1.Node) *nodepatch.Node {
	converted := &nodepatch.Node{ObjectMeta: node.ObjectMeta}
	converted.Spec.Taints, converted.Spec.Unschedulable = Taints(node), node.Spec.Unschedulable
	converted.Status.NodeInfo.BootID = node.Status.NodeInfo.BootID
	converted.Status.Allocatable = make(map[string]string, len(node.Status.Allocatable))
	for name, quantity := range node.Status.Allocatable {
		converted.Status.Allocatable[string(name)] = quantity.String()
	}
	for _, c := range node.Status.Conditions {
		converted.Status.Conditions = append(converted.Status.Conditions, nodepatch.Condition{Type: string(c.Type),
			Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			LastHeartbeatTime: c.LastHeartbeatTime, LastTransitionTime: c.LastTransitionTime})
	}
	return converted
}

// Taints converts the taints of node for package nodepatch.
func Taints(node *corev1.Node) (converted []nodepatch.Taint) {
	for _, taint := range node.Spec.Taints {
		converted = append(converted, nodepatch.Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	return converted
}
