package worker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// memory is what this process remembers of a node. Only the leader's process has seen anything.
type memory struct {
	workers    map[string]workerState // by the pod's name, which is never used twice
	released   types.UID              // the worker whose verdict has released the node
	releasedAt clock.Mark
	// newest is the newest resourceVersion of the Node that an answer to this process has shown. The cache may be behind.
	newest      string
	newestAt    clock.Mark
	patches     int        // in a row that did not help: the release failed, or the startup taint was put back
	patchedAt   clock.Mark // the last one of them
	unmet       string     // what the node does not show although its worker has passed
	interrupted int        // how many workers in a row
	healed      clock.Mark // when a third attempt of any node, or a later one, has passed last
}

// workerState is what this process remembers of a worker.
type workerState struct {
	first   clock.Mark // when it was created, or seen
	ran     clock.Mark // when it was first seen to run
	ready   bool       // it was seen to be ready
	ended   clock.Mark // when its outcome was seen first; zero: it has none yet
	void    bool       // its verdict does not count
	deleted bool       // by this process
	held    bool       // it has passed, and the node did not show what REQUIRE demands
	// key proves that a worker is the one that this process has created, "" if another one has. The worker was asked for its
	// verdict, and has passed.
	key           string
	asked, passed bool
}

// outcome returns the outcome of a worker: what it has said itself, or what kubelet reports.
func (s workerState) outcome(pod *corev1.Pod) fleet.Outcome {
	outcome, _ := fleet.WorkerOutcome(pod)
	if s.passed && outcome == fleet.Running {
		return fleet.Passed
	}
	return outcome
}

// counts reports whether a pass of this worker counts: this process has created it, and so has seen what came in the meantime,
// and the time of the pass is known. It was seen to be ready, or it has ended so soon after its start that its verdict is young.
// round is the longest that a round takes.
func (s workerState) counts(round time.Duration) bool {
	start := cmp.Or(s.ran, s.first)
	isTimeKnown := s.ready || s.passed || start.Before(s.ended) && s.ended.Sub(start) < countsFor+round
	return s.key != "" && isTimeKnown
}

// observe notes what the cache shows of the workers of a node, all of them.
func (m memory) observe(workers []*corev1.Pod, now clock.Now) memory {
	seen := make(map[string]workerState, len(workers))
	for name, worker := range m.workers {
		if worker.key != "" && !worker.deleted && now.Since(worker.first) < pendingFor {
			seen[name] = worker
		}
	}
	for _, pod := range workers {
		worker, known := m.workers[pod.Name]
		if !known {
			worker.first = now.Mark()
		}
		outcome := worker.outcome(pod)
		switch {
		case outcome == fleet.Waiting:
		case outcome == fleet.Running:
			if worker.ran.IsZero() {
				worker.ran = now.Mark()
			}
		case worker.ended.IsZero():
			worker.ended = now.Mark()
			if m.interrupted++; outcome != fleet.Interrupted {
				m.interrupted = 0
			}
		case outcome == fleet.Passed:
			m.interrupted = 0
		}
		worker.ready = worker.ready || outcome == fleet.Passed && !fleet.HasEnded(pod)
		seen[pod.Name] = worker
	}
	m.workers = seen
	return m
}

// behind returns how long to wait, unless an event comes, because the cache shows an older Node than the API server has. A worker
// would be made for nothing, again and again. The limit is for an API server that was restored from a backup.
func (m memory) behind(node *corev1.Node, now clock.Now) time.Duration {
	if order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, m.newest); err == nil && order >= 0 {
		return 0
	}
	return firstRetry - now.Since(m.newestAt)
}

// pause is the time from the last patch that did not help to the next patch. It doubles, and is zero if the last patch helped.
func (m memory) pause(first, longest time.Duration) time.Duration {
	return min(first*(1<<min(m.patches, 10)-1), longest)
}

// expectsWorker reports whether this process has created a worker lately that the cache does not show: not yet, or because
// somebody else has deleted it.
func (m memory) expectsWorker(cached []*corev1.Pod) bool {
	isCached := func(name string) bool {
		return slices.ContainsFunc(cached, func(pod *corev1.Pod) bool { return pod.Name == name })
	}
	return slices.ContainsFunc(slices.Collect(maps.Keys(m.workers)), func(name string) bool { return !isCached(name) })
}

// observe remembers what the cache shows of a node's workers.
func (r *Reconciler) observe(node string, workers []*corev1.Pod, now clock.Now) memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.nodes[node].observe(workers, now)
	r.nodes[node] = m
	isPatched := m.patches > 0 && now.Since(m.patchedAt) < 2*longestRemoval
	if len(m.workers) == 0 && now.Since(m.newestAt) > firstRetry && !isPatched {
		delete(r.nodes, node) // there is nothing to remember
		m = memory{}
	}
	m.healed = r.slots.healed
	m.workers = maps.Clone(m.workers) // a worker that passes changes what is remembered
	return m
}

// remember changes what is remembered of a node.
func (r *Reconciler) remember(node string, change func(*memory)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.nodes[node]
	change(&m)
	r.nodes[node] = m
}

// rememberWorker changes what is remembered of a worker.
func (r *Reconciler) rememberWorker(node, name string, change func(*workerState)) {
	r.remember(node, func(m *memory) {
		if worker, known := m.workers[name]; known {
			change(&worker)
			m.workers[name] = worker
		}
	})
}

// forget forgets a node that is gone.
func (r *Reconciler) forget(node string) {
	r.leaveSlots(node)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, node)
}
