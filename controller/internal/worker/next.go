package worker

import (
	"hash/crc32"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

const (
	// countsFor is how long a verdict counts.
	countsFor = 2 * time.Minute
	// firstRetry is the wait after the first failed attempt; each one after it is twice as long, up to longestRetry, and at
	// most 30 s after a third attempt of any node, or a later one, has passed.
	firstRetry   = 30 * time.Second
	longestRetry = 8 * time.Minute
	// afterInterruption is the wait after a worker that kubelet has refused or evicted: that says nothing about the node's network.
	// After several in a row it is twice as long each time, up to longestInterruption.
	afterInterruption   = 10 * time.Second
	longestInterruption = 5 * time.Minute
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
	// Of the last release, empty where there is none or somebody else has written it.
	released, _ := verdict.ParseRecord(node.Annotations[s.Fleet.Request.Annotation])
	if m.isBehind(node, now) {
		return step{wait: m.releasedAt.Add(cacheDelay).Sub(now)} // if no event shows the release
	}
	switch {
	case !s.Fleet.Rules.Select(node), s.Fleet.IsVerified(node), !s.Fleet.IsGated(node),
		s.Fleet.Request.ForeignTaint(fleet.Taints(node)) != nil:
		return step{delete: live} // results from before a foreign taint is gone are meaningless
	case fleet.Untouchable(node) != "":
		return step{}
	case released.Time != "" && node.Labels[s.Fleet.Request.Label] == s.Fleet.Request.LabelValue:
		if since := now.Sub(m.taintRemovedAt); since < betweenRemovals {
			return step{wait: betweenRemovals - since}
		}
		return step{removeTaint: true, delete: live}
	}
	var counting, others []*corev1.Pod
	for _, pod := range live {
		isUsed := pod.UID == released.Worker || pod.UID == m.released
		if isAbout(pod, node) && !isUsed && !m.workers[pod.Name].void && !s.isOutdated(pod, m.workers[pod.Name]) {
			counting = append(counting, pod)
		} else {
			others = append(others, pod)
		}
	}
	var decided step
	if len(counting) > 0 {
		slices.SortFunc(counting, fleet.Newer)
		newest := counting[len(counting)-1]
		decided, others = s.nextAfter(newest, m, now), append(others, counting[:len(counting)-1]...)
	} else {
		decided.create = 1
	}
	if decided.create > 0 && m.expectsWorker(workers) {
		decided = step{wait: cacheDelay}
	}
	decided.delete = others
	return decided
}

// nextAfter decides what follows on the newest worker of a node that is to be verified. The worker itself stays until another one
// has come, or the node is verified: its log is what is left of a failure.
func (s Settings) nextAfter(pod *corev1.Pod, m memory, now time.Time) step {
	worker, attempt := m.workers[pod.Name], fleet.Attempt(pod)
	createAfter := func(pause time.Duration, attempt int) step {
		if wait := worker.ended.Add(pause).Sub(now); wait > 0 {
			return step{wait: wait}
		}
		return step{create: attempt}
	}
	switch worker.outcome(pod) {
	case fleet.Passed:
		switch {
		case !worker.isPassTimeKnown(pod, m.serverNow, s.Round):
			return step{create: attempt}
		case now.Sub(worker.ended) < countsFor:
			return step{release: pod}
		}
		return createAfter(pauseAfter(attempt), attempt+1) // the release has failed all the time
	case fleet.FailedRound, fleet.Crashed:
		pause := pauseAfter(attempt)
		if pause == longestRetry { // not together with those that failed together: the first that passes wakes the others
			pause -= longestRetry / 4 * 3 / 256 * time.Duration(crc32.ChecksumIEEE([]byte(pod.Name))%256)
		}
		if m.healed.After(worker.first) {
			pause = firstRetry
		}
		return createAfter(pause, attempt+1)
	case fleet.Interrupted:
		return createAfter(double(afterInterruption, m.interrupted-1, longestInterruption), attempt)
	default:
		return step{}
	}
}

// isOutdated reports whether a worker waits that was made from an earlier template: what it waits for may have been corrected.
func (s Settings) isOutdated(pod *corev1.Pod, worker workerState) bool {
	return worker.outcome(pod) == fleet.Waiting && pod.Annotations[fleet.TemplateAnnotation] != s.templateHash()
}

// pauseAfter returns how long to wait after a failed attempt.
func pauseAfter(attempt int) time.Duration { return double(firstRetry, attempt-1, longestRetry) }

// double doubles a pause some times, up to a limit.
func double(pause time.Duration, times int, limit time.Duration) time.Duration {
	for ; times > 0 && pause < limit; times-- {
		pause *= 2
	}
	return min(pause, limit)
}

// isAbout reports whether a worker was created for this node as it runs now: neither for another one of its name nor before it
// was started again.
func isAbout(pod *corev1.Pod, node *corev1.Node) bool {
	return pod.Annotations[fleet.NodeUIDAnnotation] == string(node.UID) &&
		pod.Annotations[fleet.BootIDAnnotation] == node.Status.NodeInfo.BootID
}
