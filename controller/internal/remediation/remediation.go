// Package remediation decides which node that is never verified is replaced, and replaces it: it deletes the node's NodeClaim, so
// that Karpenter makes another one, or with DeleteNodes the Node, where there is no NodeClaim. Decide and Confirm are pure;
// Remediator acts on them. Nothing is queued or replayed: each decision is made from the current objects and from the ledger of
// deletions.
package remediation

import (
	"cmp"
	"slices"
	"time"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Rule is why a deletion is withheld.
type Rule = breaker.Rule

// The rules of remediation alone, as docs/controller.md describes them.
const (
	Protected    Rule = "protected"
	NoNodePool   Rule = "no-nodepool"
	LedgerFailed Rule = "ledger"
	HourlyBudget Rule = "hourly-budget"
	DailyBudget  Rule = "daily-budget"
	Halted       Rule = "halted"
	Proof        Rule = "proof"
	InFlight     Rule = "in-flight"
	FailedShare  Rule = "failed-share"
	LoopGuard    Rule = "loop-guard"
	Changed      Rule = "changed"
	NoNodeClaim  Rule = "no-nodeclaim"
	Workload     Rule = "workload"
	Unreadable   Rule = "unreadable"
	DryRun       Rule = "dry-run"
	Refused      Rule = "refused"
)

// Settings are what the operator has decided.
type Settings struct {
	breaker.Settings
	PodNamespace string // of the controller and of the workers
	// DeleteAfter is the age of a node from which it may be replaced.
	DeleteAfter time.Duration
	// FailedFor is how long a node must have failed for one curable reason.
	FailedFor time.Duration
	// DeleteNodes allows to delete the Node itself where Karpenter does not manage the node.
	DeleteNodes bool
	// UnmetRequirements allows to replace a node that fails the check node alone. A new machine may fail it too.
	UnmetRequirements bool
}

// Input is the cluster at one moment.
type Input struct {
	Statuses     []fleet.Status
	Ledger       Ledger
	ControlGroup baseline.State
}

// Question is what the rules look at: one candidate, and the cluster at one moment.
type Question struct {
	Settings  Settings
	Input     // with the ledger brought up to date
	Candidate fleet.Status
	Now       clock.Now
}

// Decision is what Decide has found.
type Decision struct {
	// Candidates may be deleted as far as the caches tell, the oldest first. At most one of them is.
	Candidates []fleet.Status
	Withheld   []act.Withheld // deletions that a rule does not allow
	// Ledger is the one of Input, brought up to date; it must be written before anything is deleted if Changed.
	Ledger  Ledger
	Changed bool
	// NewlyStuck and NewlyHalted were found just now: deletions, and scopes.
	NewlyStuck  []Deletion
	NewlyHalted []string
	// Breakers are the rules that hold every deletion, with their numbers.
	Breakers map[Rule]string
}

// Decide says which nodes may be replaced at now, where the API server's clock must be known.
func (s Settings) Decide(in Input, now clock.Now) Decision {
	d := Decision{Ledger: in.Ledger.clone()}
	d.track(s, in, now)
	in.Ledger = d.Ledger
	rules, question := Rules(), Question{Settings: s, Input: in, Now: now}
	d.Breakers = rules.Holding(question)
	for _, status := range in.Statuses {
		isReplaced := func(d Deletion) bool { return d.NodeUID == status.Node.UID && d.isInFlight() }
		if !s.isCandidate(status, now) || slices.ContainsFunc(d.Ledger.Deletions, isReplaced) {
			continue
		}
		question.Candidate = status
		rule, text := rules.First(question, d.Breakers)
		if rule == "" {
			d.Candidates = append(d.Candidates, status)
			continue
		}
		d.Withheld = append(d.Withheld, *s.withheld(status, rule, text))
		if rule == Halted {
			d.noteHalt(question.scopes(), now)
		}
	}
	slices.SortFunc(d.Candidates, func(a, b fleet.Status) int {
		return cmp.Or(a.Node.CreationTimestamp.Compare(b.Node.CreationTimestamp.Time), cmp.Compare(a.Node.Name, b.Node.Name))
	})
	return d
}

func (s Settings) withheld(candidate fleet.Status, rule Rule, text string) *act.Withheld {
	return &act.Withheld{Node: candidate.Node, Scope: s.scopeOf(candidate.Node), Rule: rule, Text: text}
}

// wasVerified reports whether a node is verified by our checks, not by a label that somebody has written.
func (s Settings) wasVerified(status fleet.Status) bool {
	text, released := status.Node.Annotations[nodepatch.Annotation]
	return status.State == fleet.Verified && released && !record.IsOpened(text)
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
