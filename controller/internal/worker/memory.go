package worker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// expectedFor is how long no other worker is created because the cache does not show the last one.
	expectedFor = 30 * time.Second
	// rememberedFor is how long a worker is remembered that the cache does not show: it counts if it comes late.
	rememberedFor = time.Minute
)

// memory is what this process remembers of a node. Only the leader's process has seen anything.
type memory struct {
	states      map[string]workerState // of the node's workers, by the pod's name, which is never used twice
	releasedAt  clock.Mark
	cacheLag    cacheLag
	tries       tries
	unmet       string // what the node lacks although its worker has passed
	interrupted int    // how many workers in a row
}

// fate is what this process has done about a worker. It only grows.
type fate int

const (
	counts  fate = iota // its verdict counts
	held                // it has passed, and waits until the node meets REQUIRE
	voided              // its verdict no longer counts, and it is deleted now or later
	deleted             // it was deleted, although the cache may still show it
)

// workerState is what this process remembers of a worker.
type workerState struct {
	first  clock.Mark // when it was created, or seen
	ran    clock.Mark // when it was first seen to run
	ended  clock.Mark // when its outcome was first seen; zero: it has none yet
	own    bool       // this process has created it
	key    string     // asks it for its verdict; "": it was asked, or is not this process's own
	passed bool       // it has said that it has passed, or was seen to be ready: it passed about when that was seen
	fate   fate
}

// outcome returns the outcome of a worker: what it has said itself, or what kubelet reports.
func (s workerState) outcome(pod *corev1.Pod) fleet.Outcome {
	outcome, _ := fleet.WorkerOutcome(pod)
	if s.passed && outcome == fleet.Running {
		return fleet.Passed
	}
	return outcome
}

// isOver reports whether a worker has run its round, or will not.
func isOver(outcome fleet.Outcome) bool { return outcome != fleet.Waiting && outcome != fleet.Running }

// isProof reports whether a pass of this worker proves that the node is fit now: this process has created it, and so has seen what came in the meantime,
// and its verdict is young. That is certain if it was seen to pass, or if it has ended soon after its start. round is the
// longest that a round takes.
func (s workerState) isProof(round time.Duration) bool {
	start := cmp.Or(s.ran, s.first)
	hasEndedSoon := start.Before(s.ended) && s.ended.Sub(start) < countsFor+round
	return s.own && (s.passed || hasEndedSoon)
}

// observe notes what the cache shows of the workers of a node, which are all in pods. It returns those whose outcome is new, too.
func (m memory) observe(pods []*corev1.Pod, now clock.Now) (after memory, ended []*corev1.Pod) {
	states := make(map[string]workerState, len(pods))
	for name, state := range m.states {
		if state.own && state.fate < deleted && now.Since(state.first) < rememberedFor {
			states[name] = state
		}
	}
	for _, pod := range pods {
		state, known := m.states[pod.Name]
		if !known {
			state.first = now.Mark()
		}
		outcome := state.outcome(pod)
		isNew := isOver(outcome) && state.ended.IsZero()
		switch {
		case outcome == fleet.Running:
			state.ran = cmp.Or(state.ran, now.Mark())
		case isNew:
			state.ended, ended = now.Mark(), append(ended, pod)
		}
		switch {
		case isNew && outcome == fleet.Interrupted:
			m.interrupted++
		case isNew || outcome == fleet.Passed:
			m.interrupted = 0
		}
		state.passed = state.passed || outcome == fleet.Passed && !fleet.HasEnded(pod)
		states[pod.Name] = state
	}
	m.states = states
	return m, ended
}

// isExpecting reports whether the cache does not show yet a worker that this process has just created.
func (m memory) isExpecting(pods []*corev1.Pod, now clock.Now) bool {
	for name, state := range m.states {
		isShown := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Name == name })
		if !isShown && now.Since(state.first) < expectedFor {
			return true
		}
	}
	return false
}

// cacheLag is what the API server has shown of a node, which the cache may not show yet.
type cacheLag struct {
	version string // the resourceVersion of the Node in the last answer to this process
	at      clock.Mark
}

// left returns how long to wait, unless an event comes, because the cache shows an older Node than the API server has. A worker
// would be made for nothing, again and again. The limit is for an API server that was restored from a backup.
func (c cacheLag) left(node *corev1.Node, now clock.Now) time.Duration {
	if c.version == "" {
		return 0
	}
	order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, c.version)
	if err == nil && order >= 0 {
		return 0
	}
	return firstRetry - now.Since(c.at)
}

// recall returns what is known of a node, once what the cache shows of its workers is noted, and the workers whose outcome is new.
func (r *Reconciler) recall(node *corev1.Node, pods []*corev1.Pod) (l look, ended []*corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Now()
	m, ended := r.nodes[node.Name].observe(pods, now)
	r.nodes[node.Name] = m
	if len(m.states) == 0 && now.Since(m.cacheLag.at) > firstRetry && m.tries.areOver(now) {
		delete(r.nodes, node.Name) // there is nothing to remember
		m = memory{}
	}
	m.states = maps.Clone(m.states) // a worker that passes changes what is remembered
	return look{node: node, pods: pods, memory: m, healed: r.healed, now: now}, ended
}

// remember changes what is remembered of a node.
func (r *Reconciler) remember(node string, change func(*memory)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.nodes[node]
	change(&m)
	r.nodes[node] = m
}

// raiseFate raises the fate of workers.
func (r *Reconciler) raiseFate(node string, to fate, workers ...string) {
	for _, name := range workers {
		r.rememberWorker(node, name, func(s *workerState) { s.fate = max(s.fate, to) })
	}
}

// rememberWorker changes what is remembered of a worker.
func (r *Reconciler) rememberWorker(node, name string, change func(*workerState)) {
	r.remember(node, func(m *memory) {
		if state, known := m.states[name]; known {
			change(&state)
			m.states[name] = state
		}
	})
}

// forget forgets a node that is gone.
func (r *Reconciler) forget(node string) {
	r.slots.leave(node)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, node)
}
