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
	seenSince  clock.Mark // when it was seen first
	state      State
	reason     Reason
	since      clock.Mark // of state and reason
	container  string     // that runs
	running    clock.Mark // since when, zero: none does
	notRunning clock.Mark // since when no agent has run, zero: one has settled
	waiting    clock.Mark // since when it is gated and not verified, zero: it is not
	rechecked  recheckMemory
}

// observe notes what the objects show now. v has no memory yet.
func (s Settings) observe(v view, m memory) memory {
	m.seenSince = cmp.Or(m.seenSince, v.now.Mark())
	switch {
	case v.isVerified:
		m.notRunning, m.running, m.waiting = clock.Mark{}, clock.Mark{}, clock.Mark{} // for the next verification
		if s.Rechecks.Enabled() {
			// An agent counts so soon that one which replaces another is never missed.
			m = m.observeRecheck(v, min(s.Rechecks.RecoversAfter(), s.NoAgentFor/2))
		}
		return m
	case s.IsGated(v.node):
		m.waiting = cmp.Or(m.waiting, v.now.Mark())
	default:
		m.waiting = clock.Mark{}
	}
	m.rechecked = recheckMemory{began: v.now.Mark()}
	m = m.observeAgent(v.pod, v.now)
	switch {
	case s.Workers && v.pod == nil && (m.waiting.IsZero() || s.Request.ForeignTaint(Taints(v.node)) != nil):
		m.notRunning = clock.Mark{} // it gets no worker
	case s.Workers && v.pod != nil && hasVerdict(v.pod):
		m.container, m.running, m.notRunning = "", clock.Mark{}, clock.Mark{} // the next worker has all the time to start
	}
	return m
}

// remember returns what is to be remembered after a node was judged, and notes in its status since when it is so.
func (m memory) remember(status *Status, now clock.Now) memory {
	if status.State != m.state || status.Reason != m.reason {
		m.state, m.reason, m.since = status.State, status.Reason, now.Mark()
	}
	if status.Since = m.since; status.State == Verified {
		m.rechecked.Recheck = status.Recheck
	}
	return m
}

// observeAgent notes whether the agent runs in pod.
func (m memory) observeAgent(pod *corev1.Pod, now clock.Now) memory {
	container := runningContainer(pod)
	switch {
	case container == "":
		m.running = clock.Mark{}
	case container != m.container || m.running.IsZero():
		m.running = now.Mark()
	}
	m.container = container
	switch {
	case container != "" && now.Since(m.running) >= settled:
		m.notRunning = clock.Mark{}
	case m.notRunning.IsZero() && container == "":
		m.notRunning = now.Mark()
	}
	return m
}

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
