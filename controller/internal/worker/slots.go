package worker

import (
	"cmp"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// startLimit is how long a worker holds its slot. One that passes takes a second. One that takes longer waits for its network,
	// as an agent would, or its kubelet is dead. Neither delays other nodes.
	startLimit = 5 * time.Second
	// pendingLimit is how long a retry that does not run holds its slot.
	pendingLimit = 30 * time.Second
	// unseenLimit is how long a worker that the cache does not show holds its slot.
	unseenLimit = 2 * time.Minute
	// betweenGrants is the time from one granted slot to the next: 50 a second. A busy machine that is late grants the slots that
	// it has missed, up to mostMissed.
	betweenGrants = 20 * time.Millisecond
	mostMissed    = 5
)

// slots bound how many workers start at a time, not how many run. First attempts and retries have the same number of slots each,
// so that nodes that fail again and again do not delay new ones. Safe for concurrent use.
type slots struct {
	most    int // first attempts that hold a slot, and as many retries
	now     func() clock.Now
	outcome func(worker *corev1.Pod) fleet.Outcome
	notify  func(node string) // tells a waiting node that it has got a slot

	mu         sync.Mutex
	holders    map[string]holder // by the worker's name
	waiting    map[string]waiter // by the node's name
	isGranting bool              // a timer calls grant again after betweenGrants
	lastGrant  clock.Mark        // the last call of grant
}

// holder is a worker that has neither passed nor ended, or is being created. Its slot is free after limit.
type holder struct {
	isRetry  bool
	since    clock.Mark
	limit    time.Duration
	isUnseen bool // by the cache
}

// waiter is a node that waits for a slot.
type waiter struct {
	isRetry   bool
	since     clock.Mark
	isGranted bool // its next worker gets the slot
}

func newSlots(most int, now func() clock.Now, outcome func(*corev1.Pod) fleet.Outcome, notify func(node string)) *slots {
	return &slots{most: most, now: now, outcome: outcome, notify: notify,
		holders: make(map[string]holder), waiting: make(map[string]waiter)}
}

// acquire reports whether a node gets a slot for its new worker. If not, the node waits until it is notified.
func (s *slots) acquire(node, worker string, attempt int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	waits := s.waiting[node]
	waits.isRetry, waits.since = attempt > 1, cmp.Or(waits.since, s.now().Mark())
	s.waiting[node] = waits
	if !s.isGranting { // no other node waits
		s.lastGrant = s.now().Mark()
		s.grant()
	}
	if !s.waiting[node].isGranted {
		return false
	}
	delete(s.waiting, node)
	s.holders[worker] = holder{isRetry: waits.isRetry, since: s.now().Mark(), limit: unseenLimit, isUnseen: true}
	return true
}

// grant grants the slots that are due, and calls itself again until no node waits: nothing has to notice that a slot is free
// again.
func (s *slots) grant() {
	if s.isGranting = len(s.waiting) > 0; !s.isGranting {
		return
	}
	due := max(1, min(int(s.now().Since(s.lastGrant)/betweenGrants), mostMissed))
	s.lastGrant = s.now().Mark()
	maps.DeleteFunc(s.holders, func(_ string, h holder) bool { return h.isUnseen && s.isFree(h) }) // they never appeared
	for range due {
		node := s.next()
		if node == "" {
			break
		}
		granted := s.waiting[node]
		granted.isGranted = true
		s.waiting[node] = granted
		s.notify(node)
	}
	time.AfterFunc(betweenGrants, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.grant()
	})
}

// next returns the node that gets the next slot, or "". First attempts come before retries, then the nodes that wait longest.
func (s *slots) next() (node string) {
	taken := s.taken()
	var first waiter
	for name, waits := range s.waiting {
		isEarlier := first.isRetry && !waits.isRetry || first.isRetry == waits.isRetry && waits.since.Before(first.since)
		if !waits.isGranted && taken[waits.isRetry] < s.most && (node == "" || isEarlier) {
			node, first = name, waits
		}
	}
	return node
}

// taken counts the slots of first attempts (false) and of retries (true) that are not free.
func (s *slots) taken() map[bool]int {
	taken := make(map[bool]int)
	for _, h := range s.holders {
		if !s.isFree(h) {
			taken[h.isRetry]++
		}
	}
	for _, waits := range s.waiting {
		if waits.isGranted {
			taken[waits.isRetry]++
		}
	}
	return taken
}

// isFree reports whether the slot of h is free again.
func (s *slots) isFree(h holder) bool { return s.now().Since(h.since) >= h.limit }

// observe notes a change of a worker, and returns its outcome and whether it had a slot. A worker frees its slot once it has
// passed, although kubelet ends it later. One that is being deleted does not.
func (s *slots) observe(pod *corev1.Pod, gone bool) (outcome fleet.Outcome, hadSlot bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	outcome = s.outcome(pod) // with the lock: no older outcome comes after a newer one
	before, hadSlot := s.holders[pod.Name]
	if gone || fleet.HasEnded(pod) || outcome == fleet.Passed {
		delete(s.holders, pod.Name)
		return outcome, hadSlot
	}
	h := holder{isRetry: fleet.Attempt(pod) > 1, since: cmp.Or(before.since, s.now().Mark()), limit: startLimit}
	if h.isRetry && outcome == fleet.Waiting {
		h.limit = pendingLimit
	}
	s.holders[pod.Name] = h
	return outcome, hadSlot
}

// notCreated frees the slot of a worker at once if it certainly was not created, and otherwise unless the cache shows it in time.
func (s *slots) notCreated(worker string, isCertain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.holders[worker]; isCertain {
		delete(s.holders, worker)
	} else if h.isUnseen {
		h.limit = pendingLimit
		s.holders[worker] = h
	}
}

// withdraw removes a node from those that wait for a slot, with the slot if it has got one.
func (s *slots) withdraw(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, node)
}

// isContended reports whether a node waits for a slot.
func (s *slots) isContended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) > 0
}
