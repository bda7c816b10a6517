package worker

import (
	"cmp"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// pendingFor is how long a worker that does not run holds its slot.
	pendingFor = 30 * time.Second
	// runningFor is how long any worker does, or as long as a round: that of a kubelet which has died never ends.
	runningFor = 2 * time.Minute
	// betweenSlots is the time between two slots that are given: 50 workers a second at most.
	betweenSlots = 20 * time.Millisecond
)

// slots are the workers at a time: who holds a slot, and who waits for one.
type slots struct {
	Settings
	holders     map[string]holder  // by the worker's name
	waiting     map[string]waiting // by the node's name
	retriesPass bool               // the last retry that has ended has passed: slots are free again soon
	giving      bool               // the next slot is given after betweenSlots
	healed      time.Time          // when a third attempt or a later one has passed: at most once within firstRetry
}

// holder is a worker that has not ended, or that is to be created.
type holder struct {
	attempt int
	since   time.Time
	limit   time.Duration // how long it holds its slot
	unseen  bool          // by the cache
}

// waiting is a node that waits for a slot.
type waiting struct {
	attempt int
	since   time.Time
	worker  string // the name of its worker, once it has got the slot
}

func newSlots(s Settings) slots {
	return slots{Settings: s, holders: make(map[string]holder), waiting: make(map[string]waiting)}
}

// see notes a change of a worker in the cache. One that is being deleted holds its slot until it has ended. It reports whether a
// third attempt or a later one has passed: what kept others from passing may be over, too.
func (s *slots) see(pod *corev1.Pod, gone bool, now time.Time) (healed bool) {
	outcome, _ := fleet.WorkerOutcome(pod)
	worker, known := s.holders[pod.Name]
	if gone || fleet.HasEnded(pod) {
		if worker.attempt > 1 {
			s.retriesPass = outcome == fleet.Passed
			// That a second attempt passes says little: the network of new nodes comes late.
			if healed = s.retriesPass && worker.attempt > 2 && now.Sub(s.healed) >= firstRetry; healed {
				s.healed = now
			}
		}
		delete(s.holders, pod.Name)
		return healed
	}
	if !known {
		worker.since = now
	}
	worker.attempt, worker.limit, worker.unseen = fleet.Attempt(pod), max(runningFor, s.Round), false
	if outcome == fleet.Waiting {
		worker.limit = pendingFor
	}
	s.holders[pod.Name] = worker
	return false
}

// prune forgets the holders that were never there.
func (s *slots) prune(now time.Time) {
	maps.DeleteFunc(s.holders, func(_ string, worker holder) bool { return worker.unseen && now.Sub(worker.since) >= worker.limit })
}

// give gives a free slot to the node that is next, and returns that node, or "". First attempts come first, then those that wait
// longest. Any slot is for a first attempt, half of them for the others while they fail: nodes that fail again and again do not
// hold up new ones.
func (s *slots) give(now time.Time) (node string) {
	s.prune(now)
	taken, retries := 0, 0
	for _, worker := range s.holders {
		if now.Sub(worker.since) < worker.limit {
			taken++
			retries += min(worker.attempt-1, 1)
		}
	}
	if taken >= s.MaxWorkers {
		return ""
	}
	var next waiting
	for name, one := range s.waiting {
		if one.worker == "" && (node == "" ||
			cmp.Or(cmp.Compare(min(one.attempt, 2), min(next.attempt, 2)), one.since.Compare(next.since)) < 0) {
			node, next = name, one
		}
	}
	mayRetry := s.retriesPass || retries < s.MaxWorkers-s.MaxWorkers/2
	if node == "" || next.attempt > 1 && !mayRetry {
		return ""
	}
	next.worker = s.newName()
	s.waiting[node] = next
	s.holders[next.worker] = holder{next.attempt, now, max(runningFor, s.Round), true}
	return node
}

// takeSlot returns the name of a node's new worker if the node has got a slot, else "": the node waits, and is called.
func (r *Reconciler) takeSlot(node string, attempt int) (worker string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place, waits := r.slots.waiting[node]
	if !waits {
		place.since = time.Now()
	}
	place.attempt = attempt
	if r.slots.waiting[node] = place; !r.slots.giving { // nobody else waits
		r.giveSlot()
	}
	if worker = r.slots.waiting[node].worker; worker != "" {
		delete(r.slots.waiting, node)
	}
	return worker
}

// giveSlot gives a slot if one is free, and again as long as a node waits: nobody has to notice that one has become free. It
// returns the node that has got the slot, or "".
func (r *Reconciler) giveSlot() (node string) {
	if r.slots.giving = len(r.slots.waiting) > 0; r.slots.giving {
		time.AfterFunc(betweenSlots, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if called := r.giveSlot(); called != "" {
				add(r.queue, called, 0)
			}
		})
	}
	return r.slots.give(time.Now())
}

// leaveSlots takes a node from those that wait for a slot, and its slot if it has got one.
func (r *Reconciler) leaveSlots(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.slots.holders, r.slots.waiting[node].worker)
	delete(r.slots.waiting, node)
}
