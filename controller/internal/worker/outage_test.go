package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// largeCluster is an API server, kubelets, and the queue of controller-runtime, in the time of synctest.
type largeCluster struct {
	client.Client // what the controller does not call is nil
	*Reconciler
	t     *testing.T
	queue priorityqueue.PriorityQueue[reconcile.Request]

	lag    time.Duration                                // of the cache
	round  time.Duration                                // of a worker
	ending time.Duration                                // of a worker that is deleted
	refuse error                                        // of each creation
	lose   error                                        // the answer to each creation
	patch  func(ctx context.Context, node string) error // nil, or no error: a patch releases the node

	lock   sync.Mutex
	kubel  func(*corev1.Pod) // how a round ends
	all    map[string]*corev1.Node
	pods   map[string]*corev1.Pod            // of the API server
	cached map[string]map[string]*corev1.Pod // by node and name
	posts  []time.Time                       // each request that creates a pod
	listed int                               // pods that were read from the cache
	runs   int                               // pods that have neither passed nor ended
	peak   int                               // the most of them at a time
	early  int                               // pods that were deleted after they had passed while a node waited for a slot
	label  time.Time                         // when a node was released last
	left   int                               // nodes that are not released
}

func newLargeCluster(t *testing.T, nodes, maxWorkers int) *largeCluster {
	c := &largeCluster{t: t, lag: 20 * time.Millisecond, round: 800 * time.Millisecond, ending: 50 * time.Millisecond, all: make(map[string]*corev1.Node),
		pods: make(map[string]*corev1.Pod), cached: make(map[string]map[string]*corev1.Pod), left: nodes, kubel: ready}
	settings := newSettings()
	settings.MaxWorkers, settings.Fleet.FailedAfter = maxWorkers, 5*time.Minute
	c.queue = priorityqueue.New[reconcile.Request]("worker")
	c.Reconciler = &Reconciler{Settings: settings, Require: nothing, Client: c, Events: &events.FakeRecorder{}, Timeout: 10 * time.Second,
		Log:       slog.New(slog.NewTextHandler(io.Discard, nil)),
		Node:      func(name string) nodepatch.NodeAPI { return largeNode{c, name} },
		Endpoints: func(context.Context) ([]string, error) { return []string{"10.0.0.1:53/m"}, nil },
		Now:       func() clock.Now { return clock.At(time.Now(), time.Time{}) }}
	c.prepare()
	c.Reconciler.queue = c.queue
	for i := range nodes {
		c.join(fmt.Sprintf("n%d", i))
	}
	return c
}

// join adds a node.
func (c *largeCluster) join(name string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	node := newNode()
	node.Name, node.UID, c.cached[name] = name, types.UID(name), make(map[string]*corev1.Pod)
	c.all[name] = node
	add(c.queue, name, 0)
}

// start does what controller-runtime does, until stop is called.
func (c *largeCluster) start() (stop func()) {
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for {
				request, priority, shutdown := c.queue.GetWithPriority()
				if shutdown {
					return
				}
				result, err := c.Reconcile(c.t.Context(), request)
				if result.Priority != nil {
					priority = *result.Priority
				}
				switch {
				case err != nil:
					c.queue.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: &priority}, request)
				case result.RequeueAfter > 0:
					c.queue.Forget(request)
					c.queue.AddWithOpts(priorityqueue.AddOpts{After: result.RequeueAfter, Priority: &priority}, request)
				default:
					c.queue.Forget(request)
				}
				c.queue.Done(request)
			}
		})
	}
	return func() {
		c.queue.ShutDown()
		all.Wait()
	}
}

// later lets something happen to a worker at the API server, which the cache shows after its lag.
func (c *largeCluster) later(after time.Duration, name string, change func(*corev1.Pod) (gone bool)) {
	time.AfterFunc(after, func() {
		c.lock.Lock()
		before, exists := c.pods[name]
		if !exists {
			c.lock.Unlock()
			return
		}
		pod := before.DeepCopy()
		gone := change(pod)
		if c.pods[name] = pod; gone {
			delete(c.pods, name)
		}
		if holdsSlot(before) && (gone || !holdsSlot(pod)) {
			c.runs--
		}
		lag := c.lag
		c.lock.Unlock()
		time.AfterFunc(lag, func() {
			c.lock.Lock()
			if of := c.cached[fleet.NodeOf(pod)]; gone {
				delete(of, name)
			} else {
				of[name] = pod
			}
			c.lock.Unlock()
			c.workerChanged(c.queue, pod, gone)
		})
	})
}

// holdsSlot reports whether a worker has neither ended nor passed.
func holdsSlot(pod *corev1.Pod) bool {
	outcome, _ := fleet.WorkerOutcome(pod)
	return !fleet.HasEnded(pod) && outcome != fleet.Passed
}

func (c *largeCluster) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	*(object.(*corev1.Node)) = *c.all[key.Name]
	return nil
}

func (c *largeCluster) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	var o client.ListOptions
	o.ApplyOptions(options)
	found := list.(*corev1.PodList)
	var of []map[string]*corev1.Pod
	if o.FieldSelector != nil {
		name, _ := o.FieldSelector.RequiresExactMatch(nodeIndex)
		of = append(of, c.cached[name])
	} else {
		of = slices.Collect(maps.Values(c.cached))
	}
	for _, pods := range of {
		for _, pod := range pods {
			found.Items = append(found.Items, *pod)
		}
	}
	c.listed += len(found.Items)
	return nil
}

func (c *largeCluster) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	time.Sleep(10 * time.Millisecond)
	c.lock.Lock()
	defer c.lock.Unlock()
	c.posts = append(c.posts, time.Now())
	if c.refuse != nil {
		return c.refuse
	}
	pod := object.(*corev1.Pod)
	pod.UID, pod.CreationTimestamp = types.UID(pod.Name), metav1.Now()
	c.pods[pod.Name] = pod.DeepCopy()
	c.runs++
	c.peak = max(c.peak, c.runs)
	c.later(0, pod.Name, func(*corev1.Pod) bool { return false })
	c.later(100*time.Millisecond, pod.Name, func(pod *corev1.Pod) bool { running(pod); return false })
	c.later(c.round, pod.Name, func(pod *corev1.Pod) bool { c.kubel(pod); return false })
	return c.lose
}

func (c *largeCluster) Delete(_ context.Context, object client.Object, _ ...client.DeleteOption) error {
	waits := c.slots.isContended()
	c.lock.Lock()
	if pod := c.pods[object.GetName()]; pod != nil && waits && !fleet.HasEnded(pod) && !holdsSlot(pod) {
		c.early++
	}
	c.lock.Unlock()
	time.Sleep(10 * time.Millisecond)
	c.later(c.ending, object.GetName(), func(*corev1.Pod) bool { return true })
	return nil
}

// largeNode is one node. Each patch releases it.
type largeNode struct {
	cluster *largeCluster
	name    string
}

func (n largeNode) Get(ctx context.Context) (*nodepatch.Node, error) {
	node := new(corev1.Node)
	err := n.cluster.Get(ctx, client.ObjectKey{Name: n.name}, node)
	return fleet.PatchNode(node), err
}

func (n largeNode) Patch(ctx context.Context, _ []byte) (*nodepatch.Node, error) {
	time.Sleep(10 * time.Millisecond)
	if n.cluster.patch != nil {
		if err := n.cluster.patch(ctx, n.name); err != nil {
			return nil, err
		}
	}
	n.cluster.lock.Lock()
	node := n.cluster.all[n.name].DeepCopy()
	node.Labels, node.Spec.Taints = map[string]string{"kubernetes.io/os": "linux", verified: "true"}, nil
	n.cluster.all[n.name], n.cluster.label = node, time.Now()
	n.cluster.left--
	n.cluster.lock.Unlock()
	add(n.cluster.queue, n.name, 0)
	return n.Get(ctx)
}

// kubelet changes how rounds end.
func (c *largeCluster) kubelet(ends func(*corev1.Pod), round time.Duration) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.kubel, c.round = ends, round
}

// postsASecond is the most requests that were sent within one second.
func (c *largeCluster) postsASecond() (most int) {
	for i, first := range c.posts {
		n, _ := slices.BinarySearchFunc(c.posts[i:], first.Add(time.Second), time.Time.Compare)
		most = max(most, n)
	}
	return most
}

// 5,000 nodes fail in an outage. Once it is over, they are released as fast as slots become free, and none of them costs the
// others anything while it waits for a slot.
func TestRecoversFromALargeOutage(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector ends itself after so many timers (golang/go#78156): hack/test.sh runs this test once more without it")
	}
	for nodes, outage := range map[int]time.Duration{
		outageNodes: outageNodes * 120 * time.Millisecond, // 10 end each second
		300:         time.Hour,                            // each has failed often, and its pause is 8 minutes
	} {
		t.Run(outage.String(), func(t *testing.T) { recovers(t, nodes, outage) })
	}
}

func recovers(t *testing.T, nodes int, outage time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, nodes, 50)
		defer c.start()()
		c.kubelet(ended(1, failing), 5*time.Second)
		time.Sleep(outage)
		c.kubelet(ready, 800*time.Millisecond)
		c.lock.Lock()
		began, posts := time.Now(), len(c.posts)
		assert.Equal(t, nodes, c.left)
		c.listed = 0
		c.lock.Unlock()
		time.Sleep(2 * time.Minute)
		c.lock.Lock()
		defer c.lock.Unlock()
		t.Logf("all but %d of %d nodes released after %s, %d workers (%d a second), %d at a time, %d pods read", c.left, nodes,
			c.label.Sub(began), len(c.posts)-posts, c.postsASecond(), c.peak, c.listed)
		assert.Zero(t, c.left)
		assert.LessOrEqual(t, c.listed, 100*nodes, "each look at a node reads the workers of others")
		assert.LessOrEqual(t, c.peak, 2*50+20, "first attempts and retries")
		assert.LessOrEqual(t, c.postsASecond(), 51)
		c.slots.mu.Lock()
		defer c.slots.mu.Unlock()
		assert.Empty(t, c.slots.holders)
		assert.Empty(t, c.slots.waiting)
	})
}

// 1,000 nodes join behind 200 that never pass, and each worker takes its time to end: neither holds up a node. They are released as
// fast as workers may be created.
func TestManyNodesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const good, bad = 1000, 200
		c := newLargeCluster(t, good+bad, 50)
		c.ending = 5 * time.Second
		c.kubelet(func(pod *corev1.Pod) {
			var n int
			_, err := fmt.Sscanf(fleet.NodeOf(pod), "n%d", &n)
			assert.NoError(t, err)
			switch {
			case n >= bad:
				ready(pod)
			case n%2 == 0:
				c.later(time.Minute, pod.Name, func(pod *corev1.Pod) bool { ended(1, failing)(pod); return false })
			}
		}, 300*time.Millisecond)
		began := time.Now()
		defer c.start()()
		time.Sleep(50 * time.Second)
		c.lock.Lock()
		t.Logf("all but %d nodes released after %s, %d workers", c.left, c.label.Sub(began), len(c.posts))
		assert.Equal(t, bad, c.left)
		assert.LessOrEqual(t, c.postsASecond(), 51)
		assert.LessOrEqual(t, c.early, good/100, "requests that delete workers come after the releases")
		c.lock.Unlock()
		time.Sleep(20 * time.Second)
		c.lock.Lock()
		defer c.lock.Unlock()
		passed := slices.Collect(maps.Values(c.pods))
		passed = slices.DeleteFunc(passed, func(pod *corev1.Pod) bool { return holdsSlot(pod) || fleet.HasEnded(pod) })
		assert.Zero(t, len(passed), "the workers of the released nodes are deleted")
	})
}

// All patches of many nodes are answered with 5xx, at once or after seconds. Nodes that join are released all the same, and the
// others soon after it is over.
func TestRecoversFromALargeOutageOfPatches(t *testing.T) {
	if raceDetector {
		t.Skip("so many timers (golang/go#78156), as above")
	}
	for name, test := range map[string]struct {
		bad, good int
		takes     time.Duration
	}{
		"500 nodes, at once":      {500, 20, 0},
		"500 nodes, after 10 s":   {500, 20, 10 * time.Second},
		"1,000 nodes, at once":    {1000, 0, 0},
		"5,000 nodes, after 10 s": {outageNodes, 0, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newLargeCluster(t, test.bad, 50)
				over, requests := time.Now().Add(10*time.Minute+11*time.Second), 0
				c.patch = func(_ context.Context, node string) error {
					if node[0] != 'n' || !time.Now().Before(over) {
						return nil
					}
					c.lock.Lock()
					requests++
					c.lock.Unlock()
					time.Sleep(test.takes)
					return apierrors.NewInternalError(errors.New("failed calling webhook"))
				}
				defer c.start()()
				time.Sleep(10 * time.Minute)
				c.lock.Lock()
				t.Logf("%d patches a second, %d workers", requests/600, len(c.posts))
				assert.LessOrEqual(t, requests, 10*60/15*test.bad, "pauses of up to 30 s")
				c.left += test.good
				c.lock.Unlock()
				for i := range test.good {
					c.join(fmt.Sprint("good", i))
				}
				time.Sleep(10 * time.Second)
				c.lock.Lock()
				assert.Equal(t, test.bad, c.left)
				c.lock.Unlock()
				time.Sleep(time.Until(over.Add(2 * time.Minute)))
				c.lock.Lock()
				defer c.lock.Unlock()
				t.Logf("all but %d released after %s", c.left, c.label.Sub(over))
				assert.Zero(t, c.left)
			})
		})
	}
}

// No cache that is behind, nobody who deletes workers, and no API server that refuses them lets the controller create more workers
// than it may.
func TestBoundedCreations(t *testing.T) {
	for name, test := range map[string]struct {
		nodes   int
		arrange func(*largeCluster)
		slots   int
		atOnce  int // workers that have neither passed nor ended
		in1m    int // requests
	}{
		"the cache is a minute behind": {24, func(c *largeCluster) { c.lag = time.Minute }, 4, 4, 4},
		"creations are refused": {outageNodes, func(c *largeCluster) {
			c.refuse = apierrors.NewForbidden(corev1.Resource("pods"), "w", errors.New("quota"))
		}, 1000, 0, 50*60 + 1},
		"answers are lost, the cache is 10 s behind": {24, func(c *largeCluster) {
			c.lag, c.lose = 10*time.Second, context.DeadlineExceeded
		}, 4, 4, 24},
		"creations fail without an answer": {24, func(c *largeCluster) { c.refuse = context.DeadlineExceeded }, 4, 0, 12},
		"somebody deletes each worker": {1, func(c *largeCluster) {
			c.kubelet(func(pod *corev1.Pod) {
				c.later(time.Millisecond, pod.Name, func(*corev1.Pod) bool { return true })
			}, 10*time.Millisecond)
		}, 4, 1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newLargeCluster(t, test.nodes, test.slots)
				test.arrange(c)
				stop := c.start()
				time.Sleep(time.Minute)
				stop()
				c.lock.Lock()
				defer c.lock.Unlock()
				t.Logf("%d requests, %d a second, %d workers at a time", len(c.posts), c.postsASecond(), c.peak)
				assert.Equal(t, test.atOnce, c.peak)
				assert.LessOrEqual(t, len(c.posts), test.in1m)
				assert.LessOrEqual(t, c.postsASecond(), 51)
				assert.NotEmpty(t, c.posts)
			})
		})
	}
}

// A node whose worker has passed comes before all others.
func TestReleasesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, 5000, 4)
		defer c.queue.ShutDown()
		pod := newWorker("a", 1, ready)
		pod.Spec.NodeName = "n4711"
		c.workerChanged(c.queue, pod, false)
		synctest.Wait()
		first, _ := c.queue.Get()
		assert.Equal(t, "n4711", first.Name)
	})
}

// A worker that the cache shows late counts all the same: else no node would be released while the cache is so far behind.
func TestReleasesBehindALateCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newLargeCluster(t, 4, 4)
		c.lag = 40 * time.Second
		stop := c.start()
		time.Sleep(5 * time.Minute)
		stop()
		c.lock.Lock()
		defer c.lock.Unlock()
		assert.Zero(t, c.left)
	})
}
