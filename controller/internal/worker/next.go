package worker

import (
	"hash/crc32"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

const (
	// countsFor is how long a verdict counts.
	countsFor = 2 * time.Minute
	// betweenRounds is the time from the start of a worker that fails to its successor, at least.
	betweenRounds = 10 * time.Second
	// firstRetry is the wait after a failed round once INITIAL_TIMEOUT has passed, and always after a crash. Then it is as long as
	// the node has failed since, up to longestRetry, and at most 30 s after a third attempt of any node, or a later one, has passed.
	firstRetry   = 30 * time.Second
	longestRetry = 8 * time.Minute
	// afterInterruption is the wait after a worker that kubelet has refused or evicted: that says nothing about the node's network.
	// After several in a row it is twice as long each time, up to longestInterruption.
	afterInterruption   = 10 * time.Second
	longestInterruption = 5 * time.Minute
	// cacheDelay is how long the cache may be behind what this process has written.
	cacheDelay = 5 * time.Second
)

// step is what is to be done about a node now.
type step struct {
	release     *corev1.Pod // the worker whose verdict releases the node
	removeTaint bool        // the node is verified, and the startup taint was added again
	create      int         // the attempt that a new worker makes, 0: none
	first       string      // when the first one was created, for the annotation of a retry
	delete      []*corev1.Pod
	void        bool          // no worker counts that was created until now, not even one that the cache does not show yet
	wait        time.Duration // decide again after this time; 0: when something changes
}

// next decides what is to be done about node. workers are those of the cache for a node of this name, and m has observed them.
func (s Settings) next(node *corev1.Node, workers []*corev1.Pod, m memory, now clock.Now) step {
	live := slices.DeleteFunc(slices.Clone(workers), func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || m.workers[pod.Name].deleted
	})
	// Of the last release, empty where there is none or somebody else has written it.
	released, _ := verdict.ParseRecord(node.Annotations[s.Fleet.Request.Annotation])
	if wait := m.behind(node, now); wait > 0 {
		return step{wait: wait}
	}
	switch {
	case !s.Fleet.Rules.Select(node), s.Fleet.IsVerified(node), !s.Fleet.IsGated(node),
		s.Fleet.Request.ForeignTaint(fleet.Taints(node)) != nil:
		return step{delete: live, void: true} // results from before a foreign taint is gone are meaningless
	case fleet.Untouchable(node) != "":
		return step{}
	case node.Labels[s.Fleet.Request.Label] == s.Fleet.Request.LabelValue && released.Time != "" &&
		released.BootID != "" && released.BootID == node.Status.NodeInfo.BootID: // of another boot nothing is proven
		if wait := m.pause(firstRemoval, longestRemoval) - now.Since(m.patchedAt); wait > 0 {
			return step{wait: wait}
		}
		return step{removeTaint: true, delete: live}
	}
	var counting, unproven, others []*corev1.Pod
	for _, pod := range live {
		worker := m.workers[pod.Name]
		isUsed := pod.UID == released.Worker || pod.UID == m.released
		switch {
		case !isAbout(pod, node) || isUsed || worker.void || s.isOutdated(pod, worker):
			others = append(others, pod)
		case worker.outcome(pod) == fleet.Passed && !worker.counts(s.Round):
			unproven = append(unproven, pod)
		default:
			counting = append(counting, pod)
		}
	}
	slices.SortFunc(counting, fleet.Newer)
	slices.SortFunc(unproven, fleet.Newer)
	var decided step
	switch {
	case len(unproven) > 0 && !slices.ContainsFunc(counting, m.outlasts(unproven[len(unproven)-1])):
		decided, others = repeat(unproven[len(unproven)-1]), slices.Concat(others, counting, unproven[:len(unproven)-1])
	case len(counting) > 0: // however new an unproven one is: it would be repeated again and again
		newest := counting[len(counting)-1]
		decided, others = s.nextAfter(newest, m, now), slices.Concat(others, counting[:len(counting)-1], unproven)
	default:
		decided.create = 1
	}
	if decided.create > 0 && m.expectsWorker(workers) {
		decided = step{wait: cacheDelay}
	}
	decided.delete = others
	return decided
}

// outlasts reports whether a worker says more than one that has passed unproven: it goes on, or has passed, or its attempt is no
// earlier.
func (m memory) outlasts(unproven *corev1.Pod) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		outcome := m.workers[pod.Name].outcome(pod)
		hasFailed := outcome != fleet.Waiting && outcome != fleet.Running && outcome != fleet.Passed
		return !hasFailed || fleet.Attempt(pod) >= fleet.Attempt(unproven)
	}
}

// nextAfter decides what follows on the newest worker of a node that is to be verified. The worker itself stays until another one
// has come, or the node is verified: its log is what is left of a failure.
func (s Settings) nextAfter(pod *corev1.Pod, m memory, now clock.Now) step {
	worker := m.workers[pod.Name]
	next := step{create: fleet.Attempt(pod) + 1, first: fleet.First(pod)}
	createAfter := func(pause time.Duration, decided step) step {
		if wait := pause - now.Since(worker.ended); wait > 0 {
			return step{wait: wait}
		}
		return decided
	}
	failing := fleet.FailingFor(pod)
	switch worker.outcome(pod) {
	case fleet.Waiting, fleet.Running:
		return step{}
	case fleet.Interrupted:
		return createAfter(min(afterInterruption<<max(0, min(m.interrupted-1, 5)), longestInterruption), repeat(pod))
	case fleet.FailedRound: // else it says nothing about the network, which may work soon
		failing -= s.Fleet.FailedAfter
	case fleet.Passed:
		if now.Since(worker.ended) < countsFor || worker.held {
			if wait := m.pause(firstRelease, longestRelease) - now.Since(m.patchedAt); wait > 0 {
				return step{wait: wait}
			}
			return step{release: pod}
		} // else the release has failed all the time
	}
	pause := min(max(failing, firstRetry), longestRetry)
	switch {
	case failing < 0:
		pause = betweenRounds - worker.ended.Sub(worker.first)
	case worker.first.Before(m.healed):
		pause = firstRetry
	case pause == longestRetry: // not together with those that failed together: the first that passes wakes the others
		pause -= longestRetry / 4 * 3 / 256 * time.Duration(crc32.ChecksumIEEE([]byte(pod.Name))%256)
	}
	return createAfter(pause, next)
}

// repeat is another worker for the same attempt.
func repeat(pod *corev1.Pod) step {
	return step{create: fleet.Attempt(pod), first: pod.Annotations[fleet.FirstAnnotation]}
}

// isOutdated reports whether a worker waits that was made from an earlier template: what it waits for may have been corrected.
func (s Settings) isOutdated(pod *corev1.Pod, worker workerState) bool {
	return worker.outcome(pod) == fleet.Waiting && pod.Annotations[fleet.TemplateAnnotation] != s.templateHash()
}

// isAbout reports whether a worker was created for this node as it runs now: neither for another one of its name nor before it
// was started again.
func isAbout(pod *corev1.Pod, node *corev1.Node) bool {
	return pod.Annotations[fleet.NodeUIDAnnotation] == string(node.UID) &&
		pod.Annotations[fleet.BootIDAnnotation] == node.Status.NodeInfo.BootID
}
