package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// at is a moment by both clocks, mark by the process's own.
func at(t time.Time) clock.Now { return clock.At(t, t) }

func mark(t time.Time) clock.Mark { return at(t).Mark() }

// give gives all free slots, and returns the nodes that have got them.
func give(s *slots, now time.Time) (nodes []string) {
	for {
		node := s.give(at(now))
		if node == "" {
			return nodes
		}
		nodes = append(nodes, node)
		delete(s.waiting, node)
	}
}

func TestSlots(t *testing.T) {
	now := time.Now()
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
			s := newSlots(Settings{MaxWorkers: 5})
			for _, pod := range test.workers {
				outcome, _ := fleet.WorkerOutcome(pod)
				s.see(pod, outcome, false, at(now))
			}
			for i := range 20 {
				s.waiting[fmt.Sprint(i)] = waiting{attempt: test.attempt, since: mark(now)}
			}
			assert.Len(t, give(&s, now.Add(test.since)), test.want)
			for _, pod := range test.workers {
				s.see(pod, fleet.Running, true, at(now))
				assert.NotContains(t, s.holders, pod.Name)
			}
		})
	}
}

// A worker that was never there holds its slot for as long as it may take, and is forgotten then.
func TestWorkerThatWasNeverThere(t *testing.T) {
	now := time.Now()
	s := newSlots(Settings{MaxWorkers: 1})
	s.waiting["a"] = waiting{attempt: 1}
	assert.Equal(t, "a", s.give(at(now)))
	assert.Len(t, s.holders, 1)
	assert.Empty(t, s.give(at(now.Add(unseenFor-time.Second))))
	assert.Len(t, s.holders, 1)
	assert.Empty(t, s.give(at(now.Add(unseenFor))))
	assert.Empty(t, s.holders)
}

func TestWhoGetsTheNextSlot(t *testing.T) {
	now := time.Now()
	s := newSlots(Settings{MaxWorkers: 9})
	s.waiting = map[string]waiting{
		"old retry":    {attempt: 2, since: mark(now.Add(-time.Hour))},
		"older retry":  {attempt: 5, since: mark(now.Add(-2 * time.Hour))},
		"first":        {attempt: 1, since: mark(now.Add(-time.Second))},
		"called first": {attempt: 1, since: mark(now.Add(-time.Minute)), worker: "a"},
		"later first":  {attempt: 1, since: mark(now)},
	}
	assert.Equal(t, []string{"first", "later first", "older retry", "old retry"}, give(&s, now))
}

// Each third attempt that passes, or a later one, shortens the pauses of the others. A second one says nothing.
func TestWhoShortensThePausesOfOthers(t *testing.T) {
	now := time.Now()
	s := newSlots(Settings{MaxWorkers: 9})
	ends := func(attempt int, outcome fleet.Outcome) clock.Mark {
		now = now.Add(time.Second)
		pod := newWorker(fmt.Sprint(attempt), attempt, running)
		s.see(pod, fleet.Running, false, at(now))
		s.see(pod, outcome, true, at(now))
		return s.healed
	}
	assert.Zero(t, ends(1, fleet.Passed))
	assert.Zero(t, ends(2, fleet.Passed))
	assert.Zero(t, ends(3, fleet.FailedRound))
	assert.Equal(t, mark(now.Add(time.Second)), ends(3, fleet.Passed))
	assert.Equal(t, mark(now.Add(time.Second)), ends(4, fleet.Passed))
	s.see(newWorker("never seen", 3, ready), fleet.Passed, false, at(now.Add(time.Hour)))
	assert.Equal(t, mark(now), s.healed)
}

// A node that is not to be verified any more gives back the slot that it has got.
func TestSlotIsGivenBack(t *testing.T) {
	r := Reconciler{slots: newSlots(Settings{MaxWorkers: 1})}
	s := &r.slots
	s.waiting["a"] = waiting{attempt: 1}
	assert.Equal(t, "a", s.give(at(time.Now())))
	s.waiting["b"] = waiting{attempt: 1}
	assert.Empty(t, s.give(at(time.Now())))
	r.leaveSlots("a")
	assert.Equal(t, "b", s.give(at(time.Now())))
}

// 50 slots a second are given, five at once at most: what a busy machine has missed is made up for, and no more.
func TestPaceOfSlots(t *testing.T) {
	now := time.Now()
	s := newSlots(Settings{MaxWorkers: 1000})
	for i := range 100 {
		s.waiting[fmt.Sprint(i)] = waiting{attempt: 1}
	}
	assert.Len(t, give(&s, now), 5)
	assert.Empty(t, give(&s, now.Add(99*time.Millisecond)))
	assert.Len(t, give(&s, now.Add(100*time.Millisecond)), 5)
	assert.Len(t, give(&s, now.Add(time.Minute)), 5)
}
