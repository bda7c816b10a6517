package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/livenode"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// cluster is an API server and a controller, without delays between them.
type cluster struct {
	*Reconciler
	t      *testing.T
	events *events.FakeRecorder
	// Faults, called instead of a request, or before it: nil or no error lets it pass.
	creating, deleting func() error
	patching           func(patch func() (*nodepatch.Node, error)) (*nodepatch.Node, error)
}

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	c := &cluster{t: t, events: events.NewFakeRecorder(100)}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).
		WithIndex(&corev1.Pod{}, nodeIndex, byNode).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if c.creating != nil {
				if err := c.creating(); err != nil {
					return err
				}
			}
			object.SetUID(types.UID(object.GetName() + "-uid"))
			return api.Create(ctx, object, options...)
		},
		Delete: func(ctx context.Context, api client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if c.deleting != nil {
				if err := c.deleting(); err != nil {
					return err
				}
			}
			return api.Delete(ctx, object, options...)
		},
	}).Build()
	c.Reconciler = c.newLeader(api)
	return c
}

// cached reads Nodes as they are in the cache.
type cached struct{ client.Client }

func (c cached) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	err := c.Client.Get(ctx, key, object, options...)
	if node, isNode := object.(*corev1.Node); isNode && err == nil {
		slim, _ := fleet.SlimNode("NodeVerified", false, nodepatch.Annotation)(node)
		slim.(*corev1.Node).DeepCopyInto(node)
	}
	return err
}

// newLeader is a controller that has seen nothing.
func (c *cluster) newLeader(api client.Client) *Reconciler {
	queue := priorityqueue.New[reconcile.Request]("worker")
	c.t.Cleanup(queue.ShutDown)
	r := &Reconciler{
		Require: nothing,
		queue:   queue, Settings: newSettings(), Client: cached{api}, Events: c.events, Timeout: time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Node:      func(name string) nodepatch.NodeAPI { return nodeAPI{livenode.API{Client: api, Name: name}, c} },
		Endpoints: func(context.Context) ([]string, error) { return []string{"10.0.0.1:53/m"}, nil },
		// The workers here have no time of creation.
		Now: func() clock.Now { return clock.At(time.Now(), time.Time{}.Add(time.Second)) },
	}
	r.prepare()
	return r
}

// nodeAPI is a Node of the cluster, with what a test lets happen around a patch.
type nodeAPI struct {
	livenode.API
	cluster *cluster
}

func (n nodeAPI) Patch(ctx context.Context, patch []byte) (*nodepatch.Node, error) {
	apply := func() (*nodepatch.Node, error) {
		patched, err := n.API.Patch(ctx, patch)
		if err != nil && strings.Contains(err.Error(), "test failed") { // as an API server answers
			err = apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, n.Name, nil)
		}
		return patched, err
	}
	if n.cluster.patching != nil {
		return n.cluster.patching(apply)
	}
	return apply()
}

func (c *cluster) reconcile() (reconcile.Result, error) {
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: "n"}}
	result, err := c.Reconcile(c.t.Context(), request)
	c.slots.mu.Lock()
	called := c.slots.next()
	if called != "" {
		c.slots.waiting[called] = waiter{isGranted: true} // without the pause before that
	}
	c.slots.mu.Unlock()
	if called != "" {
		return c.Reconcile(c.t.Context(), request)
	}
	return result, err
}

func (c *cluster) step() {
	c.t.Helper()
	_, err := c.reconcile()
	require.NoError(c.t, err)
}

// newPassedCluster has a node whose worker has passed.
func newPassedCluster(t *testing.T) *cluster {
	c := newCluster(t, newNode())
	c.step()
	c.set(ready)
	return c
}

// event returns the oldest Event that was not read yet.
func (c *cluster) event() string {
	c.t.Helper()
	require.NotEmpty(c.t, c.events.Events, "no Event was sent")
	return <-c.events.Events
}

// record is that of the last release of the node.
func (c *cluster) record() record.Record {
	found, err := record.Parse(c.node().Annotations[nodepatch.Annotation])
	require.NoError(c.t, err)
	return found
}

func (c *cluster) pods() []corev1.Pod {
	var list corev1.PodList
	require.NoError(c.t, c.Client.List(c.t.Context(), &list))
	return list.Items
}

func (c *cluster) pod() *corev1.Pod {
	c.t.Helper()
	pods := c.pods()
	require.Len(c.t, pods, 1)
	return &pods[0]
}

// set changes the status of the only worker, as kubelet does.
func (c *cluster) set(change func(*corev1.Pod)) {
	c.t.Helper()
	pod := c.pod()
	change(pod)
	require.NoError(c.t, c.Client.Status().Update(c.t.Context(), pod))
}

func (c *cluster) node() *corev1.Node {
	node := new(corev1.Node)
	require.NoError(c.t, c.Client.Get(c.t.Context(), types.NamespacedName{Name: "n"}, node))
	return node
}

func (c *cluster) update(change func(*corev1.Node)) {
	node := c.node()
	change(node)
	status := node.Status
	require.NoError(c.t, c.Client.Update(c.t.Context(), node))
	node.Status = status
	require.NoError(c.t, c.Client.Status().Update(c.t.Context(), node))
}

func (c *cluster) assertReleased() {
	c.t.Helper()
	assert.True(c.t, c.Settings.Fleet.IsVerified(c.node()))
	assert.Empty(c.t, c.pods())
}

func TestVerifies(t *testing.T) {
	c := newPassedCluster(t)
	require.NoError(t, c.Settings.Required.Parse(`[{"label":"kubernetes.io/os"},{"label":"none","on":{"kubernetes.io/os":"windows"}}]`))
	worker := c.pod()
	c.step()
	c.assertReleased()
	found := c.record()
	assert.Equal(t, worker.UID, found.Worker)
	assert.Equal(t, []string{startup + ":NoSchedule"}, found.Removed)
	assert.Equal(t, []string{"label kubernetes.io/os"}, found.Required, "of this node, for rechecks in the other mode")
	assert.Contains(t, c.event(), "Normal NodeVerified DNS, API, network and service discovery work")

	c.update(func(node *corev1.Node) {
		node.Status.NodeInfo.BootID = "second"
		delete(node.Labels, verified)
	})
	c.step()
	assert.NotEqual(t, worker.Name, c.pod().Name)
	c.set(ended(0, `{"verified":true,"node":"n","attempts":{"dns":2},"version":"v"}`))
	c.step()
	c.assertReleased()
	assert.Equal(t, map[string]int{"dns": 2}, c.record().Attempts)
	assert.Equal(t, "second", c.record().BootID)
	assert.Equal(t, []string{startup + ":NoSchedule"}, c.record().Removed, "it was gated once")
}

// A startup taint that is put back by a client is removed less and less often, and one Event says so. Another boot is checked first.
func TestTaintThatIsPutBackForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPassedCluster(t)
		c.step()
		c.event()
		patches := 0
		c.patching = func(patch func() (*nodepatch.Node, error)) (*nodepatch.Node, error) {
			patches++
			return patch()
		}
		putBack := func() {
			c.update(func(node *corev1.Node) { node.Spec.Taints = newNode().Spec.Taints })
			c.step()
		}
		for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(time.Second) {
			putBack()
		}
		assert.InDelta(t, 60/5+7, patches, 2)
		require.Len(t, c.events.Events, 1)
		assert.Contains(t, c.event(), "Warning NodeNotVerified the startup taint is put back")
		time.Sleep(15 * time.Minute) // then it starts over
		putBack()
		assert.True(t, c.Settings.Fleet.IsVerified(c.node()))
		time.Sleep(2 * time.Second)
		c.patching = func(patch func() (*nodepatch.Node, error)) (*nodepatch.Node, error) {
			c.update(func(node *corev1.Node) { node.Status.NodeInfo.BootID = "second" }) // the cache does not show it yet
			return patch()
		}
		c.update(func(node *corev1.Node) { node.Spec.Taints = newNode().Spec.Taints })
		_, err := c.reconcile()
		require.ErrorIs(t, err, nodepatch.ErrOutdated)
		assert.Len(t, c.node().Spec.Taints, 1)
	})
}

// A pod to which somebody has given the labels of workers is no worker.
func TestPodOfAPersonStays(t *testing.T) {
	c := newCluster(t, newNode(), newWorker("of-a-person", 1, ready, func(pod *corev1.Pod) { pod.OwnerReferences = nil }))
	c.step()
	assert.Len(t, c.pods(), 2)
	assert.False(t, c.Settings.Fleet.IsVerified(c.node()))
	c.update(func(node *corev1.Node) { node.Spec.Taints = nil }) // nothing is to be verified: the workers go
	c.step()
	assert.Equal(t, "of-a-person", c.pod().Name)
}

func TestReleaseRefused(t *testing.T) {
	c := newPassedCluster(t)
	c.patching = func(func() (*nodepatch.Node, error)) (*nodepatch.Node, error) {
		return nil, errors.New("a policy")
	}
	c.Timeout = 10 * time.Millisecond
	result, err := c.reconcile()
	require.ErrorContains(t, err, "a policy")
	assert.Equal(t, new(0), result.Priority, "the nodes of other passed workers come first")
	assert.Contains(t, c.event(), "Warning NodeNotVerified all checks pass, but the release failed")
	c.patching = nil
	c.memories.change("n", func(m *memory) { m.tries.last = clock.Mark{} }) // some seconds later
	c.step()
	c.assertReleased()
}

func TestFailedAttemptIsReported(t *testing.T) {
	c := newCluster(t, newNode())
	c.step()
	c.set(ended(1, failing))
	result, err := c.reconcile()
	require.NoError(t, err)
	assert.InDelta(t, firstRetry, result.RequeueAfter, float64(time.Second))
	assert.Equal(t, "Warning NodeNotVerified dns: NXDOMAIN", c.event())
	c.step()
	assert.Empty(t, c.events.Events, "once")
	assert.Len(t, c.pods(), 1, "it is what is left to read")
}

// A worker that is deleted stays so, whatever is decided about it later; a worker that was forgotten does not come back.
func TestFateOnlyGrows(t *testing.T) {
	c := newCluster(t)
	c.memories.workerCreated("n", "a", "key")
	for _, to := range []fate{held, voided, held, deleted, voided, counts} {
		before := c.memories.nodes["n"].workers["a"].fate
		c.memories.raiseFate("n", "a", to)
		assert.Equal(t, max(before, to), c.memories.nodes["n"].workers["a"].fate)
	}
	c.memories.nodeGone("n")
	c.memories.raiseFate("n", "a", voided)
	c.memories.workerPassed("n", "a")
	assert.Empty(t, c.memories.nodes)
}

func TestNodeIsGone(t *testing.T) {
	c := newCluster(t, newNode())
	c.step()
	require.NoError(t, c.Client.Delete(t.Context(), c.node()))
	c.step()
	assert.Empty(t, c.memories.nodes)
}

// nothing is required of a node.
func nothing(context.Context, *nodepatch.Node) string { return "" }

// A creation that is refused takes no slot.
func TestCreateFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, newNode())
		c.creating = func() error { return apierrors.NewForbidden(corev1.Resource("pods"), "w", errors.New("away")) }
		for range 10 {
			_, err := c.reconcile()
			require.ErrorContains(t, err, "away")
			time.Sleep(betweenGrants)
		}
		c.creating = nil
		c.step()
		assert.Len(t, c.pods(), 1)
	})
}

// repeating sends each creation twice, as client-go does after a 5xx with Retry-After. The second fails with AlreadyExists.
type repeating struct{ client.Client }

func (r repeating) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	if err := r.Client.Create(ctx, object.DeepCopyObject().(client.Object), options...); err != nil {
		return err
	}
	return r.Client.Create(ctx, object, options...)
}

// A worker whose creation was answered with AlreadyExists releases its node, and is deleted.
func TestRepeatedCreation(t *testing.T) {
	c := newCluster(t, newNode())
	c.Client = repeating{c.Client}
	c.step()
	c.set(ready)
	c.step()
	c.assertReleased()
}
