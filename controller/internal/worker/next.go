package worker

import (
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
	// cacheDelay is how long the cache may be behind the writes of this process.
	cacheDelay = 5 * time.Second
)

// view is all that a decision about a node depends on.
type view struct {
	node   *corev1.Node
	pods   []*corev1.Pod // its workers in the cache, also those of an earlier node of this name
	memory memory        // after observing pods
	// healed is when a third or later attempt of any node passed last.
	healed clock.Mark
	now    clock.Now
	// unmet are the requirements (REQUIRE) that the node does not meet, or "". It is nil before an inquiry, which may list pods.
	unmet *string
}

// step is the next step for a node.
type step struct {
	action action        // may be nil
	delete []*corev1.Pod // after the action
	wait   time.Duration // until the next step; zero means that it follows on a change
}

// action is one of the types below.
type action interface{ isAction() }

type (
	// release releases the node by the verdict of a worker.
	release struct{ by *corev1.Pod }
	// removal removes a startup taint that was added again to a verified node.
	removal struct{}
	// inquiry finds the unmet requirements of a node that is otherwise ready for a release, and decides again.
	inquiry struct{}
	// hold retains a worker that has passed, because the node has unmet requirements.
	hold struct{ worker *corev1.Pod }
	// creation creates a worker.
	creation struct {
		attempt int
		first   string // when the node's first worker was created, for the annotation of a retry
	}
	// reset voids the verdicts of all workers created until now, even of those that the cache does not show yet.
	reset struct{}
)

func (release) isAction()  {}
func (removal) isAction()  {}
func (inquiry) isAction()  {}
func (hold) isAction()     {}
func (creation) isAction() {}
func (reset) isAction()    {}

// next decides on the next step for a node.
func (s Settings) next(v view) step {
	live := slices.DeleteFunc(slices.Clone(v.pods), func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || v.memory.workers[pod.Name].fate == deleted
	})
	if wait := v.memory.cacheLag.left(v.node, v.now); wait > 0 {
		return step{wait: wait}
	}
	switch {
	case !s.Fleet.Rules.Select(v.node), s.Fleet.IsVerified(v.node), !s.Fleet.IsGated(v.node),
		s.Fleet.Keys.ForeignTaint(fleet.Taints(v.node)) != nil:
		return step{action: reset{}, delete: live} // results from before a foreign taint is gone are meaningless
	case fleet.Untouchable(v.node) != "":
		return step{}
	case s.isReleased(v.node):
		if wait := v.memory.tries.pauseLeft(firstRemoval, longestRemoval, v.now); wait > 0 {
			return step{wait: wait}
		}
		return step{action: removal{}, delete: live}
	}
	newest, says := s.newest(v, live)
	decided := s.nextAfter(newest, says, v)
	if _, creates := decided.action.(creation); creates && v.memory.isExpecting(v.pods, v.now) {
		decided = step{wait: cacheDelay}
	}
	// The newest stays until another one has come, or the node is verified: its log is all that is left of a failure.
	decided.delete = slices.DeleteFunc(live, func(pod *corev1.Pod) bool { return pod == newest })
	return decided
}

// isReleased reports whether a node was released in this boot: a startup taint that it has was put back. Nothing is proven of
// another boot.
func (s Settings) isReleased(node *corev1.Node) bool {
	last, _ := record.Parse(node.Annotations[nodepatch.Annotation]) // empty if another client wrote it
	isSameBoot := last.BootID != "" && last.BootID == node.Status.NodeInfo.BootID
	return node.Labels[s.Fleet.Keys.Label] == s.Fleet.Keys.LabelValue && last.Time != "" && isSameBoot
}

// standing is the value of a worker as evidence about its node in the present boot.
type standing int

const (
	irrelevant standing = iota // for another boot or template, already used for a release, or voided
	undated                    // it has passed, but at an unknown time: a foreign taint may have come and gone since
	evidence                   // its outcome counts, or it will have one
)

// standingOf returns the standing of a worker that is not being deleted.
func (s Settings) standingOf(pod *corev1.Pod, v view) standing {
	last, _ := record.Parse(v.node.Annotations[nodepatch.Annotation])
	state := v.memory.workers[pod.Name]
	outcome := state.outcome(pod)
	isForThisBoot := pod.Annotations[fleet.NodeUIDAnnotation] == string(v.node.UID) &&
		pod.Annotations[fleet.BootIDAnnotation] == v.node.Status.NodeInfo.BootID
	// What it waits for may have been corrected in the template.
	isOutdated := outcome == fleet.Waiting && pod.Annotations[fleet.TemplateAnnotation] != s.templateHash()
	switch {
	case !isForThisBoot, isOutdated, pod.UID == last.Worker, state.fate >= voided:
		return irrelevant
	case outcome == fleet.Passed && !state.isDated(s.Round):
		return undated
	}
	return evidence
}

// newest returns the worker that the next step follows on, and its standing. It is nil if all workers are irrelevant.
func (s Settings) newest(v view, live []*corev1.Pod) (*corev1.Pod, standing) {
	by := make(map[standing][]*corev1.Pod)
	for _, pod := range live {
		is := s.standingOf(pod, v)
		by[is] = append(by[is], pod)
	}
	if len(by[undated]) > 0 {
		pod := slices.MaxFunc(by[undated], fleet.Newer)
		if !slices.ContainsFunc(by[evidence], v.memory.saysMoreThan(pod)) {
			return pod, undated
		}
	}
	if len(by[evidence]) > 0 { // even if an undated one is newer, which would be repeated again and again
		return slices.MaxFunc(by[evidence], fleet.Newer), evidence
	}
	return nil, irrelevant
}

// saysMoreThan reports whether evidence outweighs an undated worker: it has no outcome yet, it has passed, or its attempt is the
// same or a later one.
func (m memory) saysMoreThan(undated *corev1.Pod) func(evidence *corev1.Pod) bool {
	return func(evidence *corev1.Pod) bool {
		outcome := m.workers[evidence.Name].outcome(evidence)
		return !isOver(outcome) || outcome == fleet.Passed || fleet.Attempt(evidence) >= fleet.Attempt(undated)
	}
}

// nextAfter decides on the step that follows on a worker with this standing, which is nil if all are irrelevant.
func (s Settings) nextAfter(pod *corev1.Pod, says standing, v view) step {
	switch says {
	case irrelevant:
		return step{action: creation{attempt: 1}}
	case undated:
		return repeat(pod)
	}
	state := v.memory.workers[pod.Name]
	outcome, age := state.outcome(pod), v.now.Since(state.ended)
	switch {
	case !isOver(outcome):
		return step{}
	case outcome == fleet.Passed && (age < countsFor || state.fate == held): // otherwise the release has failed all the time
		return nextAfterPass(pod, age, v)
	}
	if wait := s.pause(pod, v) - age; wait > 0 {
		return step{wait: wait}
	}
	if outcome == fleet.Interrupted {
		return repeat(pod)
	}
	return step{action: creation{attempt: fleet.Attempt(pod) + 1, first: fleet.First(pod)}}
}

// nextAfterPass decides about the release of a node whose worker passed that long ago. If the verdict has become too old while
// the node did not meet REQUIRE, another worker runs the checks again.
func nextAfterPass(pod *corev1.Pod, age time.Duration, v view) step {
	wait := v.memory.tries.pauseLeft(firstRelease, longestRelease, v.now)
	switch {
	case wait > 0:
		return step{wait: wait}
	case v.unmet == nil:
		return step{action: inquiry{}}
	case *v.unmet != "": // a pod that becomes ready changes nothing in the caches: ask again
		return step{action: hold{worker: pod}, wait: min(max(age/5, 2*time.Second), 8*time.Second)}
	case age >= countsFor:
		return repeat(pod)
	}
	return step{action: release{by: pod}}
}

// repeat is another worker for the same attempt.
func repeat(pod *corev1.Pod) step {
	return step{action: creation{attempt: fleet.Attempt(pod), first: pod.Annotations[fleet.FirstAnnotation]}}
}
