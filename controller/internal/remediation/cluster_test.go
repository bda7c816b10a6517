package remediation

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// newDNSWorld has a bad node, on which a pod runs that tolerates the startup taint, and another pod of its owner.
func newDNSWorld(t *testing.T, change func(other *corev1.Pod)) *world {
	w := newBadWorld(t)
	w.run(time.Minute)
	pod, other := ownedPod("dns-1", "ReplicaSet", "bad-1"), ownedPod("dns-2", "ReplicaSet", "good-1")
	pod.Spec.Tolerations = []corev1.Toleration{{Key: startup, Operator: corev1.TolerationOpExists}}
	change(&other)
	require.NoError(t, w.client.Create(t.Context(), &pod))
	require.NoError(t, w.client.Create(t.Context(), &other))
	return w
}

func TestReadySiblingElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"ready elsewhere":      {func(*corev1.Pod) {}, true},
		"on the same node":     {func(other *corev1.Pod) { other.Spec.NodeName = "bad-1" }, false},
		"not bound":            {func(other *corev1.Pod) { other.Spec.NodeName = "" }, false},
		"not ready":            {func(other *corev1.Pod) { other.Status.Conditions[0].Status = corev1.ConditionFalse }, false},
		"of another owner":     {func(other *corev1.Pod) { other.OwnerReferences[0].UID = "other" }, false},
		"of nobody":            {func(other *corev1.Pod) { other.OwnerReferences = nil }, false},
		"in another namespace": {func(other *corev1.Pod) { other.Namespace = "other" }, false},
		"being deleted": {func(other *corev1.Pod) {
			now := metav1.Now()
			other.DeletionTimestamp, other.Finalizers = &now, []string{finalizer}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := ownedPod("dns-2", "ReplicaSet", "good-1")
			test.change(&pod)
			w := newDNSWorld(t, func(other *corev1.Pod) {
				*other = *pod.DeepCopy()
				other.DeletionTimestamp = nil
			})
			if pod.DeletionTimestamp != nil {
				require.NoError(t, w.client.Delete(t.Context(), &pod))
			}
			w.run(31 * time.Minute)
			if test.want {
				assert.Equal(t, []string{"bad-1"}, w.deletions)
			} else {
				assert.Empty(t, w.deletions)
				assert.Equal(t, 1, w.events.count(RemediationWithheld+" workload: pod ns/dns-1 runs on the node"))
			}
		})
	}
}

// paging returns the pods of namespace ns in pages of one, and at last an expired token.
type paging struct {
	t     *testing.T
	pages map[string]corev1.Pod // by their tokens
	next  map[string]string
	read  []string
}

func (p *paging) list(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
	asked := new(client.ListOptions)
	asked.ApplyOptions(options)
	pods, ok := list.(*corev1.PodList)
	if !ok || asked.Namespace != "ns" {
		return c.List(ctx, list, options...)
	}
	assert.EqualValues(p.t, 500, asked.Limit)
	assert.Empty(p.t, pods.Items, "each page is a list of its own")
	p.read = append(p.read, asked.Continue)
	pod, found := p.pages[asked.Continue]
	if !found {
		return apierrors.NewResourceExpired("the continue token has expired")
	}
	pods.Items, pods.Continue = []corev1.Pod{pod}, p.next[asked.Continue]
	return nil
}

// A namespace may have as many pods as the cluster has nodes: they are not held in memory.
func TestSiblingsAreReadInPages(t *testing.T) {
	w := newDNSWorld(t, func(*corev1.Pod) {})
	p := &paging{t: t, next: map[string]string{"": "2", "2": "3"},
		pages: map[string]corev1.Pod{"": ownedPod("dns-1", "ReplicaSet", "bad-1"), "2": ownedPod("dns-2", "ReplicaSet", "good-1")}}
	w.Client = interceptor.NewClient(w.client, interceptor.Funcs{List: p.list})
	w.run(31 * time.Minute)
	assert.Equal(t, []string{"", "2", "", "2"}, p.read, "before and after the ledger is written, and not the third page: the sibling is found")
	assert.Equal(t, []string{"bad-1"}, w.deletions)
}

// What cannot be read withholds the deletion, and does not keep the other candidates from theirs.
func TestExpiredPage(t *testing.T) {
	w := newDNSWorld(t, func(*corev1.Pod) {})
	w.addBad("bad2-1", nodePoolLabel)
	w.addGood("good-2")
	p := &paging{t: t, next: map[string]string{"": "2"}, pages: map[string]corev1.Pod{"": ownedPod("dns-1", "ReplicaSet", "bad-1")}}
	w.Client = interceptor.NewClient(w.client, interceptor.Funcs{List: p.list})
	w.run(33 * time.Minute)
	assert.Equal(t, []string{"bad2-1"}, w.deletions)
	assert.Equal(t, []string{"", "2"}, p.read, "not again at once")
	assert.Equal(t, 1, w.events.count(RemediationWithheld+" unreadable: pods in namespace ns: the continue token has expired"))
}

func TestNodeClaimsAreReadInPages(t *testing.T) {
	w := newBadWorld(t)
	var read []string
	w.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			claims, ok := list.(*unstructured.UnstructuredList)
			if !ok {
				return c.List(ctx, list, options...)
			}
			asked := new(client.ListOptions)
			asked.ApplyOptions(options)
			assert.EqualValues(t, 500, asked.Limit)
			if read = append(read, asked.Continue); asked.Continue == "" {
				claims.SetContinue("2")
				return nil
			}
			return c.List(ctx, list, client.UnsafeDisableDeepCopy)
		},
	})
	w.run(31 * time.Minute)
	assert.Equal(t, []string{"", "2", "", "2"}, read, "before and after the ledger is written")
	assert.Equal(t, []string{"bad-1"}, w.deletions)
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
