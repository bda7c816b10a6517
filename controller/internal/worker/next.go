package worker

import (
	"hash/crc32"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// countsFor is how long a verdict counts.
	countsFor = 2 * time.Minute
	// betweenRounds is the shortest time from the start of a worker that fails to its successor.
	betweenRounds = 10 * time.Second
	// firstRetry is the wait after a failed round once INITIAL_TIMEOUT has passed, and always after a crash. Later waits are as long
	// as the node has failed since, up to longestRetry, and firstRetry again for nodes that failed before a third attempt of any
	// node, or a later one, has passed.
	firstRetry   = 30 * time.Second
	longestRetry = 8 * time.Minute
	// afterInterruption is the wait after a worker that kubelet has refused or evicted: that says nothing about the node's network.
	// After several in a row it is twice as long each time, up to longestInterruption.
	afterInterruption   = 10 * time.Second
	longestInterruption = 5 * time.Minute
	// cacheDelay is how long the cache may be behind what this process has written.
	cacheDelay = 5 * time.Second
)

// look is what is known of a node that is looked at, and of its workers.
type look struct {
	node  *corev1.Node
	pods  []*corev1.Pod // its workers in the cache, also for an earlier node of its name
	ended []*corev1.Pod // workers whose outcome is new
	seen  memory        // with pods
	// healed is when a third attempt of any node, or a later one, has passed last.
	healed clock.Mark
	now    clock.Now
	// unmet says what the node does not show of what REQUIRE demands, or "". It is asked only where all else is fulfilled for a
	// release: it may have to list pods.
	unmet func() string
}

// step is what is to be done about a node now.
type step struct {
	release     *corev1.Pod // the worker whose verdict releases the node
	removeTaint bool        // the node is verified, and the startup taint was added again
	held        *corev1.Pod // the worker whose verdict would release the node if it showed what REQUIRE demands
	unmet       string      // what it does not show, with held
	create      int         // the attempt that a new worker makes, 0: none
	first       string      // when the first one was created, for the annotation of a retry
	delete      []*corev1.Pod
	void        bool          // no worker counts that was created until now, not even one that the cache does not show yet
	wait        time.Duration // decide again after this time; 0: when something changes
}

// next decides what is to be done about a node.
func (s Settings) next(l look) step {
	live := slices.DeleteFunc(slices.Clone(l.pods), func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || l.seen.states[pod.Name].deleted
	})
	if wait := l.seen.behind(l.node, l.now); wait > 0 {
		return step{wait: wait}
	}
	switch {
	case !s.Fleet.Rules.Select(l.node), s.Fleet.IsVerified(l.node), !s.Fleet.IsGated(l.node),
		s.Fleet.Keys.ForeignTaint(fleet.Taints(l.node)) != nil:
		return step{delete: live, void: true} // results from before a foreign taint is gone are meaningless
	case fleet.Untouchable(l.node) != "":
		return step{}
	case s.isReleased(l.node):
		if wait := l.seen.pauseLeft(firstRemoval, longestRemoval, l.now); wait > 0 {
			return step{wait: wait}
		}
		return step{removeTaint: true, delete: live}
	}
	newest, decided := s.follow(l, live)
	if decided.create > 0 && l.seen.expectsWorker(l.pods) {
		decided = step{wait: cacheDelay}
	}
	decided.delete = slices.DeleteFunc(live, func(pod *corev1.Pod) bool { return pod == newest })
	return decided
}

// isReleased reports whether a node was released in this boot: a startup taint that it has was put back. Nothing is proven of
// another boot.
func (s Settings) isReleased(node *corev1.Node) bool {
	record, _ := verdict.ParseRecord(node.Annotations[nodepatch.Annotation]) // empty where somebody else has written it
	isSameBoot := record.BootID != "" && record.BootID == node.Status.NodeInfo.BootID
	return node.Labels[s.Fleet.Keys.Label] == s.Fleet.Keys.LabelValue && record.Time != "" && isSameBoot
}

// follow decides what follows on the newest worker that says something about a node, and returns that worker, or nil. The worker
// itself stays until another one has come, or the node is verified: its log is what is left of a failure.
func (s Settings) follow(l look, live []*corev1.Pod) (newest *corev1.Pod, decided step) {
	counting, unproven := s.sortOut(l, live)
	if len(unproven) > 0 {
		newest = slices.MaxFunc(unproven, fleet.Newer)
		if !slices.ContainsFunc(counting, l.seen.outlasts(newest)) {
			return newest, repeat(newest)
		}
	}
	if len(counting) > 0 { // however new an unproven one is: it would be repeated again and again
		newest = slices.MaxFunc(counting, fleet.Newer)
		return newest, s.nextAfter(newest, l)
	}
	return nil, step{create: 1}
}

// sortOut returns the workers that count, and those that have passed, but nobody knows when or what came since. The others say
// nothing about the node as it is now.
func (s Settings) sortOut(l look, live []*corev1.Pod) (counting, unproven []*corev1.Pod) {
	record, _ := verdict.ParseRecord(l.node.Annotations[nodepatch.Annotation])
	for _, pod := range live {
		state := l.seen.states[pod.Name]
		switch {
		case !isAbout(pod, l.node) || pod.UID == record.Worker || state.void || s.isOutdated(pod, state):
		case state.outcome(pod) == fleet.Passed && !state.counts(s.Round):
			unproven = append(unproven, pod)
		default:
			counting = append(counting, pod)
		}
	}
	return counting, unproven
}

// outlasts reports whether a worker says more than one that has passed unproven: it goes on, or has passed, or its attempt is no
// earlier.
func (m memory) outlasts(unproven *corev1.Pod) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		outcome := m.states[pod.Name].outcome(pod)
		hasFailed := outcome != fleet.Waiting && outcome != fleet.Running && outcome != fleet.Passed
		return !hasFailed || fleet.Attempt(pod) >= fleet.Attempt(unproven)
	}
}

// nextAfter decides what follows on a worker that counts.
func (s Settings) nextAfter(pod *corev1.Pod, l look) step {
	state := l.seen.states[pod.Name]
	pause, decided := s.pause(pod, l), step{create: fleet.Attempt(pod) + 1, first: fleet.First(pod)}
	switch state.outcome(pod) {
	case fleet.Waiting, fleet.Running:
		return step{}
	case fleet.Interrupted:
		pause = min(afterInterruption<<max(0, min(l.seen.interrupted-1, 5)), longestInterruption)
		decided = repeat(pod)
	case fleet.Passed:
		if l.now.Since(state.ended) < countsFor || state.held {
			return releaseBy(pod, l)
		} // else the release has failed all the time
	}
	if wait := pause - l.now.Since(state.ended); wait > 0 {
		return step{wait: wait}
	}
	return decided
}

// releaseBy decides about the release of a node whose worker has passed. If the verdict has become too old while the node did not
// show what REQUIRE demands, another worker runs the checks again.
func releaseBy(pod *corev1.Pod, l look) step {
	if wait := l.seen.pauseLeft(firstRelease, longestRelease, l.now); wait > 0 {
		return step{wait: wait}
	}
	age := l.now.Since(l.seen.states[pod.Name].ended)
	if unmet := l.unmet(); unmet != "" { // a pod that becomes ready changes nothing in the caches: ask again
		return step{held: pod, unmet: unmet, wait: min(max(age/5, 2*time.Second), 8*time.Second)}
	}
	if age >= countsFor {
		return repeat(pod)
	}
	return step{release: pod}
}

// pause is the time from the end of a worker that did not release its node to its successor.
func (s Settings) pause(pod *corev1.Pod, l look) time.Duration {
	state, failing := l.seen.states[pod.Name], fleet.FailingFor(pod)
	if state.outcome(pod) == fleet.FailedRound { // any other end says nothing about the network, which may work soon
		if failing < s.Fleet.FailedAfter {
			return betweenRounds - state.ended.Sub(state.first)
		}
		failing -= s.Fleet.FailedAfter
	}
	pause := min(max(failing, firstRetry), longestRetry)
	switch {
	case state.first.Before(l.healed):
		return firstRetry
	case pause == longestRetry: // nodes that failed together retry at different times: the first that passes ends the others' pause
		return pause - spreadByName(pod.Name, longestRetry*3/4)
	}
	return pause
}

// spreadByName returns a part of d that is the same each time for a name.
func spreadByName(name string, d time.Duration) time.Duration {
	return d / 256 * time.Duration(crc32.ChecksumIEEE([]byte(name))%256)
}

// repeat is another worker for the same attempt.
func repeat(pod *corev1.Pod) step {
	return step{create: fleet.Attempt(pod), first: pod.Annotations[fleet.FirstAnnotation]}
}

// isOutdated reports whether a worker waits that was made from an earlier template: what it waits for may have been corrected.
func (s Settings) isOutdated(pod *corev1.Pod, state workerState) bool {
	return state.outcome(pod) == fleet.Waiting && pod.Annotations[fleet.TemplateAnnotation] != s.templateHash()
}

// isAbout reports whether a worker was created for this node as it runs now: neither for another one of its name nor before it
// was started again.
func isAbout(pod *corev1.Pod, node *corev1.Node) bool {
	return pod.Annotations[fleet.NodeUIDAnnotation] == string(node.UID) &&
		pod.Annotations[fleet.BootIDAnnotation] == node.Status.NodeInfo.BootID
}
