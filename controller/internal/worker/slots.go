package worker

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// pendingFor is how long a worker that does not run holds its slot.
	pendingFor = 30 * time.Second
	// runningFor is how long any worker does, or as long as a round: that of a kubelet which has died never ends.
	runningFor = 2 * time.Minute
)

// slots are the workers at a time: those that hold a slot, and how many of them repeat an attempt.
type slots struct{ max, taken, retries int }

// countSlots counts the workers that hold a slot: those of the cache, and those that were created and are not in the cache yet.
// A worker that is being deleted holds its slot until it has ended.
func (s Settings) countSlots(pods []corev1.Pod, nodes map[string]memory, now time.Time) slots {
	counted := slots{max: s.MaxWorkers}
	count := func(attempt int) {
		counted.taken++
		if attempt > 1 {
			counted.retries++
		}
	}
	cached := make(map[string]bool, len(pods))
	for i := range pods {
		pod := &pods[i]
		cached[pod.Name] = true
		outcome, _ := fleet.WorkerOutcome(pod)
		worker, known := nodes[fleet.NodeOf(pod)].workers[pod.Name]
		limit := max(runningFor, s.Round)
		if outcome == fleet.Waiting {
			limit = pendingFor
		}
		if !fleet.HasEnded(pod) && (!known || now.Sub(worker.first) < limit) {
			count(fleet.Attempt(pod))
		}
	}
	for _, m := range nodes {
		for name, worker := range m.workers {
			if worker.created && !cached[name] {
				count(worker.attempt)
			}
		}
	}
	return counted
}

// hasFree reports whether there is a slot for an attempt: any for a first one, half of them for the others. Nodes that fail again
// and again do not hold up new ones.
func (s slots) hasFree(attempt int) bool {
	return s.taken < s.max && (attempt == 1 || s.retries < s.max-s.max/2)
}

// waiting is a node that has no slot.
type waiting struct {
	attempt int
	since   time.Time
	called  bool // it has been called to try again
}

// longest returns the node that gets the next slot, or "": first attempts come first, then those that wait longest.
func longest(nodes map[string]waiting) (name string) {
	for other, one := range nodes {
		if !one.called && (name == "" || compareWaiting(one, nodes[name]) < 0) {
			name = other
		}
	}
	return name
}

func compareWaiting(a, b waiting) int {
	return cmp.Or(cmp.Compare(min(a.attempt, 2), min(b.attempt, 2)), a.since.Compare(b.since))
}
