package remediation

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// newDNSPods returns two pods of one owner: one that tolerates the startup taint on a bad node, and one elsewhere.
func newDNSPods() (pod, other corev1.Pod) {
	pod, other = ownedPod("dns-1", "ReplicaSet", "bad-1"), ownedPod("dns-2", "ReplicaSet", "good-1")
	pod.Spec.Tolerations = []corev1.Toleration{{Key: startup, Operator: corev1.TolerationOpExists}}
	return pod, other
}

// newDNSWorld has a bad node, on which such a pod runs.
func newDNSWorld(t *testing.T) *world {
	w := newBadWorld(t)
	w.run(time.Minute)
	pod, other := newDNSPods()
	require.NoError(t, w.client.Create(t.Context(), &pod))
	require.NoError(t, w.client.Create(t.Context(), &other))
	return w
}

func TestWorkload(t *testing.T) {
	now := metav1.Now()
	for name, test := range map[string]struct {
		change func(pod, other *corev1.Pod)
		found  bool
	}{
		"a ready sibling elsewhere":     {func(_, _ *corev1.Pod) {}, false},
		"does not tolerate the taint":   {func(pod, _ *corev1.Pod) { pod.Spec.Tolerations = nil }, true},
		"no owner":                      {func(pod, _ *corev1.Pod) { pod.OwnerReferences = nil }, true},
		"another owner":                 {func(pod, _ *corev1.Pod) { pod.OwnerReferences[0].UID = "other" }, true},
		"being deleted":                 {func(pod, other *corev1.Pod) { pod.DeletionTimestamp, other.OwnerReferences = &now, nil }, true},
		"of a DaemonSet":                {func(pod, _ *corev1.Pod) { *pod = ownedPod("dns-1", "DaemonSet", "bad-1") }, false},
		"given to the Node by somebody": {func(pod, _ *corev1.Pod) { *pod = ownedPod("dns-1", "Node", "bad-1") }, true},
		"static": {func(pod, _ *corev1.Pod) {
			*pod = ownedPod("dns-1", "Node", "bad-1")
			pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		}, false},
		"our worker": {func(pod, _ *corev1.Pod) {
			*pod = ownedPod("dns-1", "Node", "bad-1")
			pod.Namespace = namespace
		}, false},
		"finished":                                 {func(pod, other *corev1.Pod) { pod.Status.Phase, other.OwnerReferences = corev1.PodSucceeded, nil }, false},
		"failed":                                   {func(pod, other *corev1.Pod) { pod.Status.Phase, other.OwnerReferences = corev1.PodFailed, nil }, false},
		"the sibling is on the same node":          {func(_, other *corev1.Pod) { other.Spec.NodeName = "bad-1" }, true},
		"the sibling is not bound":                 {func(_, other *corev1.Pod) { other.Spec.NodeName = "" }, true},
		"the sibling is not ready":                 {func(_, other *corev1.Pod) { other.Status.Conditions[0].Status = corev1.ConditionFalse }, true},
		"the sibling has another owner":            {func(_, other *corev1.Pod) { other.OwnerReferences[0].UID = "other" }, true},
		"the sibling has no owner":                 {func(_, other *corev1.Pod) { other.OwnerReferences = nil }, true},
		"the sibling's namespace is not the pod's": {func(_, other *corev1.Pod) { other.Namespace = "other" }, true},
		"the sibling is being deleted": {func(_, other *corev1.Pod) {
			other.DeletionTimestamp, other.Finalizers = &now, []string{finalizer}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod, other := newDNSPods()
			test.change(&pod, &other)
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: startup}}}}
			r := Remediator{Settings: testSettings(), Client: fake.NewClientBuilder().WithObjects(&other).Build()}
			found, err := r.findWorkload(t.Context(), node, []corev1.Pod{pod})
			require.NoError(t, err)
			assert.Equal(t, map[bool]string{true: "ns/dns-1"}[test.found], found)
		})
	}
}

// A cluster may have as many pods and NodeClaims as nodes: they are read in pages, here of one object each.
func TestLongListsAreReadInPages(t *testing.T) {
	w := newDNSWorld(t)
	w.addGood("a-1") // its NodeClaim is on the page before
	pages := 0
	w.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			asked := new(client.ListOptions).ApplyOptions(options)
			require.NoError(t, c.List(ctx, list, options...))
			if asked.FieldSelector != nil { // of one node, or of one pod
				return nil
			}
			assert.EqualValues(t, 500, asked.Limit)
			pages++
			items, err := meta.ExtractList(list)
			require.NoError(t, err)
			at, _ := strconv.Atoi(asked.Continue)
			if at+1 < len(items) {
				list.SetContinue(strconv.Itoa(at + 1))
			}
			return meta.SetList(list, items[at:at+1])
		},
	})
	w.run(31 * time.Minute)
	assert.Equal(t, []string{"bad-1"}, w.deletions)
	assert.Equal(t, 2*(3+2), pages, "three NodeClaims and two pods, before and after the ledger is written")
}

// What cannot be read withholds the deletion, and does not keep the other candidates from theirs.
func TestPodsThatCannotBeRead(t *testing.T) {
	w := newDNSWorld(t)
	w.addBad("bad2-1", nodePoolLabel)
	w.addGood("good-2")
	read := 0
	w.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if new(client.ListOptions).ApplyOptions(options).Namespace != "ns" {
				return c.List(ctx, list, options...)
			}
			read++
			return apierrors.NewResourceExpired("the continue token has expired")
		},
	})
	w.run(33 * time.Minute)
	assert.Equal(t, []string{"bad2-1"}, w.deletions)
	assert.Equal(t, 1, read, "not again at once")
	assert.Equal(t, 1, w.events.count(RemediationWithheld+" unreadable: pods in namespace ns: the continue token has expired"))
}

// The plan knows older Events than the API server: what the pod's Events say just before the deletion counts.
func TestEventsAreReadAgain(t *testing.T) {
	for reason, deleted := range map[string][]string{"Pulling": nil, "FailedCreatePodSandBox": {"bad-1"}, "": nil} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			w := newBadWorld(t)
			w.run(time.Minute)
			pod := w.pod("bad-1")
			pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized}}}
			require.NoError(t, w.client.Status().Update(t.Context(), pod))
			w.podEvents = map[types.UID][]corev1.Event{pod.UID: {podEvent("FailedCreatePodSandBox", w.now)}}
			for name, event := range map[string]corev1.Event{"of-the-pod": podEvent(reason, w.now), "of-another": podEvent("Pulled", w.now)} {
				event.Name, event.Namespace = name, namespace
				event.InvolvedObject.UID = map[string]types.UID{"of-the-pod": pod.UID}[name]
				require.NoError(t, w.client.Create(t.Context(), &event))
			}
			w.run(32 * time.Minute)
			assert.Equal(t, deleted, w.deletions)
			if deleted == nil {
				assert.Equal(t, 1, w.events.count(RemediationWithheld+" changed: the node or its pod has changed since the decision"))
			}
		})
	}
}
