// Package retaint adds the failed taint to verified nodes that fail their rechecks, within a budget, and removes it where no
// agent does. Decide is pure; Tainter acts on it. Nothing is kept but when a node was re-tainted last: each decision is made
// from the current objects.
package retaint

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/controlgroup"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// The rules for one node. Those of package breaker are for every node.
const (
	Budget   breaker.Rule = "budget"    // too many nodes of its group, or of the cluster, have the failed taint
	CoolDown breaker.Rule = "cool-down" // it was re-tainted or opened just now
	Changed  breaker.Rule = "changed"   // the live node differs from the cache
	Peers    breaker.Rule = "peers"     // there are too few other nodes to tell
	Refused  breaker.Rule = "refused"   // the API server refuses the taint
)

// Settings are what the operator has decided.
type Settings struct {
	breaker.Settings
	Enabled bool // false: re-taint no node, and remove the failed taint from those that have it
	// CoolDown is how long a node is not re-tainted again, nor after somebody has opened it.
	CoolDown time.Duration
}

// Input is the cluster at one moment.
type Input struct {
	Statuses     []fleet.Status
	ControlGroup controlgroup.State
	// Retainted is when this process has re-tainted nodes.
	Retainted map[types.UID]clock.Mark
	// Behind means that the cache has not shown the last re-taint yet: the budget cannot be known.
	Behind bool
}

// Decision is what Decide has found.
type Decision struct {
	// Candidates may be re-tainted as far as the cache tells, those that have failed for longest first. At most one of them is.
	Candidates []fleet.Status
	// RemoveTaint are the nodes whose failed taint is to be removed.
	RemoveTaint []fleet.Status
	Withheld    []act.Withheld
	// Breakers are the rules that withhold every re-taint, with their numbers.
	Breakers map[breaker.Rule]string
}

// Decide says which nodes get the failed taint, and which lose it, at now.
func (s Settings) Decide(in Input, now clock.Now) Decision {
	d := Decision{Breakers: s.Holding(in.Statuses, in.ControlGroup, now)}
	for _, status := range in.Statuses {
		switch {
		case s.isTaintOutdated(status, now):
			d.RemoveTaint = append(d.RemoveTaint, status)
		case !s.isCandidate(status, now), in.ControlGroup.Began.Before(status.Recheck.FailedAt):
			// An outage may reach this node first: the next round of the control group tells.
		default:
			if rule, text := s.withhold(status, in, d, now); rule != "" {
				d.Withheld = append(d.Withheld, act.Withheld{Node: status.Node, Rule: rule, Text: text})
				continue
			}
			d.Candidates = append(d.Candidates, status)
		}
	}
	slices.SortFunc(d.Candidates, func(a, b fleet.Status) int {
		return cmp.Or(a.Recheck.FailedAt.Compare(b.Recheck.FailedAt), cmp.Compare(a.Node.Name, b.Node.Name))
	})
	return d
}

// isTaintOutdated reports whether the failed taint of a node is to be removed. The agent does it first where there is one: it
// proves that the node has recovered. A node with the startup taint waits for its release, which removes both.
func (s Settings) isTaintOutdated(status fleet.Status, now clock.Now) bool {
	if !status.Retainted || status.Node.DeletionTimestamp != nil || fleet.HasTaint(status.Node, s.Fleet.Request.TaintKey) {
		return false
	}
	if s.Enabled && status.Untouchable != "" {
		return false
	}
	hasNoAgent := now.HasLasted(status.Recheck.NoAgent, s.Fleet.NoAgentFor)
	return !s.Enabled || s.Fleet.Condition(status.Node).Status == corev1.ConditionTrue || hasNoAgent
}

// isCandidate reports whether a node that was gated is verified and fails its rechecks now: somebody has just written so.
func (s Settings) isCandidate(status fleet.Status, now clock.Now) bool {
	return s.Enabled && status.State == fleet.Verified && status.Untouchable == "" && status.Recheck.IsFresh(now) &&
		!status.InDoubt && !fleet.HasTaint(status.Node, s.Fleet.Request.FailedTaintKey) && !fleet.IsControlPlane(status.Node) &&
		s.Fleet.WasGated(status.Node)
}

// withhold returns the first rule that keeps a candidate from being re-tainted, or "".
func (s Settings) withhold(candidate fleet.Status, in Input, d Decision, now clock.Now) (breaker.Rule, string) {
	if rule, text := breaker.First(breaker.Rules(), d.Breakers); rule != "" {
		return rule, text
	}
	if rule, text := s.Unproven(in.ControlGroup, 0, now); rule != "" {
		return rule, text
	}
	if in.Behind {
		return Changed, "the cache does not show the last re-taint yet"
	}
	// What failed in an outage has recovered by then, or fails for another reason.
	if failed := candidate.Recheck.FailedAt; failed.Before(in.ControlGroup.PassedSince) {
		if rule, text := s.Unproven(in.ControlGroup, s.Fleet.Rechecks.RecoversAfter(), now); rule != "" {
			return rule, text + ", because the node failed before the checks passed"
		}
	}
	if at, retainted := in.Retainted[candidate.Node.UID]; retainted && now.Since(at) < s.CoolDown {
		return CoolDown, fmt.Sprintf("the node was re-tainted %s ago: it is not re-tainted again within %s",
			now.Since(at).Truncate(time.Second), s.CoolDown)
	}
	// A time ahead of the clock does not count: it could keep the node from being re-tainted for years.
	opened, err := time.Parse(time.RFC3339, candidate.Node.Annotations[nodepatch.Opened])
	if err == nil && !now.IsStale(opened, s.CoolDown) {
		return CoolDown, fmt.Sprintf("somebody opened it at %s: it is not re-tainted within %s",
			opened.Format(time.RFC3339), s.CoolDown)
	}
	if text := s.unprovenPeers(candidate.Node, in.Statuses); text != "" {
		return Peers, text
	}
	return s.budget(candidate.Node, in.Statuses)
}

// unprovenPeers says why a node that reaches none of its peers may be the only good one, or "".
func (s Settings) unprovenPeers(candidate *corev1.Node, statuses []fleet.Status) string {
	const enough = 3
	others := 0
	for _, status := range statuses {
		if status.Node.UID != candidate.UID && fleet.IsNodeReady(status.Node) {
			others++
		}
	}
	if s.Fleet.Condition(candidate).Reason != verdict.PeersFailed || others >= enough {
		return ""
	}
	return fmt.Sprintf("no other agent answers; other ready nodes: %d, and blaming this one needs at least %d", others, enough)
}

// budget allows a tenth of a group's nodes to have the failed taint, or one; and likewise of all nodes: a fault may creep through
// many small groups.
func (s Settings) budget(candidate *corev1.Node, statuses []fleet.Status) (breaker.Rule, string) {
	for _, of := range []string{fleet.GroupOf(candidate), ""} {
		nodes, tainted := 0, 0
		for _, status := range statuses {
			if of != "" && fleet.GroupOf(status.Node) != of {
				continue
			}
			nodes++
			// An agent's taint on a new node is about its group alone.
			if status.Retainted || of != "" && fleet.HasTaint(status.Node, s.Fleet.Request.FailedTaintKey) {
				tainted++
			}
		}
		if allowed := max(1, nodes/10); tainted >= allowed {
			return Budget, fmt.Sprintf("%d of %d nodes of %s have the taint %s: at most %d may have it",
				tainted, nodes, cmp.Or(of, "the cluster"), s.Fleet.Request.FailedTaintKey, allowed)
		}
	}
	return "", ""
}
