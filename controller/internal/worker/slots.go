package worker

import (
	"cmp"
	"sync"
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
	// unseenFor is how long a worker that the cache does not show holds its slot.
	unseenFor = 2 * time.Minute
	// betweenSlots is the time from one slot that is given to the next: 50 a second. A busy machine that looks late gives the slots
	// that it has missed, as many as mostMissed.
	betweenSlots = 20 * time.Millisecond
	mostMissed   = 5
)

// slots bound how many workers begin at a time, not how many run. First attempts and retries have as many slots each: nodes that
// fail again and again do not hold up new ones. Safe for concurrent use.
type slots struct {
	most int // first attempts that hold a slot, and as many retries
	now  func() clock.Now
	call func(node string) // tells a node that waits that it has got a slot

	mu      sync.Mutex
	holders map[string]holder  // by the worker's name
	waiting map[string]waiting // by the node's name
	giving  bool               // give is called again after betweenSlots
	gave    clock.Mark         // the last time that give was called
}

// holder is a worker that has neither passed nor ended, or that is to be created.
type holder struct {
	isRetry bool
	since   clock.Mark
	limit   time.Duration // how long it holds its slot
	unseen  bool          // by the cache
}

// waiting is a node that waits for a slot.
type waiting struct {
	isRetry bool
	since   clock.Mark
	has     bool // a slot, which its worker takes next
}

func newSlots(most int, now func() clock.Now, call func(node string)) *slots {
	return &slots{most: most, now: now, call: call, holders: make(map[string]holder), waiting: make(map[string]waiting)}
}

// see notes a change of a worker, and reports whether it had a slot. A worker that has passed gives its slot back before kubelet
// has ended it, a worker that is being deleted does not.
func (s *slots) see(pod *corev1.Pod, outcome fleet.Outcome, gone bool) (hadSlot bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, hadSlot := s.holders[pod.Name]
	if gone || fleet.HasEnded(pod) || outcome == fleet.Passed {
		delete(s.holders, pod.Name)
		return hadSlot
	}
	h := holder{isRetry: fleet.Attempt(pod) > 1, since: cmp.Or(before.since, s.now().Mark()), limit: heldFor}
	if h.isRetry && outcome == fleet.Waiting {
		h.limit = pendingFor
	}
	s.holders[pod.Name] = h
	return hadSlot
}

// take reports whether a node has got a slot for its new worker. If not, the node waits, and is called.
func (s *slots) take(node, worker string, attempt int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	place := s.waiting[node]
	place.isRetry, place.since = attempt > 1, cmp.Or(place.since, s.now().Mark())
	s.waiting[node] = place
	if !s.giving { // nobody else waits
		s.gave = s.now().Mark()
		s.give()
	}
	if !s.waiting[node].has {
		return false
	}
	delete(s.waiting, node)
	s.holders[worker] = holder{isRetry: place.isRetry, since: s.now().Mark(), limit: unseenFor, unseen: true}
	return true
}

// give gives the slots that are due, and goes on until no node waits: nobody has to notice that a slot has become free.
func (s *slots) give() {
	if s.giving = len(s.waiting) > 0; !s.giving {
		return
	}
	due := max(1, min(int(s.now().Since(s.gave)/betweenSlots), mostMissed))
	s.gave = s.now().Mark()
	for range due {
		node := s.next()
		if node == "" {
			break
		}
		place := s.waiting[node]
		place.has = true
		s.waiting[node] = place
		s.call(node)
	}
	time.AfterFunc(betweenSlots, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.give()
	})
}

// next returns the node that gets the next slot, "" if none can. First attempts come first, then the nodes that wait longest.
func (s *slots) next() (node string) {
	taken := s.taken()
	var first waiting
	for name, place := range s.waiting {
		canGet := !place.has && taken[place.isRetry] < s.most
		if canGet && (node == "" || place.isBefore(first)) {
			node, first = name, place
		}
	}
	return node
}

// taken counts the slots of first attempts (false) and of retries (true) that are not free. It forgets workers that were never
// there.
func (s *slots) taken() map[bool]int {
	taken := make(map[bool]int)
	for worker, h := range s.holders {
		if s.now().Since(h.since) < h.limit {
			taken[h.isRetry]++
		} else if h.unseen {
			delete(s.holders, worker)
		}
	}
	for _, place := range s.waiting {
		if place.has {
			taken[place.isRetry]++
		}
	}
	return taken
}

func (w waiting) isBefore(other waiting) bool {
	if w.isRetry != other.isRetry {
		return other.isRetry
	}
	return w.since.Before(other.since)
}

// giveBack frees the slot of a worker that was not created.
func (s *slots) giveBack(worker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.holders, worker)
}

// doubt shortens the time of a worker that may not have been created. If it was, the cache shows it in time.
func (s *slots) doubt(worker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.holders[worker]; h.unseen {
		h.limit = pendingFor
		s.holders[worker] = h
	}
}

// leave takes a node from those that wait for a slot, with the slot if it has got one.
func (s *slots) leave(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, node)
}

// isWaitedFor reports whether a node waits for a slot.
func (s *slots) isWaitedFor() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) > 0
}
