package worker

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// countsFor is how long a verdict counts.
	countsFor = 2 * time.Minute
	// firstRetry is the wait after the first failed attempt; each one after it is twice as long, up to longestRetry.
	firstRetry   = 30 * time.Second
	longestRetry = 8 * time.Minute
	// afterInterruption is the wait after a worker that kubelet has refused or evicted: that says nothing about the node's network.
	afterInterruption = 10 * time.Second
	// cacheDelay is how long the cache may be behind what this process has written.
	cacheDelay = 5 * time.Second
	// betweenRemovals is the time between two removals of a startup taint that comes back.
	betweenRemovals = 2 * time.Second
)

// step is what is to be done about a node now.
type step struct {
	release     *corev1.Pod // the worker whose verdict releases the node
	removeTaint bool        // the node is verified, and the startup taint was added again
	create      int         // the attempt that a new worker makes, 0: none
	delete      []*corev1.Pod
	wait        time.Duration // decide again after this time; 0: when something changes
}

// next decides what is to be done about node. workers are those of the cache for a node of this name, and m has observed them.
func (s Settings) next(node *corev1.Node, workers []*corev1.Pod, m memory, now time.Time) step {
	live := slices.DeleteFunc(slices.Clone(workers), func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || m.workers[pod.Name].deleted
	})
	annotation := s.annotation(node)
	if annotation.Worker != m.released && now.Sub(m.releasedAt) < cacheDelay {
		return step{wait: m.releasedAt.Add(cacheDelay).Sub(now)} // the cache does not show the release yet
	}
	switch {
	case !s.Fleet.Rules.Select(node), s.Fleet.IsVerified(node), !s.Fleet.IsGated(node), s.Fleet.ForeignTaint(node) != nil:
		return step{delete: live} // results from before a foreign taint is gone are meaningless
	case fleet.Untouchable(node) != "":
		return step{}
	case annotation.Time != "" && node.Labels[s.Fleet.Request.Label] == s.Fleet.Request.LabelValue:
		if since := now.Sub(m.taintRemovedAt); since < betweenRemovals {
			return step{wait: betweenRemovals - since}
		}
		return step{removeTaint: true, delete: live}
	}
	var counting, others []*corev1.Pod
	for _, pod := range live {
		if isAbout(pod, node) && pod.UID != annotation.Worker && !m.workers[pod.Name].void {
			counting = append(counting, pod)
		} else {
			others = append(others, pod)
		}
	}
	var decided step
	if len(counting) > 0 {
		slices.SortFunc(counting, fleet.Newer)
		newest := counting[len(counting)-1]
		decided, others = nextAfter(newest, m.workers[newest.Name], now), append(others, counting[:len(counting)-1]...)
	} else {
		decided.create = 1
	}
	if decided.create > 0 && m.expects() {
		decided = step{wait: cacheDelay}
	}
	decided.delete = others
	return decided
}

// nextAfter decides what follows on the newest worker of a node that is to be verified. The worker itself stays until another one
// has come, or the node is verified: its log is what is left of a failure.
func nextAfter(pod *corev1.Pod, worker sight, now time.Time) step {
	attempt := fleet.Attempt(pod)
	createAfter := func(pause time.Duration, attempt int) step {
		if wait := worker.ended.Add(pause).Sub(now); wait > 0 {
			return step{wait: wait}
		}
		return step{create: attempt}
	}
	outcome := worker.outcome(pod)
	switch outcome {
	case fleet.Passed:
		// A worker that had ended before this process saw it may have passed at any time; one that is ready ends within a minute.
		unwitnessed := worker.first.Equal(worker.ended) && fleet.HasEnded(pod)
		switch {
		case unwitnessed:
			return step{create: attempt}
		case now.Sub(worker.ended) < countsFor:
			return step{release: pod}
		}
		return createAfter(pauseAfter(attempt), attempt+1) // the release has failed all the time
	case fleet.FailedRound, fleet.Crashed:
		return createAfter(pauseAfter(attempt), attempt+1)
	case fleet.Interrupted:
		return createAfter(afterInterruption, attempt)
	default:
		return step{}
	}
}

// pauseAfter returns how long to wait after a failed attempt.
func pauseAfter(attempt int) time.Duration {
	pause := firstRetry
	for ; attempt > 1 && pause < longestRetry; attempt-- {
		pause *= 2
	}
	return pause
}

// isAbout reports whether a worker was created for this node as it runs now: neither for another one of its name nor before it
// was started again.
func isAbout(pod *corev1.Pod, node *corev1.Node) bool {
	return pod.Annotations[fleet.NodeUIDAnnotation] == string(node.UID) &&
		pod.Annotations[fleet.BootIDAnnotation] == node.Status.NodeInfo.BootID
}
