// Package retaint adds the failed taint to verified nodes that fail their rechecks, within a budget, and removes it where no
// agent does. Decide is pure; Tainter acts on it. Nothing is kept but when a node was re-tainted last: each decision is made
// from the current objects.
package retaint

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// The rules of re-taint alone: the others are in package breaker.
const (
	Changed  breaker.Rule = "changed"
	CoolDown breaker.Rule = "cool-down"
	Peers    breaker.Rule = "peers"
	Budget   breaker.Rule = "budget"
	Refused  breaker.Rule = "refused"
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
	ControlGroup baseline.State
	// Retainted is when this process has re-tainted nodes.
	Retainted map[types.UID]clock.Mark
	// Behind means that the cache has not shown the last re-taint yet: the budget cannot be known.
	Behind bool
}

// Question is what the rules look at: one candidate, and the cluster at one moment.
type Question struct {
	Settings Settings
	Input
	Candidate fleet.Status
	Now       clock.Now
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
	rules, question := Rules(), Question{Settings: s, Input: in, Now: now}
	d := Decision{Breakers: rules.Holding(question)}
	for _, status := range in.Statuses {
		question.Candidate = status
		if s.isTaintOutdated(status) {
			d.RemoveTaint = append(d.RemoveTaint, status)
			continue
		}
		if !question.isCandidate() {
			continue
		}
		if rule, text := rules.First(question, d.Breakers); rule != "" {
			d.Withheld = append(d.Withheld, act.Withheld{Node: status.Node, Rule: rule, Text: text})
			continue
		}
		d.Candidates = append(d.Candidates, status)
	}
	slices.SortFunc(d.Candidates, func(a, b fleet.Status) int {
		return cmp.Or(a.Recheck.FailedAt.Compare(b.Recheck.FailedAt), cmp.Compare(a.Node.Name, b.Node.Name))
	})
	return d
}

// isTaintOutdated reports whether the failed taint of a node is to be removed. The agent does it first where there is one: it
// proves that the node has recovered. A node with the startup taint waits for its release, which removes both.
func (s Settings) isTaintOutdated(status fleet.Status) bool {
	if !status.Retainted || status.Node.DeletionTimestamp != nil || fleet.HasTaint(status.Node, s.Fleet.Keys.TaintKey) {
		return false
	}
	if !s.Enabled {
		return true
	}
	passes := s.Fleet.Condition(status.Node).Status == corev1.ConditionTrue
	return status.Untouchable == "" && (passes || status.Absence.HasLasted(s.Fleet.NoAgentFor))
}
