package fleet

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
)

const (
	// staleAfter is when a False counts as outdated: it is written again each recheck.RefreshInterval while the node fails.
	staleAfter = recheck.RefreshInterval + 2*time.Minute
	// probing is how long kubelet may take to say that an agent is ready again.
	probing = 30 * time.Second
	// spokenFor is how long an agent that has written True and is not ready is not called Silent: kubelet may not reach it.
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
	Failed    bool              // the condition is False
	Reason    condition.Reasons // of that, the first one
	FailedAt  clock.Mark        // when it became so; zero also if it was so when this process saw the node first
	Refreshed clock.Mark        // when the False was written last
	NotReady  clock.Mark        // since when the agent runs and is not ready, on a ready node
	Spoke     bool              // it has written True since it has been not ready

	heartbeat time.Time  // of the condition
	written   clock.Mark // when the False was written last; if it is older than what this process saw: when it saw the node first
}

// IsFresh reports whether the condition is False and somebody has written it within the last minutes. The agent writes it
// again only while its rounds fail.
func (r Recheck) IsFresh(now clock.Now) bool {
	return r.Failed && !r.Refreshed.IsZero() && now.Since(r.Refreshed) < staleAfter
}

// observeRecheck notes what a verified node and its agent show. was is what was remembered before, is has the container of now.
func observeRecheck(v view, was, is memory) Recheck {
	r := was.recheck
	r.noteCondition(v, was)
	r.noteReadiness(v, was, is)
	r.written = cmp.Or(r.Refreshed, is.seenSince)
	return r
}

// noteCondition notes since when the condition is False, and when the False was written last. If it was False when this process
// saw the verified node first, neither is known.
func (r *Recheck) noteCondition(v view, was memory) {
	heartbeat := v.condition.LastHeartbeatTime.Time
	switch {
	case v.condition.Status != corev1.ConditionFalse:
		r.Failed, r.Reason, r.FailedAt, r.Refreshed, r.heartbeat = false, 0, clock.Mark{}, clock.Mark{}, time.Time{}
		return
	case !r.Failed && was.state == Verified:
		r.FailedAt, r.Refreshed = v.now.Mark(), v.now.Mark()
	case r.Failed && !heartbeat.Equal(r.heartbeat):
		r.Refreshed = v.now.Mark()
	}
	r.Failed, r.Reason, r.heartbeat = true, firstReason(v.condition), heartbeat
}

// noteReadiness notes since when the agent runs and is not ready. While the node is not ready, or is drained, that says nothing.
func (r *Recheck) noteReadiness(v view, was, is memory) {
	switch {
	case is.container == "", IsReady(v.pod), !IsNodeReady(v.node), v.untouchable != "":
		r.NotReady, r.Spoke = clock.Mark{}, false
	case r.NotReady.IsZero(), is.container != was.container:
		r.NotReady, r.Spoke = v.now.Mark(), false
	case was.recheck.Failed && v.condition.Status == corev1.ConditionTrue: // just written: kubelet says later that it is ready
		r.NotReady, r.Spoke = v.now.Mark(), true
	}
}

// isSilent reports whether the agent is not ready and should have written the reason long ago. While a False of the agent is not
// older than it becomes when a node recovers, the agent may be about to write True.
func (s Settings) isSilent(r Recheck, now clock.Now) bool {
	// It takes so long to find that the node fails, or has recovered.
	enough := max(rounds(s.Rechecks.FailureThreshold, s.Rechecks.Interval), s.Rechecks.RecoversAfter()) + probing
	if r.Spoke {
		enough = max(enough, spokenFor)
	}
	isStale := now.Since(r.written) >= staleAfter+s.Rechecks.RecoversAfter()
	mayRecover := r.Failed && !r.Reason.Meaning().Controller && !isStale
	return now.HasLasted(r.NotReady, enough) && !mayRecover
}
