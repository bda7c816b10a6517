package worker

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
)

// at is a moment by both clocks, mark by the process's own.
func at(t time.Time) clock.Now { return clock.At(t, t) }

func mark(t time.Time) clock.Mark { return at(t).Mark() }

// newTestSlots notes who is called.
func newTestSlots(most int) (s *slots, called func() []string) {
	var nodes []string // written by a timer, with the lock of the slots
	s = newSlots(most, func() clock.Now { return at(time.Now()) }, workerState{}.outcome, func(node string) { nodes = append(nodes, node) })
	return s, func() []string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Clone(nodes)
	}
}

func TestSlots(t *testing.T) {
	both := func(pod *corev1.Pod) { running(pod); deleting(pod) }
	first := func(change ...func(*corev1.Pod)) []*corev1.Pod { return []*corev1.Pod{newWorker("a", 1, change...)} }
	retry := func(change ...func(*corev1.Pod)) []*corev1.Pod { return []*corev1.Pod{newWorker("a", 2, change...)} }
	many := func(attempt int) (workers []*corev1.Pod) {
		for i := range 5 {
			workers = append(workers, newWorker(fmt.Sprint(attempt, "-", i), attempt, running))
		}
		return workers
	}
	for name, test := range map[string]struct {
		workers []*corev1.Pod
		since   time.Duration
		attempt int
		want    int // free slots of five
	}{
		"all free":                                {attempt: 1, want: 5},
		"all free for retries":                    {attempt: 2, want: 5},
		"a first attempt holds none of a retry":   {attempt: 2, workers: first(), want: 5},
		"retries hold none of a first attempt":    {attempt: 1, workers: many(2), want: 5},
		"retries hold those of retries":           {attempt: 2, workers: many(3), want: 0},
		"pending":                                 {attempt: 1, workers: first(), since: 4 * time.Second, want: 4},
		"runs":                                    {attempt: 1, workers: first(running), since: 4 * time.Second, want: 4},
		"slow ones do not hold up other nodes":    {attempt: 1, workers: many(1), since: 5 * time.Second, want: 5},
		"a retry is pending":                      {attempt: 2, workers: retry(), since: 29 * time.Second, want: 4},
		"a retry is pending for long":             {attempt: 2, workers: retry(), since: 30 * time.Second, want: 5},
		"a retry runs":                            {attempt: 2, workers: retry(running), since: 4 * time.Second, want: 4},
		"slow retries do not hold up other nodes": {attempt: 2, workers: many(2), since: 5 * time.Second, want: 5},
		"is being deleted":                        {attempt: 1, workers: first(both), want: 4},
		"has passed":                              {attempt: 1, workers: first(ready), want: 5},
		"has ended":                               {attempt: 1, workers: first(ended(1, failing)), want: 5},
		"evicted":                                 {attempt: 1, workers: first(evicted), want: 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, called := newTestSlots(5)
				for _, pod := range test.workers {
					s.observe(pod, false)
				}
				time.Sleep(test.since)
				for i := range 20 {
					s.acquire(fmt.Sprint(i), fmt.Sprint("worker-", i), test.attempt)
				}
				time.Sleep(10 * betweenGrants)
				assert.Len(t, called(), test.want)
				for _, pod := range test.workers {
					s.observe(pod, true)
					assert.NotContains(t, s.holders, pod.Name)
				}
			})
		})
	}
}

// The slot of a worker that the cache does not show becomes free when the worker is not there, or in time.
func TestSlotOfAWorkerThatIsNotSeen(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(s *slots)
		free    time.Duration // after this time
	}{
		"its creation was refused":       {func(s *slots) { s.notCreated("a-1", true) }, 0},
		"nobody knows if it was created": {func(s *slots) { s.notCreated("a-1", false) }, pendingLimit},
		"it was created":                 {func(*slots) {}, unseenLimit},
		"it is there": {func(s *slots) {
			s.observe(newWorker("a-1", 1), false)
			s.notCreated("a-1", false)
		}, startLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, called := newTestSlots(1)
				assert.True(t, s.acquire("a", "a-1", 1))
				test.happens(s)
				assert.False(t, s.acquire("b", "b-1", 1))
				time.Sleep(test.free - time.Millisecond)
				assert.Equal(t, []string{"a"}, called())
				time.Sleep(2 * betweenGrants)
				assert.Equal(t, []string{"a", "b"}, called())
				assert.True(t, s.acquire("b", "b-1", 1))
			})
		})
	}
}

// A node that is not to be verified any more gives back the slot that it has got.
func TestSlotIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, called := newTestSlots(1)
		for i, node := range []string{"a", "b", "c"} {
			assert.Equal(t, i == 0, s.acquire(node, node+"-1", 1))
			time.Sleep(time.Millisecond)
		}
		s.notCreated("a-1", true)
		time.Sleep(time.Second)
		assert.Equal(t, []string{"a", "b"}, called())
		s.withdraw("b")
		time.Sleep(time.Second)
		assert.Equal(t, []string{"a", "b", "c"}, called())
	})
}

func TestWhoGetsTheNextSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, called := newTestSlots(9)
		for node, place := range map[string]waiter{
			"old retry":    {isRetry: true, since: mark(time.Now().Add(-time.Hour))},
			"older retry":  {isRetry: true, since: mark(time.Now().Add(-2 * time.Hour))},
			"first":        {since: mark(time.Now().Add(-time.Second))},
			"called first": {since: mark(time.Now().Add(-time.Minute)), isGranted: true},
			"later first":  {since: mark(time.Now())},
		} {
			s.waiting[node] = place
		}
		s.grant()
		time.Sleep(time.Second)
		assert.Equal(t, []string{"first", "later first", "older retry", "old retry"}, called())
	})
}

// A machine that was busy gives the slots that it has missed, but no burst of them however late it is.
func TestSlotsOfABusyMachine(t *testing.T) {
	for late, want := range map[time.Duration]int{0: 1, betweenGrants: 1, 3 * betweenGrants: 3, 5 * betweenGrants: 5, time.Minute: 5} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, called := newTestSlots(100)
				for i := range 20 {
					s.waiting[fmt.Sprint(i)] = waiter{since: mark(time.Now())}
				}
				s.lastGrant = mark(time.Now().Add(-late))
				s.grant()
				assert.Len(t, called(), want)
				time.Sleep(betweenGrants + time.Millisecond)
				assert.Len(t, called(), want+1, "then one at a time")
				time.Sleep(time.Second)
				assert.Len(t, called(), 20)
			})
		})
	}
}

// Each third attempt that passes, or a later one, shortens the pauses of the others. A second one says nothing.
func TestWhoShortensThePausesOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		attempt int
		ends    func(*corev1.Pod)
		unseen  bool // until it has ended
		want    bool
	}{
		"first":                     {attempt: 1, ends: ready},
		"second":                    {attempt: 2, ends: ready},
		"third":                     {attempt: 3, ends: ready, want: true},
		"fourth":                    {attempt: 4, ends: ended(0, ""), want: true},
		"third fails":               {attempt: 3, ends: ended(1, failing)},
		"third, before this leader": {attempt: 3, ends: ready, unseen: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			pod := newWorker("a", test.attempt, running)
			if !test.unseen {
				c.workerChanged(c.queue, pod, false)
			}
			test.ends(pod)
			c.workerChanged(c.queue, pod, false)
			assert.Equal(t, test.want, !c.memories.healed.IsZero())
		})
	}
}
