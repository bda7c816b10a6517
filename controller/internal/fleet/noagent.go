package fleet

import (
	"cmp"
	"time"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
)

// noAgentSince returns since when no agent or worker runs on a node, zero: one does, or none is to run. It begins again when the
// node is verified, or is not verified any more. is has the container of now, and what the condition says.
func (s Settings) noAgentSince(v view, was, is memory) clock.Mark {
	since := was.noAgent
	if was.isTurn(v) {
		since = clock.Mark{}
	}
	switch {
	case !v.isVerified:
		return s.noAgentOfUnreleased(v, since, is)
	case s.Rechecks.Enabled():
		return s.noAgentOfRechecked(v, since, was, is)
	}
	return clock.Mark{} // no agent stays
}

// noAgentOfUnreleased ends the time without an agent once a container has settled.
func (s Settings) noAgentOfUnreleased(v view, since clock.Mark, is memory) clock.Mark {
	getsNoWorker := is.waiting.IsZero() || s.Keys.ForeignTaint(Taints(v.node)) != nil
	switch {
	case s.Workers && v.pod == nil && getsNoWorker, s.hasVerdict(v): // after a verdict the next worker has all the time to start
		return clock.Mark{}
	case is.container == "":
		return cmp.Or(since, v.now.Mark())
	case v.now.Since(is.running) >= settled:
		return clock.Mark{}
	}
	return since
}

// noAgentOfRechecked ends the time without an agent once an agent had enough time to find that its node has recovered, or has
// written what fails: one that crashes again and again does neither. While kubelet cannot make the sandbox of the agent's pod, the
// time does not count, except for patience: the next pod shows no reason for a moment, and that must not remove the failed taint.
func (s Settings) noAgentOfRechecked(v view, since clock.Mark, was, is memory) clock.Mark {
	// An agent that replaces another one counts before the controller acts because no agent is there.
	hadTime := v.now.Since(is.running) >= min(s.Rechecks.RecoversAfter(), s.NoAgentFor/2)
	hasWritten := is.rechecked.isFalseByAgent() && is.running.Before(is.rechecked.Refreshed)
	switch {
	case is.container == "":
		since = cmp.Or(since, v.now.Mark())
		if s.isStuck(v, since) && s.Rules.lacksSandbox(v) {
			return v.now.Mark().Add(-s.patience())
		}
		return since
	case hasWritten, hadTime:
		return clock.Mark{}
	case is.container == was.container && !since.IsZero(): // the time for which it runs does not count
		return since.Add(v.now.Since(was.seenLast))
	}
	return since
}

// patience is how long the agent's pod of a verified node may take to start before it counts as stuck.
func (s Settings) patience() time.Duration { return min(s.NotStartedAfter, s.NoAgentFor/2) }

// isStuck reports whether kubelet does not start the agent's pod of a verified node, where no agent runs since then.
func (s Settings) isStuck(v view, since clock.Mark) bool {
	return v.pod != nil && IsNodeReady(v.node) && v.now.HasLasted(since, s.patience())
}
