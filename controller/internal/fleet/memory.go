package fleet

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// settled is how long a container must run without a break until it counts as started: one that crashes at once, again and
// again, never does. It is also how long a new reason must last until it replaces another one.
const settled = 10 * time.Second

// Memory is what this process has seen, by its own clock. It is lost in a restart: durations only grow longer by that.
type Memory map[types.UID]memory

// memory is that of one node.
type memory struct {
	seenSince clock.Mark // when it was seen first
	seenLast  clock.Mark
	state     State
	reason    condition.Reasons
	since     clock.Mark // of state and reason
	container string     // the agent's container that runs
	running   clock.Mark // since when, or since the node was verified, or not verified any more; zero: none does
	noAgent   clock.Mark // since when no agent runs: see noAgentSince
	waiting   clock.Mark // since when it is gated and not verified, zero: it is not
	recheck   Recheck    // of a verified node
}

// observe notes what the objects show now. v has no memory yet.
func (s Settings) observe(v view, was memory) memory {
	if isTurn := v.isVerified != (was.state == Verified); isTurn { // what was seen before does not count any more
		was.container, was.noAgent, was.recheck = "", clock.Mark{}, Recheck{}
	}
	m := s.observeContainer(v, was)
	m.seenSince, m.seenLast = cmp.Or(was.seenSince, v.now.Mark()), v.now.Mark()
	m.waiting = clock.Mark{}
	switch {
	case v.isVerified && s.Rechecks.Enabled():
		m.recheck = observeRecheck(v, was, m)
	case !v.isVerified && s.IsGated(v.node):
		m.waiting = cmp.Or(was.waiting, v.now.Mark())
	}
	m.noAgent = s.noAgentSince(v, was, m)
	return m
}

// noAgentSince returns since when no agent or worker runs on a node, zero: one does, or none is to run. is has the container of
// now, and what the condition says.
//
//	no agent is expected                          zero
//	none runs                                     since it was first missed
//	none runs: kubelet cannot make its sandbox    always patience ago: no more time counts, and none is forgotten
//	one runs, and has settled                     zero
//	one runs that may crash again                 as before: the pauses between crashes are one absence, and on a verified node
//	                                              the time for which it runs is taken off
func (s Settings) noAgentSince(v view, was, is memory) clock.Mark {
	absentSince := cmp.Or(was.noAgent, v.now.Mark())
	isCrashing := is.container == was.container && !was.noAgent.IsZero()
	switch {
	case !s.expectsAgent(v, is):
		return clock.Mark{}
	case is.container == "" && s.lacksSandbox(v, absentSince):
		return v.now.Mark().Add(-s.patience())
	case is.container == "":
		return absentSince
	case s.hasSettled(v, is):
		return clock.Mark{}
	case v.isVerified && isCrashing: // the time for which it runs does not count
		return was.noAgent.Add(v.now.Since(was.seenLast))
	}
	return was.noAgent
}

// expectsAgent reports whether an agent or worker is to run on a node.
func (s Settings) expectsAgent(v view, is memory) bool {
	switch {
	case v.isVerified:
		return s.Rechecks.Enabled()
	case s.Workers && v.pod == nil:
		return !is.waiting.IsZero() && s.Keys.ForeignTaint(Taints(v.node)) == nil
	}
	return !s.hasVerdict(v) // after a verdict the next worker has all the time to start
}

// hasSettled reports whether the container that runs does not crash at once. On a verified node an agent must have had the time
// to find that the node has recovered, or have written what fails: one that crashes again and again does neither.
func (s Settings) hasSettled(v view, is memory) bool {
	if !v.isVerified {
		return v.now.Since(is.running) >= settled
	}
	hasWritten := v.isFalseByAgent() && is.running.Before(is.recheck.Refreshed)
	// An agent that replaces another one counts before the controller acts because no agent is there.
	return hasWritten || v.now.Since(is.running) >= min(s.Rechecks.RecoversAfter(), s.NoAgentFor/2)
}

// patience is how long the agent's pod of a verified node may take to start. While kubelet cannot make its sandbox, no more time
// counts: the next pod shows no reason for a moment, and that must not remove the failed taint.
func (s Settings) patience() time.Duration { return min(s.NotStartedAfter, s.NoAgentFor/2) }

// isStuck reports whether kubelet does not start the agent's pod of a verified node, where no agent runs since then.
func (s Settings) isStuck(v view, since clock.Mark) bool {
	return v.pod != nil && IsNodeReady(v.node) && v.now.HasLasted(since, s.patience())
}

// lacksSandbox reports whether such a pod is stuck because kubelet cannot make its sandbox.
func (s Settings) lacksSandbox(v view, since clock.Mark) bool {
	if !v.isVerified || !s.isStuck(v, since) {
		return false
	}
	reason, _ := s.Rules.notRunning(v)
	return reason == condition.SandboxFailed
}

// remember returns what is to be remembered after a node was judged, and notes in its status since when it is so.
func (m memory) remember(status *Status, now clock.Now) memory {
	if status.State != m.state || status.Reason != m.reason {
		m.state, m.reason, m.since = status.State, status.Reason, now.Mark()
	}
	status.Since = m.since
	return m
}

// observeContainer notes which container of the agent runs, and since when. A worker with a verdict does nothing any more.
func (s Settings) observeContainer(v view, m memory) memory {
	container := runningContainer(v.pod)
	switch {
	case container == "" || s.hasVerdict(v):
		container, m.running = "", clock.Mark{}
	case container != m.container:
		m.running = v.now.Mark()
	}
	m.container = container
	return m
}

// runningContainer returns the id of the agent's running container, or "". kwok gives its containers none.
func runningContainer(pod *corev1.Pod) string {
	if pod == nil || pod.DeletionTimestamp != nil {
		return ""
	}
	for _, status := range Containers(pod) {
		if status.State.Running != nil {
			return cmp.Or(status.ContainerID, "running")
		}
	}
	return ""
}

func hasRestarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(Containers(pod), func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 })
}
