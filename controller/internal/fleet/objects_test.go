package fleet

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/internal/requirement"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// fill sets every field of a value that has none: lists get one item, maps one key.
func fill(value reflect.Value) {
	switch special := value.Addr().Interface().(type) {
	case *metav1.Time:
		*special = metav1.NewTime(time.Unix(1000, 0))
		return
	case *metav1.FieldsV1:
		*special = *metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`)
		return
	case *resource.Quantity:
		*special = resource.MustParse("1")
		return
	}
	switch value.Kind() {
	case reflect.Struct:
		for i := range value.NumField() {
			fill(value.Field(i))
		}
	case reflect.Pointer:
		if value.IsNil() {
			value.Set(reflect.New(value.Type().Elem()))
		}
		fill(value.Elem())
	case reflect.Slice:
		if value.Len() == 0 {
			value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		}
		fill(value.Index(0))
	case reflect.Map:
		if value.Len() == 0 {
			key, of := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
			fill(key)
			fill(of)
			value.Set(reflect.MakeMap(value.Type()))
			value.SetMapIndex(key, of)
		}
	case reflect.String:
		if value.Len() == 0 {
			value.SetString("filled")
		}
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		value.SetInt(7)
	case reflect.Uint8:
		value.SetUint(7)
	default:
		panic(value.Type().String())
	}
}

// fullNode has every field, one condition of kubelet, and ours.
func fullNode() *corev1.Node {
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}, {}, {Type: conditionType}}}}
	fill(reflect.ValueOf(node).Elem())
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("3920m"), "nvidia.com/gpu": resource.MustParse("8")}
	for i := range node.Status.Conditions {
		fill(reflect.ValueOf(&node.Status.Conditions[i]).Elem())
	}
	return node
}

// empty names the fields of a value that are not set.
func empty(value reflect.Value, path string) (found []string) {
	if _, isTime := value.Interface().(metav1.Time); value.Kind() == reflect.Struct && !isTime {
		for i := range value.NumField() {
			found = append(found, empty(value.Field(i), path+"."+value.Type().Field(i).Name)...)
		}
		return found
	}
	if value.IsZero() || value.Kind() == reflect.Slice && value.Len() == 0 {
		return []string{path}
	}
	if value.Kind() == reflect.Slice {
		return empty(value.Index(0), path+"[]")
	}
	return nil
}

// The conversion has all that an agent reads of a Node, whatever field is added to what a patch tests.
func TestPatchNodeIsWhatAClientReads(t *testing.T) {
	node := fullNode()
	text, err := json.Marshal(node)
	require.NoError(t, err)
	read := new(nodepatch.Node)
	require.NoError(t, json.Unmarshal(text, read))
	assert.Empty(t, empty(reflect.ValueOf(*read), ""), "the full Node is full")
	assert.Equal(t, read, PatchNode(node))
}

// The cache has all that a patch tests, but for what is named here: no patch and no decider reads it.
func TestSlimNodeKeepsWhatPatchesTest(t *testing.T) {
	node := fullNode()
	node.Annotations = map[string]string{"kept": "a", "other": "b", nodepatch.Opened: "c"}
	slim, err := SlimNode(conditionType, false, "kept")(node)
	require.NoError(t, err)

	kept := node.DeepCopy()
	kept.Annotations = map[string]string{"kept": "a", nodepatch.Opened: "c"}
	for _, name := range []string{"GenerateName", "SelfLink", "Generation", "DeletionGracePeriodSeconds", "Finalizers", "ManagedFields"} {
		reflect.ValueOf(&kept.ObjectMeta).Elem().FieldByName(name).SetZero()
	}
	kept.Status.Conditions = []corev1.NodeCondition{node.Status.Conditions[0], node.Status.Conditions[2]}
	kept.Status.Conditions[0].LastHeartbeatTime = metav1.Time{} // of kubelet
	kept.Status.Allocatable = nil
	assert.Equal(t, PatchNode(kept), PatchNode(slim.(*corev1.Node)))
}

func TestSlimPodKeepsWhatDecisionsRead(t *testing.T) {
	affinity := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p1", UID: "u1", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}},
		Spec:       corev1.PodSpec{Affinity: affinity, Containers: []corev1.Container{{Name: "agent"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "agent"}}},
	}
	object, err := SlimPod(pod)
	require.NoError(t, err)
	unbound := object.(*corev1.Pod)
	assert.Equal(t, affinity, unbound.Spec.Affinity, "the node that it is for")
	assert.Equal(t, pod.Status.ContainerStatuses, unbound.Status.ContainerStatuses)
	assert.Empty(t, unbound.ManagedFields)
	assert.Empty(t, unbound.Spec.Containers)

	pod.Spec.NodeName = "n1"
	object, err = SlimPod(pod)
	require.NoError(t, err)
	assert.Nil(t, object.(*corev1.Pod).Spec.Affinity)
	assert.Equal(t, "n1", object.(*corev1.Pod).Spec.NodeName)
}

// Of what is required the cache has what is judged: without heartbeats, which are no changes.
func TestSlimNodeKeepsWhatIsRequired(t *testing.T) {
	var list requirement.List
	err := list.Parse(`[{"condition":"Net=False"},{"allocatable":"nvidia.com/gpu"},{"csiDriver":"d"}]`)
	require.NoError(t, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{requirement.CSIDrivers: `{"d":"i"}`, "other": "b"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("4"), "nvidia.com/gpu": resource.MustParse("1")},
			Conditions: []corev1.NodeCondition{{Type: "Net", Status: "False", LastHeartbeatTime: metav1.Now()},
				{Type: "Other", Status: "True"}}}}
	slim, err := SlimNode(conditionType, true)(node)
	require.NoError(t, err)
	for _, e := range list {
		assert.Empty(t, e.Unmet(PatchNode(slim.(*corev1.Node)), nil), e)
	}
	kept := slim.(*corev1.Node)
	assert.Equal(t, []corev1.NodeCondition{{Type: "Net", Status: "False"}, {Type: "Other", Status: "True"}}, kept.Status.Conditions)
	assert.Len(t, kept.Annotations, 1)
}
