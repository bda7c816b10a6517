package fleet

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
)

const (
	// refreshInterval is when the controller writes a condition that stays False again, as agents do.
	refreshInterval = 5 * time.Minute
	// staleAfter is when a False counts as outdated, because nobody has written it again.
	staleAfter = refreshInterval + 2*time.Minute
	// probing is how long kubelet may take to say that an agent is ready again.
	probing = 30 * time.Second
	// spokenFor is how long an agent that has written True, and is not ready, counts as one that can write: kubelet's probes may not
	// reach it.
	spokenFor = time.Hour
)

// Rechecks are what agents do that stay on verified nodes. The zero value: they do not stay.
type Rechecks struct {
	Interval                            time.Duration // between two rounds, ±20 %
	FailureThreshold, RecoveryThreshold int           // rounds
}

// Enabled reports whether agents stay.
func (r Rechecks) Enabled() bool { return r.Interval > 0 }

// RecoversAfter is how long an agent takes at most to find that its node has recovered.
func (r Rechecks) RecoversAfter() time.Duration { return rounds(r.RecoveryThreshold, r.Interval) }

func rounds(n int, interval time.Duration) time.Duration {
	pauses := time.Duration(n) * interval
	return pauses + time.Duration(recheck.Jitter*float64(pauses))
}

// Recheck is what this process has seen of a node that is checked again while it is verified. A zero Mark:
// it is not so, or this process has not seen it.
type Recheck struct {
	Failed    bool       // the condition is False
	Reason    Reason     // of that, the first one
	FailedAt  clock.Mark // when it became so; zero also if it was so when this process saw the node first
	Refreshed clock.Mark // when the False was written last
	NotReady  clock.Mark // since when the agent runs and is not ready, on a ready node
	Spoke     bool       // it has written True since it has been not ready
	NoAgent   clock.Mark // since when no agent runs, without the time of one, or of SandboxFailed; also of an unverified node
	SeenSince clock.Mark // when this process saw the node first
}

// IsFresh reports whether the condition is False and somebody has written it within the last minutes. The agent writes it
// again only while its rounds fail.
func (r Recheck) IsFresh(now clock.Now) bool {
	return r.Failed && !r.Refreshed.IsZero() && now.Since(r.Refreshed) < staleAfter
}

// written is when the False was written last. What was written before this process saw the node counts as written when it did.
func (r Recheck) written() clock.Mark {
	return cmp.Or(r.Refreshed, r.SeenSince)
}

// recheckMemory is what a memory holds of a Recheck.
type recheckMemory struct {
	Recheck
	heartbeat time.Time  // of the condition
	began     clock.Mark // when the container was seen first
	seen      clock.Mark // when this was noted last
}

// observeRecheck notes what a verified node and its agent show. An agent needs enough time to find that its node has recovered.
func (m memory) observeRecheck(v view, enough time.Duration) memory {
	r, condition, node, pod, now := m.rechecked, v.condition, v.node, v.pod, v.now
	r.Reason = ""
	switch isFalse := condition.Status == corev1.ConditionFalse; {
	case !isFalse:
		r.Failed, r.FailedAt, r.Refreshed, r.heartbeat = false, clock.Mark{}, clock.Mark{}, time.Time{}
	case !r.Failed:
		r.Failed, r.heartbeat = true, condition.LastHeartbeatTime.Time
		if !r.SeenSince.IsZero() { // not for the first time
			r.FailedAt, r.Refreshed = now.Mark(), now.Mark()
		}
	case !condition.LastHeartbeatTime.Time.Equal(r.heartbeat):
		r.Refreshed, r.heartbeat = now.Mark(), condition.LastHeartbeatTime.Time
	}
	if r.SeenSince = m.seenSince; r.Failed {
		r.Reason = firstReason(condition)
	}

	container := runningContainer(pod)
	if container != m.container {
		r.began = now.Mark()
	}
	isTrue := condition.Status == corev1.ConditionTrue
	hasRecovered := m.rechecked.Failed && isTrue // the agent has just written so: kubelet says later that it is ready
	switch {
	case container == "" || IsReady(pod) || !IsNodeReady(node) || Untouchable(node) != "": // no round counts while it is drained
		r.NotReady, r.Spoke = clock.Mark{}, false
	case r.NotReady.IsZero() || container != m.container:
		r.NotReady, r.Spoke = now.Mark(), false
	case hasRecovered:
		r.NotReady, r.Spoke = now.Mark(), true
	}
	switch {
	case container == "" && r.NoAgent.IsZero():
		r.NoAgent = now.Mark()
	// One that crashes again and again does not count, before it has had time to recover or has written what fails.
	case container != "" && (now.Since(r.began) >= enough ||
		r.Failed && !r.Reason.Meaning().Controller && r.began.Before(r.Refreshed)):
		r.NoAgent = clock.Mark{}
	case container != "" && container == m.container && !r.NoAgent.IsZero(): // a restart lasts a moment
		r.NoAgent = r.NoAgent.Add(now.Since(r.seen))
	}
	r.seen = now.Mark()
	m.container, m.rechecked = container, r
	return m
}

// isSilent reports whether the agent, which is not ready, should have said why for long. One whose False is not written again may
// be about to recover.
func (s Settings) isSilent(r Recheck, now clock.Now) bool {
	// It takes so long to find that the node fails, or has recovered.
	enough := max(rounds(s.Rechecks.FailureThreshold, s.Rechecks.Interval), s.Rechecks.RecoversAfter()) + probing
	if r.Spoke {
		enough = max(enough, spokenFor)
	}
	isStale := now.Since(r.written()) >= staleAfter+s.Rechecks.RecoversAfter()
	return now.HasLasted(r.NotReady, enough) && (!r.Failed || r.Reason.Meaning().Controller || isStale)
}

// IsReady reports whether kubelet says that pod is ready, and nobody deletes it.
func IsReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && podCondition(pod, corev1.PodReady).Status == corev1.ConditionTrue
}

// IsNodeReady reports whether kubelet says that node is ready.
func IsNodeReady(node *corev1.Node) bool {
	return nodeCondition(node, corev1.NodeReady).Status == corev1.ConditionTrue
}
