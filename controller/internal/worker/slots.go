package worker

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// heldFor is how long a worker holds its slot. One that passes takes a second; one that takes longer waits for its network, as
	// an agent would, or runs where a kubelet has died, and holds up no other node.
	heldFor = 5 * time.Second
	// pendingFor is how long a retry that does not run holds its slot.
	pendingFor = 30 * time.Second
	// unseenFor is how long a worker does that the cache does not show.
	unseenFor = 2 * time.Minute
	// At most so many slots are given within this time: 50 a second, and what a busy machine has missed is made up for.
	givenAtOnce = 5
	givenWithin = 100 * time.Millisecond
	// betweenSlots is the time between two looks for slots that can be given.
	betweenSlots = 20 * time.Millisecond
)

// slots bound how many workers begin at a time, not how many run: who holds a slot, and who waits for one. First attempts and
// retries have as many each: nodes that fail again and again do not hold up new ones.
type slots struct {
	Settings
	holders map[string]holder  // by the worker's name
	waiting map[string]waiting // by the node's name
	giving  bool               // somebody waits, and looks again after betweenSlots
	given   [givenAtOnce]clock.Mark
	all     int        // that were given
	healed  clock.Mark // when a third attempt or a later one has passed last: what kept other nodes from passing may be over, too
	// patching are the nodes whose last patch did not help, and that are patched now.
	patching chan struct{}
}

// holder is a worker that has not ended, or that is to be created.
type holder struct {
	attempt int
	since   clock.Mark
	limit   time.Duration // how long it holds its slot
	unseen  bool          // by the cache
}

// waiting is a node that waits for a slot.
type waiting struct {
	attempt int
	since   clock.Mark
	worker  string // the name of its worker, once it has got the slot
}

func newSlots(s Settings) slots {
	return slots{Settings: s, holders: make(map[string]holder), waiting: make(map[string]waiting),
		patching: make(chan struct{}, atOnce/2)}
}

// see notes a change of a worker. One that has passed gives its slot back before kubelet has ended it, one that is being deleted
// does not.
func (s *slots) see(pod *corev1.Pod, outcome fleet.Outcome, gone bool, now clock.Now) {
	worker := s.holders[pod.Name]
	if gone || fleet.HasEnded(pod) || outcome == fleet.Passed {
		if outcome == fleet.Passed && worker.attempt > 2 { // a second attempt says little: the network of new nodes comes late
			s.healed = now.Mark()
		}
		delete(s.holders, pod.Name)
		return
	}
	worker.since = cmp.Or(worker.since, now.Mark())
	worker.attempt, worker.limit, worker.unseen = fleet.Attempt(pod), heldFor, false
	if worker.attempt > 1 && outcome == fleet.Waiting {
		worker.limit = pendingFor
	}
	s.holders[pod.Name] = worker
}

// give gives a free slot to the node that is next, and returns that node, or "". First attempts come first, then those that wait
// longest.
func (s *slots) give(now clock.Now) (node string) {
	if now.Since(s.given[s.all%givenAtOnce]) < givenWithin {
		return ""
	}
	taken := make(map[int]int)
	kind := func(attempt int) int { return min(attempt, 2) }
	for name, worker := range s.holders {
		if now.Since(worker.since) < worker.limit {
			taken[kind(worker.attempt)]++
		} else if worker.unseen { // it was never there
			delete(s.holders, name)
		}
	}
	var next waiting
	for name, one := range s.waiting {
		if one.worker == "" && taken[kind(one.attempt)] < s.MaxWorkers && (node == "" ||
			cmp.Or(cmp.Compare(kind(one.attempt), kind(next.attempt)), one.since.Compare(next.since)) < 0) {
			node, next = name, one
		}
	}
	if node != "" {
		next.worker = s.newName()
		s.waiting[node] = next
		s.given[s.all%givenAtOnce] = now.Mark()
		s.all++
		s.holders[next.worker] = holder{next.attempt, now.Mark(), unseenFor, true}
	}
	return node
}

// takeSlot returns the name of a node's new worker if the node has got a slot, else "": the node waits, and is called.
func (r *Reconciler) takeSlot(node string, attempt int) (worker string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place, waits := r.slots.waiting[node]
	if !waits {
		place.since = clock.Own()
	}
	place.attempt = attempt
	if r.slots.waiting[node] = place; !r.slots.giving { // nobody else waits
		r.giveSlots()
	}
	if worker = r.slots.waiting[node].worker; worker != "" {
		delete(r.slots.waiting, node)
	}
	return worker
}

// giveSlots gives what is free, and again as long as a node waits: nobody has to notice that a slot has become free. The nodes
// that have got one are called.
func (r *Reconciler) giveSlots() {
	for node := r.slots.give(r.Now()); node != ""; node = r.slots.give(r.Now()) {
		add(r.queue, node, 0)
	}
	if r.slots.giving = len(r.slots.waiting) > 0; r.slots.giving {
		time.AfterFunc(betweenSlots, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.giveSlots()
		})
	}
}

// leaveSlots takes a node from those that wait for a slot, and its slot if it has got one.
func (r *Reconciler) leaveSlots(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.slots.holders, r.slots.waiting[node].worker)
	delete(r.slots.waiting, node)
}

// keepsWorkers reports whether the workers of a node are deleted later: it was released within the last minute, and other nodes
// wait for a slot. Their releases come first.
func (r *Reconciler) keepsWorkers(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.slots.waiting) > 0 && r.Now().Since(r.nodes[node].releasedAt) < time.Minute
}
