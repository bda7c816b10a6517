package worker

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// The decisions are compared with those of the code from before the states were named, which is copied below: for every set of up
// to three workers, and along random lives of a node.

// remembered is what both versions remember of a node.
type remembered struct {
	now memory
	old oldMemory
}

func newRemembered() *remembered {
	return &remembered{memory{workers: make(map[string]workerState)}, oldMemory{states: make(map[string]oldState)}}
}

// set lets both remember the same about a worker.
func (r *remembered) set(name string, s oldState) {
	r.old.states[name] = s
	r.now.workers[name] = workerState{first: s.first, ran: s.ran, ended: s.ended, own: s.own, passed: s.passed,
		fate: s.fate()}
}

// fate is the fate that the three flags of before mean.
func (s oldState) fate() fate {
	switch {
	case s.deleted:
		return deleted
	case s.void:
		return voided
	case s.held:
		return held
	}
	return counts
}

// change changes what both remember about a worker, if they do.
func (r *remembered) change(name string, change func(*oldState)) {
	state, known := r.old.states[name]
	if change(&state); known {
		r.set(name, state)
	}
}

func (r *remembered) setPatches(n int, at clock.Mark) {
	r.old.patches, r.old.patchedAt = n, at
	r.now.tries = tries{n, at}
}

func (r *remembered) setNewest(version string, at clock.Mark) {
	r.old.newest, r.old.newestAt = version, at
	r.now.cacheLag = cacheLag{version, at}
}

// next returns the steps of both.
func (r *remembered) next(s Settings, node *corev1.Node, pods []*corev1.Pod, unmet string, healed clock.Mark, now clock.Now) (newer, older string) {
	ask := func() string { return unmet }
	newStep := s.next(view{node: node, pods: pods, memory: r.now, healed: healed, now: now})
	if _, inquires := newStep.action.(inquiry); inquires {
		newStep = s.next(view{node: node, pods: pods, memory: r.now, healed: healed, now: now, unmet: &unmet})
	}
	oldStep := oldSettings{s}.next(oldLook{node: node, pods: pods, seen: r.old, healed: healed, now: now, unmet: ask})
	older = "nothing"
	switch action := oldStep.action.(type) {
	case oldRelease:
		older = "release " + action.by.Name
	case oldRemoval:
		older = "removal"
	case oldHold:
		older = "hold " + action.worker.Name + " " + action.unmet
	case oldCreation:
		older = fmt.Sprint("creation ", action.attempt, " ", action.first)
	case oldReset:
		older = "reset"
	}
	newer = "nothing"
	switch action := newStep.action.(type) {
	case release:
		newer = "release " + action.by.Name
	case removal:
		newer = "removal"
	case hold:
		newer = "hold " + action.worker.Name + " " + unmet
	case creation:
		newer = fmt.Sprint("creation ", action.attempt, " ", action.first)
	case reset:
		newer = "reset"
	}
	return newer + afterwards(newStep.delete, newStep.wait), older + afterwards(oldStep.delete, oldStep.wait)
}

// afterwards describes what follows on an action.
func afterwards(deleted []*corev1.Pod, wait time.Duration) string {
	return ", delete " + strings.Join(names(deleted), " ") + ", wait " + wait.String()
}

func names(pods []*corev1.Pod) (all []string) {
	for _, pod := range pods {
		all = append(all, pod.Name)
	}
	return all
}

// kind is a worker, with what is remembered of it.
type kind struct {
	attempt int
	change  func(*corev1.Pod)
	state   oldState
}

// kinds returns workers in all states that matter for the choice among several.
func kinds(now time.Time) (all []kind) {
	ago := func(d time.Duration) clock.Mark { return mark(now.Add(-d)) }
	young := oldState{first: ago(20 * time.Second), ran: ago(15 * time.Second), ended: ago(5 * time.Second), own: true}
	aged, foreign, seenPassing, void, holding, gone := young, young, young, young, young, young
	aged.first, aged.ran, aged.ended = ago(10*time.Minute), ago(9*time.Minute), ago(3*time.Minute)
	foreign.own, seenPassing.passed, void.void, gone.void, gone.deleted = false, true, true, true, true
	holding.passed, holding.held, holding.ended = true, true, ago(3*time.Minute)
	going := oldState{first: ago(20 * time.Second), own: true}
	for attempt := 1; attempt <= 3; attempt++ {
		all = append(all, kind{attempt, func(*corev1.Pod) {}, going}, kind{attempt, running, going},
			kind{attempt, ended(0, ""), young}, kind{attempt, ended(0, ""), foreign}, kind{attempt, ended(1, failing), young},
			kind{attempt, ended(1, failing), aged})
	}
	for attempt := 1; attempt <= 2; attempt++ {
		all = append(all, kind{attempt, ready, seenPassing}, kind{attempt, ready, foreign}, kind{attempt, evicted, young},
			kind{attempt, ended(2, "usage"), foreign})
	}
	otherNode, otherTemplate := annotate(fleet.NodeUIDAnnotation, "other"), annotate(fleet.TemplateAnnotation, "old")
	both := func(pod *corev1.Pod) { running(pod); deleting(pod) }
	return append(all, kind{2, running, seenPassing}, kind{2, ready, holding}, kind{1, ended(0, ""), aged}, kind{2, ready, void},
		kind{2, ended(0, ""), gone}, kind{2, otherNode, going}, kind{2, otherTemplate, going}, kind{2, both, going})
}

func TestNextAsBeforeForEverySetOfWorkers(t *testing.T) {
	now := time.Unix(1e9, 0)
	s, node, all := newSettings(), newNode(), kinds(now)
	s.Fleet.FailedAfter = time.Minute
	var pods [3][]*corev1.Pod // by place and kind; those in a later place are younger
	for place := range pods {
		for i, k := range all {
			pods[place] = append(pods[place], newWorker(fmt.Sprint(place, "-", i), k.attempt, k.change, createdAt(now.Add(time.Duration(place)*time.Second))))
		}
	}
	var compare func(place int, chosen []*corev1.Pod, r *remembered)
	sets := 0
	compare = func(place int, chosen []*corev1.Pod, r *remembered) {
		newer, older := r.next(s, node, chosen, "", clock.Mark{}, at(now))
		require.Equal(t, older, newer, names(chosen))
		sets++
		if place == len(pods) {
			return
		}
		for i, k := range all {
			pod := pods[place][i]
			r.set(pod.Name, k.state)
			compare(place+1, append(chosen, pod), r)
			delete(r.old.states, pod.Name)
			delete(r.now.workers, pod.Name)
		}
	}
	compare(0, nil, newRemembered())
	t.Log(sets, "sets")
}

// A life has every change of the workers, the node and the memory, in any order, also those that no cluster shows.
func TestNextAsBeforeInRandomLives(t *testing.T) {
	steps := make(map[string]int)
	for seed := range uint64(400) {
		random, now := rand.New(rand.NewPCG(seed, 40)), time.Unix(1e9, 0)
		s, node, r := newSettings(), newNode(), newRemembered()
		s.Fleet.FailedAfter = time.Minute
		var pods []*corev1.Pod
		var healed clock.Mark
		one := func(choices ...func()) { choices[random.IntN(len(choices))]() }
		unmet, created := "", 0
		for range 80 {
			now = now.Add(time.Duration(random.IntN(1<<random.IntN(18))) * time.Millisecond)
			name, place := "", -1
			if len(pods) > 0 {
				place = random.IntN(len(pods))
				name, pods[place] = pods[place].Name, pods[place].DeepCopy()
			}
			set := func(change func(*corev1.Pod)) func() {
				return func() {
					if place >= 0 {
						change(pods[place])
					}
				}
			}
			remember := func(change func(*oldState)) func() { return func() { r.change(name, change) } }
			add := func() {
				created++
				pod := newWorker(fmt.Sprint("w", created), 1+random.IntN(4), failingFor(time.Duration(random.IntN(600))*time.Second), createdAt(now))
				if random.IntN(4) > 0 {
					r.set(pod.Name, oldState{first: mark(now), own: true, key: "key"})
				}
				if random.IntN(6) > 0 && len(pods) < 3 {
					pods = append(pods, pod)
				}
			}
			one(add, add, set(running), set(running), set(ready), set(ready), set(ended(0, "")), set(ended(1, failing)), set(ended(1, failing)),
				set(ended(2, "")), set(evicted), set(deleting), func() {
					if place >= 0 {
						pods = slices.Delete(pods, place, place+1)
					}
				},
				remember(func(s *oldState) { s.passed, s.ended = true, mark(now) }), remember(func(s *oldState) { s.void = true }),
				remember(func(s *oldState) { s.void, s.deleted = true, true }), remember(func(s *oldState) { s.held = true }),
				func() { r.setPatches(random.IntN(4), mark(now)) },
				func() { r.setNewest(fmt.Sprint(100+random.IntN(4)), mark(now)) }, func() { node.ResourceVersion = fmt.Sprint(100 + random.IntN(4)) },
				func() { healed = mark(now) }, func() { unmet = []string{"", "label x"}[random.IntN(2)] },
				func() { node.Spec.Unschedulable = !node.Spec.Unschedulable },
				func() {
					node.Spec.Taints = []corev1.Taint{{Key: startup}, {Key: "cni/not-ready"}}[:1+random.IntN(2)]
				},
				func() {
					node.Labels[verified] = []string{"", "true"}[random.IntN(2)]
					node.Annotations[nodepatch.Annotation] = `{"time":"2026-01-01T00:00:00Z","bootID":"boot","worker":"` + name + `-uid"}`
				})
			var newEnded, oldEnded []*corev1.Pod
			r.now, newEnded = r.now.observe(pods, at(now))
			r.old, oldEnded = r.old.observe(pods, at(now))
			require.Equal(t, names(oldEnded), names(newEnded))
			newer, older := r.next(s, node, pods, unmet, healed, at(now))
			require.Equal(t, older, newer, "seed %d", seed)
			first, _, _ := strings.Cut(older, " ")
			steps[first]++
		}
	}
	t.Log(steps)
	for _, action := range []string{"nothing,", "release", "removal,", "hold", "creation", "reset,"} {
		require.Greater(t, steps[action], 50, "random lives that lack an action prove nothing about it")
	}
}

type oldSettings struct{ Settings }

// look is what is known of a node that is looked at, and of its workers.
type oldLook struct {
	node *corev1.Node
	pods []*corev1.Pod // its workers in the cache, also for an earlier node of its name
	seen oldMemory     // with pods
	// healed is when a third attempt of any node, or a later one, has passed last.
	healed clock.Mark
	now    clock.Now
	// unmet says what the node does not show of what REQUIRE demands, or "". It is asked only where all else is fulfilled for a
	// release: it may have to list pods.
	unmet func() string
}

// step is what is to be done about a node now.
type oldStep struct {
	action any           // one of the types below, nil: none
	delete []*corev1.Pod // after the action
	wait   time.Duration // decide again after this time; 0: when something changes
}

type (
	// release releases the node by the verdict of a worker.
	oldRelease struct{ by *corev1.Pod }
	// removal removes a startup taint that was added again to a verified node.
	oldRemoval struct{}
	// hold keeps a worker whose verdict would release the node, which does not show what REQUIRE demands.
	oldHold struct {
		worker *corev1.Pod
		unmet  string
	}
	// creation creates a worker.
	oldCreation struct {
		attempt int
		first   string // when the node's first worker was created, for the annotation of a retry
	}
	// reset lets no worker count that was created until now, not even one that the cache does not show yet.
	oldReset struct{}
)

// next decides what is to be done about a node.
func (s oldSettings) next(l oldLook) oldStep {
	live := slices.DeleteFunc(slices.Clone(l.pods), func(pod *corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || l.seen.states[pod.Name].deleted
	})
	if wait := l.seen.behind(l.node, l.now); wait > 0 {
		return oldStep{wait: wait}
	}
	switch {
	case !s.Fleet.Rules.Select(l.node), s.Fleet.IsVerified(l.node), !s.Fleet.IsGated(l.node),
		s.Fleet.Keys.ForeignTaint(fleet.Taints(l.node)) != nil:
		return oldStep{action: oldReset{}, delete: live} // results from before a foreign taint is gone are meaningless
	case fleet.Untouchable(l.node) != "":
		return oldStep{}
	case s.isReleased(l.node):
		if wait := l.seen.pauseLeft(firstRemoval, longestRemoval, l.now); wait > 0 {
			return oldStep{wait: wait}
		}
		return oldStep{action: oldRemoval{}, delete: live}
	}
	newest, decided := s.follow(l, live)
	if _, creates := decided.action.(oldCreation); creates && l.seen.isExpecting(l.pods, l.now) {
		decided = oldStep{wait: cacheDelay}
	}
	decided.delete = slices.DeleteFunc(live, func(pod *corev1.Pod) bool { return pod == newest })
	return decided
}

// isReleased reports whether a node was released in this boot: a startup taint that it has was put back. Nothing is proven of
// another boot.
func (s oldSettings) isReleased(node *corev1.Node) bool {
	last, _ := record.Parse(node.Annotations[nodepatch.Annotation]) // empty where somebody else has written it
	isSameBoot := last.BootID != "" && last.BootID == node.Status.NodeInfo.BootID
	return node.Labels[s.Fleet.Keys.Label] == s.Fleet.Keys.LabelValue && last.Time != "" && isSameBoot
}

// follow decides what follows on the newest worker that says something about a node, and returns that worker, or nil. The worker
// itself stays until another one has come, or the node is verified: its log is what is left of a failure.
func (s oldSettings) follow(l oldLook, live []*corev1.Pod) (newest *corev1.Pod, decided oldStep) {
	counting, unproven := s.sortOut(l, live)
	if len(unproven) > 0 {
		newest = slices.MaxFunc(unproven, fleet.Newer)
		if !slices.ContainsFunc(counting, l.seen.outlasts(newest)) {
			return newest, oldRepeat(newest)
		}
	}
	if len(counting) > 0 { // however new an unproven one is: it would be repeated again and again
		newest = slices.MaxFunc(counting, fleet.Newer)
		return newest, s.nextAfter(newest, l)
	}
	return nil, oldStep{action: oldCreation{attempt: 1}}
}

// sortOut returns the workers that count, and those that have passed, but nobody knows when or what came since. The others say
// nothing about the node as it is now.
func (s oldSettings) sortOut(l oldLook, live []*corev1.Pod) (counting, unproven []*corev1.Pod) {
	last, _ := record.Parse(l.node.Annotations[nodepatch.Annotation])
	for _, pod := range live {
		state := l.seen.states[pod.Name]
		switch {
		case !oldIsAbout(pod, l.node), pod.UID == last.Worker, state.void, s.isOutdated(pod, state):
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
func (m oldMemory) outlasts(unproven *corev1.Pod) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		outcome := m.states[pod.Name].outcome(pod)
		return !oldIsOver(outcome) || outcome == fleet.Passed || fleet.Attempt(pod) >= fleet.Attempt(unproven)
	}
}

// nextAfter decides what follows on a worker that counts.
func (s oldSettings) nextAfter(pod *corev1.Pod, l oldLook) oldStep {
	state := l.seen.states[pod.Name]
	outcome, age := state.outcome(pod), l.now.Since(state.ended)
	if !oldIsOver(outcome) {
		return oldStep{}
	}
	if outcome == fleet.Passed && (age < countsFor || state.held) { // else the release has failed all the time
		return oldReleaseBy(pod, l)
	}
	if wait := s.pause(pod, l) - age; wait > 0 {
		return oldStep{wait: wait}
	}
	if outcome == fleet.Interrupted {
		return oldRepeat(pod)
	}
	return oldStep{action: oldCreation{attempt: fleet.Attempt(pod) + 1, first: fleet.First(pod)}}
}

// releaseBy decides about the release of a node whose worker has passed. If the verdict has become too old while the node did not
// show what REQUIRE demands, another worker runs the checks again.
func oldReleaseBy(pod *corev1.Pod, l oldLook) oldStep {
	if wait := l.seen.pauseLeft(firstRelease, longestRelease, l.now); wait > 0 {
		return oldStep{wait: wait}
	}
	age := l.now.Since(l.seen.states[pod.Name].ended)
	if unmet := l.unmet(); unmet != "" { // a pod that becomes ready changes nothing in the caches: ask again
		return oldStep{action: oldHold{worker: pod, unmet: unmet}, wait: min(max(age/5, 2*time.Second), 8*time.Second)}
	}
	if age >= countsFor {
		return oldRepeat(pod)
	}
	return oldStep{action: oldRelease{by: pod}}
}

// pause is the time from the end of a worker that did not release its node to its successor.
func (s oldSettings) pause(pod *corev1.Pod, l oldLook) time.Duration {
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
func (l oldLook) retryPause(pod *corev1.Pod, failing time.Duration) time.Duration {
	switch {
	case l.seen.states[pod.Name].first.Before(l.healed):
		return firstRetry
	case failing >= longestRetry: // nodes that failed together retry at different times: the first one that passes ends all pauses
		return longestRetry - oldSpreadByName(pod.Name, longestRetry*3/4)
	}
	return max(failing, firstRetry)
}

// spreadByName returns a part of d that is the same each time for a name.
func oldSpreadByName(name string, d time.Duration) time.Duration {
	return d / 256 * time.Duration(crc32.ChecksumIEEE([]byte(name))%256)
}

// repeat is another worker for the same attempt.
func oldRepeat(pod *corev1.Pod) oldStep {
	return oldStep{action: oldCreation{attempt: fleet.Attempt(pod), first: pod.Annotations[fleet.FirstAnnotation]}}
}

// isOutdated reports whether a worker waits that was made from an earlier template: what it waits for may have been corrected.
func (s oldSettings) isOutdated(pod *corev1.Pod, state oldState) bool {
	return state.outcome(pod) == fleet.Waiting && pod.Annotations[fleet.TemplateAnnotation] != s.templateHash()
}

// isAbout reports whether a worker was created for this node as it runs now: neither for another one of its name nor before it
// was started again.
func oldIsAbout(pod *corev1.Pod, node *corev1.Node) bool {
	return pod.Annotations[fleet.NodeUIDAnnotation] == string(node.UID) &&
		pod.Annotations[fleet.BootIDAnnotation] == node.Status.NodeInfo.BootID
}

// memory is what this process remembers of a node. Only the leader's process has seen anything.
type oldMemory struct {
	states map[string]oldState // of the node's workers, by the pod's name, which is never used twice
	// newest is the newest resourceVersion of the Node that an answer to this process has shown. The cache may be behind.
	newest      string
	newestAt    clock.Mark
	patches     int        // in a row that did not help: the release failed, or the startup taint was put back
	patchedAt   clock.Mark // the last one of them
	interrupted int        // how many workers in a row
}

// workerState is what this process remembers of a worker. What may be set together:
//
//	own, key  passed  void  deleted  held
//	any       any     no    no       no    the worker counts
//	yes       any     no    no       yes   it has passed, and waits until the node shows what REQUIRE demands
//	any       any     yes   no       any   it does not count any more, and is deleted now or later
//	any       any     yes   yes      any   it is deleted, and the cache may still show it
type oldState struct {
	first   clock.Mark // when it was created, or seen
	ran     clock.Mark // when it was first seen to run
	ended   clock.Mark // when its outcome was first seen; zero: it has none yet
	own     bool       // this process has created it
	key     string     // asks it for its verdict; "": it was asked, or is not this process's own
	passed  bool       // it has said that it has passed, or was seen to be ready: it passed about when that was seen
	void    bool       // its verdict does not count
	deleted bool       // by this process
	held    bool       // it has passed, and the node did not show what REQUIRE demands
}

// outcome returns the outcome of a worker: what it has said itself, or what kubelet reports.
func (s oldState) outcome(pod *corev1.Pod) fleet.Outcome {
	outcome, _ := fleet.WorkerOutcome(pod)
	if s.passed && outcome == fleet.Running {
		return fleet.Passed
	}
	return outcome
}

// isOver reports whether a worker has run its round, or will not.
func oldIsOver(outcome fleet.Outcome) bool {
	return outcome != fleet.Waiting && outcome != fleet.Running
}

// counts reports whether a pass of this worker counts: this process has created it, and so has seen what came in the meantime,
// and its verdict is young. That is certain if it was seen to pass, or if it has ended soon after its start. round is the
// longest that a round takes.
func (s oldState) counts(round time.Duration) bool {
	start := cmp.Or(s.ran, s.first)
	hasEndedSoon := start.Before(s.ended) && s.ended.Sub(start) < countsFor+round
	return s.own && (s.passed || hasEndedSoon)
}

// observe notes what the cache shows of the workers of a node, which are all in pods. It returns those whose outcome is new, too.
func (m oldMemory) observe(pods []*corev1.Pod, now clock.Now) (after oldMemory, ended []*corev1.Pod) {
	states := make(map[string]oldState, len(pods))
	for name, state := range m.states {
		if state.own && !state.deleted && now.Since(state.first) < rememberedFor {
			states[name] = state
		}
	}
	for _, pod := range pods {
		state, known := m.states[pod.Name]
		if !known {
			state.first = now.Mark()
		}
		outcome := state.outcome(pod)
		isNew := oldIsOver(outcome) && state.ended.IsZero()
		switch {
		case outcome == fleet.Running:
			state.ran = cmp.Or(state.ran, now.Mark())
		case isNew:
			state.ended, ended = now.Mark(), append(ended, pod)
		}
		switch {
		case isNew && outcome == fleet.Interrupted:
			m.interrupted++
		case isNew || outcome == fleet.Passed:
			m.interrupted = 0
		}
		state.passed = state.passed || outcome == fleet.Passed && !fleet.HasEnded(pod)
		states[pod.Name] = state
	}
	m.states = states
	return m, ended
}

// isExpecting reports whether the cache does not show yet a worker that this process has just created.
func (m oldMemory) isExpecting(pods []*corev1.Pod, now clock.Now) bool {
	for name, state := range m.states {
		isShown := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.Name == name })
		if !isShown && now.Since(state.first) < expectedFor {
			return true
		}
	}
	return false
}

// behind returns how long to wait, unless an event comes, because the cache shows an older Node than the API server has. A worker
// would be made for nothing, again and again. The limit is for an API server that was restored from a backup.
func (m oldMemory) behind(node *corev1.Node, now clock.Now) time.Duration {
	if m.newest == "" {
		return 0
	}
	order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, m.newest)
	if err == nil && order >= 0 {
		return 0
	}
	return firstRetry - now.Since(m.newestAt)
}

// pauseLeft is how long to wait for the next patch. Each patch that did not help doubles the pause. After a patch that helped the
// pause is zero.
func (m oldMemory) pauseLeft(first, longest time.Duration, now clock.Now) time.Duration {
	return min(first*(1<<min(m.patches, 10)-1), longest) - now.Since(m.patchedAt)
}
