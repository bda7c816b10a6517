package fleet

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
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
	reason    Reason
	since     clock.Mark // of state and reason
	container string     // the agent's container that runs
	running   clock.Mark // since when, zero: none does; it begins again when the node is verified, or is not verified any more
	noAgent   clock.Mark // since when no agent runs: see noAgentSince
	waiting   clock.Mark // since when it is gated and not verified, zero: it is not
	rechecked recheckMemory
}

// observe notes what the objects show now. v has no memory yet.
func (s Settings) observe(v view, was memory) memory {
	m := s.observeContainer(v, was)
	m.seenSince, m.seenLast = cmp.Or(was.seenSince, v.now.Mark()), v.now.Mark()
	m.waiting = clock.Mark{}
	switch {
	case v.isVerified && s.Rechecks.Enabled():
		m.rechecked = observeRechecks(v, was, m)
	case !v.isVerified && s.IsGated(v.node):
		m.waiting = cmp.Or(was.waiting, v.now.Mark())
	}
	m.noAgent = s.noAgentSince(v, was, m)
	return m
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
	case container != m.container || m.isTurn(v):
		m.running = v.now.Mark()
	}
	m.container = container
	return m
}

// isTurn reports whether a node has become verified since the last look, or is not verified any more.
func (m memory) isTurn(v view) bool { return v.isVerified != (m.state == Verified) }

// runningContainer returns the id of the agent's running container, or "". kwok gives its containers none.
func runningContainer(pod *corev1.Pod) string {
	if pod == nil || pod.DeletionTimestamp != nil {
		return ""
	}
	for _, status := range containers(pod) {
		if status.State.Running != nil {
			return cmp.Or(status.ContainerID, "running")
		}
	}
	return ""
}

func hasRestarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount > 0 })
}
