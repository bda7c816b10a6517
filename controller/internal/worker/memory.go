package worker

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// expectedFor is how long no other worker is created because the cache does not show the last one.
	expectedFor = 30 * time.Second
	// rememberedFor is how long a worker that the cache does not show is remembered. It counts if it appears late.
	rememberedFor = time.Minute
)

// memories holds the memory of each node. It is empty in the process of a new leader. Only its methods change it, one for each
// kind of event. Safe for concurrent use.
type memories struct {
	now func() clock.Now

	mu    sync.Mutex
	nodes map[string]memory // by the node's name
	// healed is when a third or later attempt of any node passed last. The cause of the failures of other nodes may be gone, too.
	healed clock.Mark
}

// observe updates the memory of a node with the workers in the cache. It returns a view of the node, and the workers whose
// outcome is new.
func (all *memories) observe(node *corev1.Node, pods []*corev1.Pod) (v view, ended []*corev1.Pod) {
	all.mu.Lock()
	defer all.mu.Unlock()
	now := all.now()
	m, ended := all.nodes[node.Name].observe(pods, now)
	if all.nodes[node.Name] = m; m.isEmpty(now) {
		delete(all.nodes, node.Name)
		m = memory{}
	}
	m.workers = maps.Clone(m.workers) // so that later events do not change the view
	return view{node: node, pods: pods, memory: m, healed: all.healed, now: now}, ended
}

func (all *memories) nodeGone(node string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.nodes, node)
}

func (all *memories) workerCreated(node, worker, key string) {
	all.change(node, func(m *memory) {
		if m.workers == nil {
			m.workers = make(map[string]workerState)
		}
		m.workers[worker] = workerState{first: all.now().Mark(), own: true, key: key}
	})
}

func (all *memories) workerAsked(node, worker string) {
	all.changeWorker(node, worker, func(s *workerState) { s.key = "" })
}

func (all *memories) workerPassed(node, worker string) {
	all.changeWorker(node, worker, func(s *workerState) { s.passed, s.ended = true, all.now().Mark() })
}

// attemptPassed notes the attempt of a worker that has passed. A second one is normal, because the network of new nodes comes
// late.
func (all *memories) attemptPassed(attempt int) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if attempt > 2 {
		all.healed = all.now().Mark()
	}
}

// raiseFate notes a decision about a worker.
func (all *memories) raiseFate(node, worker string, to fate) {
	all.changeWorker(node, worker, func(s *workerState) { s.fate = max(s.fate, to) })
}

func (all *memories) nodeLacks(node, unmet string) {
	all.change(node, func(m *memory) { m.unmet = unmet })
}

// nodeShown notes the Node that the API server has shown.
func (all *memories) nodeShown(node, version string) {
	all.change(node, func(m *memory) { m.cacheLag = cacheLag{version, all.now().Mark()} })
}

// nodePatched notes a patch, and whether it helped.
func (all *memories) nodePatched(node string, hasHelped bool) {
	all.change(node, func(m *memory) {
		m.tries = tries{m.tries.inARow + 1, all.now().Mark()}
		if hasHelped {
			m.tries.inARow = 0
		}
	})
}

func (all *memories) nodeReleased(node string) {
	all.change(node, func(m *memory) { m.releasedAt = all.now().Mark() })
}

func (all *memories) change(node string, change func(*memory)) {
	all.mu.Lock()
	defer all.mu.Unlock()
	m := all.nodes[node]
	change(&m)
	all.nodes[node] = m
}

// changeWorker changes the state of a worker that is not forgotten.
func (all *memories) changeWorker(node, worker string, change func(*workerState)) {
	all.mu.Lock()
	defer all.mu.Unlock()
	workers := all.nodes[node].workers
	if state, known := workers[worker]; known {
		change(&state)
		workers[worker] = state
	}
}

// releasedAt returns when this process last released a node.
func (all *memories) releasedAt(node string) clock.Mark {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.nodes[node].releasedAt
}

// outcome returns the outcome of a worker.
func (all *memories) outcome(pod *corev1.Pod) fleet.Outcome {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.nodes[fleet.NodeOf(pod)].workers[pod.Name].outcome(pod)
}

// unmet returns the unmet requirements of nodes whose workers have passed, by the nodes' names.
func (all *memories) unmet() map[string]string {
	all.mu.Lock()
	defer all.mu.Unlock()
	unmet := make(map[string]string)
	for node, m := range all.nodes {
		if m.unmet != "" {
			unmet[node] = m.unmet
		}
	}
	return unmet
}

// memory holds the facts about a node that no object shows. A value: only memories changes it.
type memory struct {
	workers     map[string]workerState // of the node, by the pod's name, which is never used twice
	releasedAt  clock.Mark
	cacheLag    cacheLag
	tries       tries
	unmet       string // requirements that the node does not meet although its worker has passed, or ""
	interrupted int    // consecutive workers that were interrupted
}

// workerState holds the facts about a worker that its pod does not show.
type workerState struct {
	first  clock.Mark // when it was created, or seen first
	ran    clock.Mark // when it was first seen running
	ended  clock.Mark // when its outcome was first seen. Zero means that it has none yet.
	own    bool       // created by this process
	key    string     // authenticates its answer. Empty once it was asked, or if another process created it.
	passed bool       // it answered so or was seen ready, so it passed about when that was seen
	fate   fate
}

// fate is the decision of this process about a worker. It only grows.
type fate int

const (
	counts  fate = iota // its verdict counts
	held                // it has passed, and waits until the node meets REQUIRE
	voided              // its verdict no longer counts; it is deleted now or later
	deleted             // it is deleted, although the cache may still show it, or was never created
)

// outcome returns the outcome of a worker, by its own answer or by its status.
func (s workerState) outcome(pod *corev1.Pod) fleet.Outcome {
	outcome, _ := fleet.WorkerOutcome(pod)
	if s.passed && outcome == fleet.Running {
		return fleet.Passed
	}
	return outcome
}

// isOver reports whether a worker has run its round, or never will.
func isOver(outcome fleet.Outcome) bool { return outcome != fleet.Waiting && outcome != fleet.Running }

// isDated reports whether it is known when this worker passed and what has happened since: this process created it, and either
// saw it pass or saw it end soon after its start. round is the longest time that a round takes.
func (s workerState) isDated(round time.Duration) bool {
	start := cmp.Or(s.ran, s.first)
	hasEndedSoon := start.Before(s.ended) && s.ended.Sub(start) < countsFor+round
	return s.own && (s.passed || hasEndedSoon)
}

// observe returns the memory updated with the workers of the node in the cache, and those of them whose outcome is new.
func (m memory) observe(pods []*corev1.Pod, now clock.Now) (after memory, ended []*corev1.Pod) {
	workers := make(map[string]workerState, len(pods))
	for name, state := range m.workers {
		if state.own && state.fate < deleted && now.Since(state.first) < rememberedFor {
			workers[name] = state
		}
	}
	for _, pod := range pods {
		state, known := m.workers[pod.Name]
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
		workers[pod.Name] = state
	}
	m.workers = workers
	return m, ended
}

// isExpecting reports whether the cache does not yet show a worker that this process has just created.
func (m memory) isExpecting(pods []*corev1.Pod, now clock.Now) bool {
	for name, state := range m.workers {
		isShown := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Name == name })
		if !isShown && now.Since(state.first) < expectedFor {
			return true
		}
	}
	return false
}

// isEmpty reports whether nothing is left to remember.
func (m memory) isEmpty(now clock.Now) bool {
	startOver := m.tries.inARow == 0 || now.Since(m.tries.last) >= 2*longestRemoval
	return len(m.workers) == 0 && now.Since(m.cacheLag.at) > firstRetry && startOver
}

// cacheLag is the last version of a Node that this process has seen live. The cache may still have an older one.
type cacheLag struct {
	version string // resourceVersion of the Node in the last answer to this process
	at      clock.Mark
}

// left returns how long to wait, unless an event comes, because the cached Node is older than the live one. Otherwise workers
// would be created in vain, again and again. The limit is for an API server that was restored from a backup.
func (c cacheLag) left(node *corev1.Node, now clock.Now) time.Duration {
	order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, c.version)
	if c.version == "" || err == nil && order >= 0 {
		return 0
	}
	return firstRetry - now.Since(c.at)
}
