package fleet

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// settlesAfter is how long a container must run until it counts as started, so that one that crashes at once, again and again,
// never does. It is also how long a new reason must last until it replaces another one.
const settlesAfter = 10 * time.Second

// Memory is what this process remembers of the nodes, by its own clock. After a restart it is empty, which only delays decisions.
type Memory map[types.UID]memory

// memory holds what the objects of one node have shown earlier.
type memory struct {
	firstSeen clock.Mark
	seenAt    clock.Mark // at the last decision
	// judgedState and judgedReason are those of the last finding, and have lasted since then.
	judgedState  State
	judgedReason condition.Reasons
	since        clock.Mark
	container    string // see activeContainer
	// runningSince is when container was seen first, or when the node became verified, or unverified. Zero if none runs.
	runningSince clock.Mark
	absence      Absence
	gatedSince   clock.Mark // zero if the node is not gated, or is verified
	recheck      Recheck    // of a verified node
}

// after returns the memory after the node was judged.
func (m memory) after(finding Finding, now clock.Now) memory {
	if finding.State != m.judgedState || finding.Reason != m.judgedReason {
		m.judgedState, m.judgedReason, m.since = finding.State, finding.Reason, now.Mark()
	}
	return m
}

// observe returns the memory of the last decision, brought up to date by what the objects show now.
func (s snapshot) observe(last memory) memory {
	wasVerified := last.judgedState == Verified
	if s.isVerified != wasVerified { // the previous agent or worker is irrelevant now
		last.container, last.absence, last.recheck = "", Absence{}, Recheck{}
	}
	now, next := s.now.Mark(), last
	next.firstSeen, next.seenAt = cmp.Or(last.firstSeen, now), now
	switch next.container = s.activeContainer(); {
	case next.container == "":
		next.runningSince = clock.Mark{}
	case next.container != last.container:
		next.runningSince = now
	}
	next.gatedSince = clock.Mark{}
	if s.isGated {
		next.gatedSince = cmp.Or(last.gatedSince, now)
	}
	if s.isVerified && s.Rechecks.Enabled() {
		next.recheck = s.observeRecheck(last, next.container)
	}
	next.absence = s.observeAbsence(last, next)
	return next
}

// activeContainer returns the id of the container of the agent or worker that runs, or "". kwok gives its containers none.
func (s snapshot) activeContainer() string {
	hasVerdict := !s.isVerified && !s.isExpected // then it has nothing more to do
	if hasVerdict || s.pod == nil || s.pod.DeletionTimestamp != nil {
		return ""
	}
	for _, status := range Containers(s.pod) {
		if status.State.Running != nil {
			return cmp.Or(status.ContainerID, "running")
		}
	}
	return ""
}

// Absence is whether a node lacks the agent or worker that should run on it, and for how long it has, as of the last decision.
type Absence struct {
	Is     bool
	Lasted time.Duration // without the time that does not count: see observeAbsence
}

// HasLasted reports whether the node has been without its agent or worker for d.
func (a Absence) HasLasted(d time.Duration) bool { return a.Is && a.Lasted >= d }

// observeAbsence adds the time since the last decision to the absence of an agent or worker, if that time counts:
//
//	none should run                               no absence
//	none runs                                     it begins, or all the time counts
//	none runs: kubelet cannot make its sandbox    no more than startTimeout counts, and that is not forgotten
//	one runs, and has settled                     no absence
//	one runs that may crash again                 the pauses between crashes are one absence; on a verified node the time in
//	                                              which it runs does not count
func (s snapshot) observeAbsence(last, next memory) Absence {
	longer := last.absence
	if longer.Is {
		longer.Lasted += s.now.Since(last.seenAt)
	}
	switch reason, _, _ := s.whyStuck(next.container, longer); {
	case !s.isExpected:
		return Absence{}
	case reason == condition.SandboxFailed:
		return Absence{Is: true, Lasted: s.startTimeout()}
	case next.container == "":
		return Absence{Is: true, Lasted: longer.Lasted}
	case s.hasSettled(next):
		return Absence{}
	case s.isVerified && next.container == last.container: // the time in which it runs does not count
		return last.absence
	}
	return longer
}

// hasSettled reports whether the container that runs does not crash at once. On a verified node an agent must have had the time
// to find that the node has recovered, or have written what fails: one that crashes again and again does neither.
func (s snapshot) hasSettled(next memory) bool {
	if !s.isVerified {
		return s.now.Since(next.runningSince) >= settlesAfter
	}
	hasWritten := s.isFalseByAgent() && next.runningSince.Before(next.recheck.Refreshed)
	// An agent that replaces another one counts before the controller acts on the absence of an agent.
	return hasWritten || s.now.Since(next.runningSince) >= min(s.Rechecks.RecoversAfter(), s.NoAgentFor/2)
}
