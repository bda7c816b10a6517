package verification

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// opensOver spreads out the opening of nodes whose checks started failing at the same time.
const opensOver = 10 * time.Second

// Facts are what a read of the Node says. The zero value means that it was not read.
type Facts struct {
	UID    types.UID
	Locked bool      // it has the startup taint, under its present key or a former one
	Opened time.Time // when an agent has opened it, as its record says; zero if none has
}

// Read returns the facts of a Node, or the zero value for nil.
func Read(node *nodepatch.Node, keys nodepatch.Keys) Facts {
	if node == nil {
		return Facts{}
	}
	last, _ := record.Parse(node.Annotations[nodepatch.Annotation])
	return Facts{node.UID, slices.ContainsFunc(node.Spec.Taints, keys.WithoutFailedTaint().Removes), last.Opened}
}

// opening is how far the opening of one Node is.
type opening struct {
	at      time.Time // when the node may be opened; zero unless its network checks fail
	checked types.UID // the Node that the last round has read, "" if that is not known
	why     string    // the reason in the last patch
	before  time.Time // the opening that the record had when the patch was sent
	done    time.Time // when the node was opened, as its record says; zero if it is not open
}

// IsOpen reports whether the node has been opened, by this agent or an earlier one.
func (s State) IsOpen() bool { return !s.opening.done.IsZero() }

// OpenedBecause returns why this agent has opened the node, or "" if it has not.
func (s State) OpenedBecause() string {
	if s.IsOpen() && !s.opening.done.Equal(s.opening.before) {
		return s.opening.why
	}
	return ""
}

// mayOpen reports whether the node is due to be opened: INITIAL_TIMEOUT after its network checks have begun to fail.
func (s State) mayOpen(now time.Time) bool {
	return s.TimedOut && !s.IsOpen() && !s.opening.at.IsZero() && !now.Before(s.opening.at)
}

// Withheld says why node is not opened at a time by the API server's clock (zero: it is not known), or "".
func (s State) Withheld(node *nodepatch.Node, now time.Time) string {
	opened, keys := Read(node, s.settings.Keys).Opened, s.settings.Keys
	switch {
	case s.opening.checked == "" || s.opening.checked != node.UID:
		return "the checks have run for another Node"
	case keys.IsVerified(node.Labels, nil) || node.DeletionTimestamp != nil:
		return "the node has the label, or is being deleted"
	case min(now.Sub(node.CreationTimestamp.Time), now.Sub(opened)) < s.settings.InitialTimeout:
		return "INITIAL_TIMEOUT has not passed by the API server's clock"
	case keys.ForeignTaint(node.Spec.Taints) != nil:
		return "a foreign taint is still on the node (WAIT_FOR_TAINTS)"
	}
	return ""
}

// Opened is a try to open the node.
type Opened struct {
	Before Facts  // zero if the Node could not be read
	Why    string // "" if no patch was sent
	Now    Facts  // zero if the patch has failed, or its answer was lost
}

func (e Opened) change(s *State, _ time.Time) {
	s.follow(e.Before) // the answer to the last patch may have been lost, or another client has removed the taint
	if e.Why != "" {
		s.opening.why, s.opening.before = e.Why, e.Before.Opened
	}
	s.follow(e.Now)
}

// follow notes whether the node is open. A read that is older than the opening shows the startup taint without the record.
func (s *State) follow(facts Facts) {
	if facts.UID != "" && !facts.Locked {
		s.opening.done = facts.Opened
	}
}

// see takes the Node that a round has read. If the startup taint is back on the opened node, the timeout begins again.
func (s *State) see(facts Facts, now time.Time) {
	if facts.Locked && s.IsOpen() && s.opening.done.Equal(facts.Opened) {
		s.opening = opening{}
		s.beginTimeout(now)
	}
	s.opening.checked = facts.UID
	s.follow(facts)
}
