package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

// give gives all free slots, and returns the nodes that have got them.
func give(s *slots, now time.Time) (nodes []string) {
	for {
		node := s.give(now)
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
	for name, test := range map[string]struct {
		workers map[string]*corev1.Pod
		since   time.Duration
		round   time.Duration
		passed  bool
		attempt int
		want    int // free slots of five
	}{
		"all free":                 {attempt: 1, want: 5},
		"half of them for retries": {attempt: 2, want: 3},
		"all of them for retries once one has passed": {attempt: 2, passed: true, want: 5},
		"a first attempt counts as one":               {attempt: 2, workers: map[string]*corev1.Pod{"a": newWorker("a", 1)}, want: 3},
		"pending":                                     {attempt: 1, workers: map[string]*corev1.Pod{"a": newWorker("a", 1)}, since: 29 * time.Second, want: 4},
		"pending for long":                            {attempt: 1, workers: map[string]*corev1.Pod{"a": newWorker("a", 1)}, since: 30 * time.Second, want: 5},
		"a retry":                                     {attempt: 2, workers: map[string]*corev1.Pod{"a": newWorker("a", 3)}, want: 2},
		"runs":                                        {attempt: 1, workers: map[string]*corev1.Pod{"a": newWorker("a", 1, running)}, since: 119 * time.Second, want: 4},
		"of a kubelet that has died":                  {attempt: 1, workers: map[string]*corev1.Pod{"a": newWorker("a", 1, running)}, since: 2 * time.Minute, want: 5},
		"rounds are long":                             {attempt: 1, workers: map[string]*corev1.Pod{"a": newWorker("a", 1, running)}, round: time.Hour, since: 59 * time.Minute, want: 4},
		"is being deleted":                            {attempt: 1, workers: map[string]*corev1.Pod{"a": newWorker("a", 1, both)}, want: 4},
		"has ended":                                   {attempt: 1, workers: map[string]*corev1.Pod{"a": newWorker("a", 1, ended(1, failing))}, want: 5},
		"evicted":                                     {attempt: 1, workers: map[string]*corev1.Pod{"a": newWorker("a", 1, evicted)}, want: 5},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSlots(Settings{MaxWorkers: 5, Round: test.round})
			if test.passed {
				s.see(newWorker("b", 2, running), false, now)
				s.see(newWorker("b", 2, ended(0, "")), false, now)
			}
			for _, pod := range test.workers {
				s.see(pod, false, now)
			}
			for i := range 10 {
				s.waiting[fmt.Sprint(i)] = waiting{attempt: test.attempt, since: now}
			}
			assert.Len(t, give(&s, now.Add(test.since)), test.want)
			for _, pod := range test.workers {
				s.see(pod, true, now)
				assert.NotContains(t, s.holders, pod.Name)
			}
		})
	}
}

func TestWhoGetsTheNextSlot(t *testing.T) {
	now := time.Now()
	s := newSlots(Settings{MaxWorkers: 9})
	s.waiting = map[string]waiting{
		"old retry":    {attempt: 2, since: now.Add(-time.Hour)},
		"older retry":  {attempt: 5, since: now.Add(-2 * time.Hour)},
		"first":        {attempt: 1, since: now.Add(-time.Second)},
		"called first": {attempt: 1, since: now.Add(-time.Minute), worker: "a"},
		"later first":  {attempt: 1, since: now},
	}
	assert.Equal(t, []string{"first", "later first", "older retry", "old retry"}, give(&s, now))
}

// A node that is not to be verified any more gives back the slot that it has got.
func TestSlotIsGivenBack(t *testing.T) {
	r := Reconciler{slots: newSlots(Settings{MaxWorkers: 1})}
	s := &r.slots
	s.waiting["a"] = waiting{attempt: 1}
	assert.Equal(t, "a", s.give(time.Now()))
	s.waiting["b"] = waiting{attempt: 1}
	assert.Empty(t, s.give(time.Now()))
	r.leaveSlots("a")
	assert.Equal(t, "b", s.give(time.Now()))
}
