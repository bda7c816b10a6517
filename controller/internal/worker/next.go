package worker

import (
	"hash/crc32"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/record"
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
	action any           // one of the types below, nil: none
	delete []*corev1.Pod // after the action
	wait   time.Duration // decide again after this time; 0: when something changes
}

type (
	// release releases the node by the verdict of a worker.
	release struct{ by *corev1.Pod }
	// removal removes a startup taint that was added again to a verified node.
	removal struct{}
	// hold keeps a worker whose verdict would release the node, which does not show what REQUIRE demands.
	hold struct {
		worker *corev1.Pod
		unmet  string
	}
	// creation creates a worker.
	creation struct {
		attempt int
		first   string // when the node's first worker was created, for the annotation of a retry
	}
	// reset lets no worker count that was created until now, not even one that the cache does not show yet.
	reset struct{}
)

// next decides what is to be done about a node.
func (s Settings) next(l look) step {
	live := slices.DeleteFunc(slices.Clone(l.pods), func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || l.seen.states[pod.Name].fate == deleted
	})
	if wait := l.seen.behind(l.node, l.now); wait > 0 {
		return step{wait: wait}
	}
	switch {
	case !s.Fleet.Rules.Select(l.node), s.Fleet.IsVerified(l.node), !s.Fleet.IsGated(l.node),
		s.Fleet.Keys.ForeignTaint(fleet.Taints(l.node)) != nil:
		return step{action: reset{}, delete: live} // results from before a foreign taint is gone are meaningless
	case fleet.Untouchable(l.node) != "":
		return step{}
	case s.isReleased(l.node):
		if wait := l.seen.pauseLeft(firstRemoval, longestRemoval, l.now); wait > 0 {
			return step{wait: wait}
		}
		return step{action: removal{}, delete: live}
	}
	newest, decided := s.follow(l, live)
	if _, creates := decided.action.(creation); creates && l.seen.isExpecting(l.pods, l.now) {
		decided = step{wait: cacheDelay}
	}
	decided.delete = slices.DeleteFunc(live, func(pod *corev1.Pod) bool { return pod == newest })
	return decided
}

// isReleased reports whether a node was released in this boot: a startup taint that it has was put back. Nothing is proven of
// another boot.
func (s Settings) isReleased(node *corev1.Node) bool {
	last, _ := record.Parse(node.Annotations[nodepatch.Annotation]) // empty where somebody else has written it
	isSameBoot := last.BootID != "" && last.BootID == node.Status.NodeInfo.BootID
	return node.Labels[s.Fleet.Keys.Label] == s.Fleet.Keys.LabelValue && last.Time != "" && isSameBoot
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
	return nil, step{action: creation{attempt: 1}}
}

// sortOut returns the workers that count, and those that have passed, but nobody knows when or what came since. The others say
// nothing about the node as it is now.
func (s Settings) sortOut(l look, live []*corev1.Pod) (counting, unproven []*corev1.Pod) {
	last, _ := record.Parse(l.node.Annotations[nodepatch.Annotation])
	for _, pod := range live {
		state := l.seen.states[pod.Name]
		switch {
		case !isAbout(pod, l.node), pod.UID == last.Worker, state.fate >= voided, s.isOutdated(pod, state):
		case state.outcome(pod) == fleet.Passed && !state.isProof(s.Round):
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
		return !isOver(outcome) || outcome == fleet.Passed || fleet.Attempt(pod) >= fleet.Attempt(unproven)
	}
}

// nextAfter decides what follows on a worker that counts.
func (s Settings) nextAfter(pod *corev1.Pod, l look) step {
	state := l.seen.states[pod.Name]
	outcome, age := state.outcome(pod), l.now.Since(state.ended)
	if !isOver(outcome) {
		return step{}
	}
	if outcome == fleet.Passed && (age < countsFor || state.fate == held) { // else the release has failed all the time
		return releaseBy(pod, l)
	}
	if wait := s.pause(pod, l) - age; wait > 0 {
		return step{wait: wait}
	}
	if outcome == fleet.Interrupted {
		return repeat(pod)
	}
	return step{action: creation{attempt: fleet.Attempt(pod) + 1, first: fleet.First(pod)}}
}

// releaseBy decides about the release of a node whose worker has passed. If the verdict has become too old while the node did not
// show what REQUIRE demands, another worker runs the checks again.
func releaseBy(pod *corev1.Pod, l look) step {
	if wait := l.seen.pauseLeft(firstRelease, longestRelease, l.now); wait > 0 {
		return step{wait: wait}
	}
	age := l.now.Since(l.seen.states[pod.Name].ended)
	if unmet := l.unmet(); unmet != "" { // a pod that becomes ready changes nothing in the caches: ask again
		return step{action: hold{worker: pod, unmet: unmet}, wait: min(max(age/5, 2*time.Second), 8*time.Second)}
	}
	if age >= countsFor {
		return repeat(pod)
	}
	return step{action: release{by: pod}}
}

// pause is the time from the end of a worker that did not release its node to its successor.
func (s Settings) pause(pod *corev1.Pod, l look) time.Duration {
	state, failing := l.seen.states[pod.Name], fleet.FailingFor(pod)
	switch outcome := state.outcome(pod); {
	case outcome == fleet.Interrupted:
		return min(afterInterruption<<max(0, min(l.seen.interrupted-1, 5)), longestInterruption)
	case outcome != fleet.FailedRound: // it says nothing about the network, which may work soon
		return l.retryPause(pod, failing)
	case failing < s.Fleet.FailedAfter:
		return betweenRounds - state.ended.Sub(state.first)
	}
	return l.retryPause(pod, failing-s.Fleet.FailedAfter)
}

// retryPause is the time to the successor of a worker whose node has failed for so long.
func (l look) retryPause(pod *corev1.Pod, failing time.Duration) time.Duration {
	switch {
	case l.seen.states[pod.Name].first.Before(l.healed):
		return firstRetry
	case failing >= longestRetry: // nodes that failed together retry at different times: the first one that passes ends all pauses
		return longestRetry - spreadByName(pod.Name, longestRetry*3/4)
	}
	return max(failing, firstRetry)
}

// spreadByName returns a part of d that is the same each time for a name.
func spreadByName(name string, d time.Duration) time.Duration {
	return d / 256 * time.Duration(crc32.ChecksumIEEE([]byte(name))%256)
}

// repeat is another worker for the same attempt.
func repeat(pod *corev1.Pod) step {
	return step{action: creation{attempt: fleet.Attempt(pod), first: pod.Annotations[fleet.FirstAnnotation]}}
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
