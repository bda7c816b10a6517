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
	// probeDelay is how long kubelet may take to say that an agent is ready again.
	probeDelay = 30 * time.Second
	// trustsTrueFor is how long an agent that has written True and is not ready is not called Silent: kubelet may not reach it.
	trustsTrueFor = time.Hour
)

// Rechecks are what agents do that stay on verified nodes. The zero value means that they do not stay.
type Rechecks struct {
	Interval                            time.Duration // between two rounds, ±20 %
	FailureThreshold, RecoveryThreshold int           // rounds
}

// Enabled reports whether agents stay.
func (r Rechecks) Enabled() bool { return r.Interval > 0 }

// Rounds is how long an agent takes at most for n rounds.
func (r Rechecks) Rounds(n int) time.Duration {
	pauses := time.Duration(n) * r.Interval
	return pauses + time.Duration(recheck.Jitter*float64(pauses))
}

// RecoversAfter is how long an agent takes at most to find that its node has recovered.
func (r Rechecks) RecoversAfter() time.Duration { return r.Rounds(r.RecoveryThreshold) }

// Recheck is what this process has seen of a node that is checked again while it is verified. A Mark is zero if its event has not
// happened, or not while this process was watching.
type Recheck struct {
	Failed    bool              // the condition is False
	Reason    condition.Reasons // of that, the first one
	FailedAt  clock.Mark        // when it became False
	Refreshed clock.Mark        // when the False was written last
	NotReady  clock.Mark        // since when the agent runs and is not ready, on a ready node

	wroteTrue bool      // the agent has written True since it has been not ready
	heartbeat time.Time // of the condition
}

// IsFresh reports whether the condition is False and was written within the last minutes. The agent writes it again only while
// its rounds fail.
func (r Recheck) IsFresh(now clock.Now) bool {
	return r.Failed && !r.Refreshed.IsZero() && now.Since(r.Refreshed) < staleAfter
}

// judgeReleased judges a verified node. What its rechecks find is in its Recheck, and does not end its state.
func (e evidence) judgeReleased() Finding {
	reason, message, isStuck := e.whyStuck(e.container, e.absence)
	finding := Finding{State: Verified, EventsWanted: isStuck && reason == 0}
	if reason == condition.SandboxFailed {
		finding.Reason, finding.Message = reason, message
	}
	return finding
}

// whyStuck returns why kubelet does not start the agent's pod of a verified node, as whyNotRunning does, once the agent has been
// absent for startTimeout. container is the one that runs.
func (s snapshot) whyStuck(container string, absence Absence) (reason condition.Reasons, message string, isStuck bool) {
	isStuck = s.isVerified && container == "" && s.pod != nil && IsNodeReady(s.node) && absence.HasLasted(s.startTimeout())
	if isStuck {
		reason, message = s.whyNotRunning()
	}
	return reason, message, isStuck
}

// startTimeout is how long the agent's pod of a verified node may take to start. While kubelet cannot make its sandbox, the
// absence of the agent does not exceed it, because the failed taint must stay while the next pod shows no reason for a moment.
func (s Settings) startTimeout() time.Duration { return min(s.NotStartedAfter, s.NoAgentFor/2) }

// observeRecheck returns what a verified node and its agent show. container is the agent's that runs now.
func (s snapshot) observeRecheck(last memory, container string) Recheck {
	r := s.observeFalse(last)
	r.NotReady, r.wroteTrue = s.observeReadiness(last, container)
	return r
}

// observeFalse returns since when the condition is False, and when the False was written last. Neither is known of a False that
// this process has found on the verified node.
func (s snapshot) observeFalse(last memory) Recheck {
	if s.condition.Status != corev1.ConditionFalse {
		return Recheck{}
	}
	r, heartbeat := last.recheck, s.condition.LastHeartbeatTime.Time
	switch {
	case !r.Failed && last.judgedState == Verified:
		r.FailedAt, r.Refreshed = s.now.Mark(), s.now.Mark()
	case r.Failed && !heartbeat.Equal(r.heartbeat):
		r.Refreshed = s.now.Mark()
	}
	r.Failed, r.Reason, r.heartbeat = true, FirstReason(s.condition), heartbeat
	return r
}

// observeReadiness returns since when the agent runs and is not ready, and whether it has written True since. While the node is
// not ready, or is drained, the agent's readiness is irrelevant.
func (s snapshot) observeReadiness(last memory, container string) (notReady clock.Mark, wroteTrue bool) {
	r := last.recheck
	switch {
	case container == "", IsReady(s.pod), !IsNodeReady(s.node), s.untouchable != "":
		return clock.Mark{}, false
	case r.NotReady.IsZero(), container != last.container:
		return s.now.Mark(), false
	case r.Failed && s.condition.Status == corev1.ConditionTrue: // just written: kubelet reports it as ready later
		return s.now.Mark(), true
	}
	return r.NotReady, r.wroteTrue
}

// lastWritten is when the False was written last. If it is older than what this process has seen, the node was seen first then.
func (e evidence) lastWritten() clock.Mark { return cmp.Or(e.recheck.Refreshed, e.firstSeen) }

// isSilent reports whether the agent is not ready and should have written the reason long ago. While a False of the agent is not
// older than it becomes when a node recovers, the agent may be about to write True.
func (e evidence) isSilent() bool {
	r, rechecks := e.recheck, e.Rechecks
	// It takes so long to find that the node fails, or has recovered.
	enough := rechecks.Rounds(max(rechecks.FailureThreshold, rechecks.RecoveryThreshold)) + probeDelay
	if r.wroteTrue {
		enough = max(enough, trustsTrueFor)
	}
	isStale := e.now.Since(e.lastWritten()) >= staleAfter+rechecks.RecoversAfter()
	mayRecover := r.Failed && !r.Reason.Meaning().Controller && !isStale
	return e.now.HasLasted(r.NotReady, enough) && !mayRecover
}
