package workers

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// seen is a worker as a watch has shown it.
type seen struct {
	corev1.Pod             // as it was last
	running    *corev1.Pod // as it was when it ran first
	isReady    bool        // or was
	first      time.Time   // seen
	gone       time.Time   // zero: it is still there
}

// hasEnded reports whether its container has ended.
func (w *seen) hasEnded() bool {
	for _, status := range w.Status.ContainerStatuses {
		if status.State.Terminated != nil {
			return true
		}
	}
	return w.Status.Phase == corev1.PodSucceeded || w.Status.Phase == corev1.PodFailed
}

// isRunning reports whether its container runs.
func (w *seen) isRunning() bool {
	return len(w.Status.ContainerStatuses) == 1 && w.Status.ContainerStatuses[0].State.Running != nil
}

// holdsSlot reports whether it counts as one of the workers at a time.
func (w *seen) holdsSlot(now time.Time) bool {
	const pendingFor = 20 * time.Second // less than in the controller, which counts from another moment than the watch
	return w.gone.IsZero() && !w.hasEnded() && (w.isRunning() || now.Sub(w.first) < pendingFor)
}

// recorder has every worker since its start, however short it lived: a watch shows all of them.
type recorder struct {
	mu      sync.Mutex
	workers map[types.UID]*seen
	order   []*seen
	peak    int // of the workers at a time
}

// record starts a recorder, which works until the test ends.
func (s *suite) record() *recorder {
	s.T.Helper()
	r := &recorder{workers: make(map[types.UID]*seen)}
	pods := s.Cluster.Kube.CoreV1().Pods(harness.Namespace)
	only := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=worker"}
	list, err := pods.List(s.Ctx, only)
	s.NoError(err)
	for i := range list.Items {
		r.add(watch.Added, &list.Items[i])
	}
	harness.Watch(s.Suite, pods, list.ResourceVersion, only.LabelSelector, r.add)
	return r
}

func (r *recorder) add(event watch.EventType, pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	worker := r.workers[pod.UID]
	if worker == nil {
		if pod.DeletionTimestamp != nil {
			return // of an earlier verification
		}
		worker = &seen{first: now}
		r.workers[pod.UID], r.order = worker, append(r.order, worker)
	}
	worker.Pod = *pod
	if event == watch.Deleted {
		worker.gone = now
	}
	if worker.running == nil && worker.isRunning() {
		worker.running = pod
	}
	for _, condition := range pod.Status.Conditions {
		worker.isReady = worker.isReady || condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	}
	atATime := 0
	for _, worker := range r.order {
		if worker.holdsSlot(now) {
			atATime++
		}
	}
	r.peak = max(r.peak, atATime)
}

// of returns copies of the workers of a node, the oldest first.
func (r *recorder) of(node string) (found []*seen) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, worker := range r.order {
		if worker.Labels["node-ready/node"] == node {
			one := *worker
			found = append(found, &one)
		}
	}
	return found
}

// atATime returns how many workers there were at a time at most, and how many in all.
func (r *recorder) atATime() (peak, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peak, len(r.order)
}

// await waits until the last worker of a node is as wanted, and returns it.
func (s *suite) await(workers *recorder, node string, wanted func(*seen) bool) (last *seen) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		all := workers.of(node)
		if len(all) > 0 {
			last = all[len(all)-1]
		}
		return last != nil && wanted(last), nil
	}, "no such worker of %s", node)
	return last
}
