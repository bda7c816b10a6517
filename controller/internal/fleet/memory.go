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
	container  string     // the agent's container that runs
	running    clock.Mark // since when, zero: none does; it begins again when the node is verified, or is not verified any more
	notRunning clock.Mark // since when no agent has run, zero: one has settled
	waiting    clock.Mark // since when it is gated and not verified, zero: it is not
	rechecked  recheckMemory
}

// observe notes what the objects show now. v has no memory yet.
func (s Settings) observe(v view, was memory) memory {
	m := was.observeContainer(v)
	m.seenSince = cmp.Or(was.seenSince, v.now.Mark())
	if v.isVerified {
		m.notRunning, m.waiting = clock.Mark{}, clock.Mark{} // for the next verification
		if s.Rechecks.Enabled() {
			m.rechecked = s.observeRechecks(v, was, m)
		}
		return m
	}
	m.waiting = clock.Mark{}
	if s.IsGated(v.node) {
		m.waiting = cmp.Or(was.waiting, v.now.Mark())
	}
	switch {
	case m.container != "" && v.now.Since(m.running) >= settled:
		m.notRunning = clock.Mark{}
	case m.container == "":
		m.notRunning = cmp.Or(was.notRunning, v.now.Mark())
	}
	switch {
	case s.Workers && v.pod == nil && (m.waiting.IsZero() || s.Keys.ForeignTaint(Taints(v.node)) != nil):
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
	status.Since = m.since
	if status.State == Verified { // judgeReleased corrects since when no agent runs
		m.rechecked.Recheck = status.Recheck
	}
	return m
}

// observeContainer notes which container of the agent runs, and since when.
func (m memory) observeContainer(v view) memory {
	container, wasVerified := runningContainer(v.pod), m.state == Verified
	switch {
	case container == "":
		m.running = clock.Mark{}
	case container != m.container || m.running.IsZero() || v.isVerified != wasVerified:
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
