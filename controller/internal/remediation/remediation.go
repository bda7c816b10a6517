// Package remediation decides which node that is never verified is replaced, and replaces it: it deletes the node's NodeClaim, so
// that Karpenter makes another one, or with DeleteNodes the Node, where there is no NodeClaim. Decide and Confirm are pure;
// Remediator acts on them. Nothing is queued or replayed: each decision is made from the current objects and from the ledger of
// deletions.
package remediation

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/controlgroup"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// Rule is why a deletion is withheld.
type Rule = breaker.Rule

// The rules that hold every deletion of the cluster, besides those of package breaker: see Breakers.
const (
	LedgerFailed Rule = "ledger" // the ledger cannot be read or written
	HourlyBudget Rule = "hourly-budget"
	DailyBudget  Rule = "daily-budget"
	Halted       Rule = "halted" // the loop guard has stopped the deletions of a NodePool, or of the cluster
)

// The other rules.
const (
	Protected   Rule = "protected" // a control plane, or somebody forbids it
	NoNodePool  Rule = "no-nodepool"
	NoNodeClaim Rule = "no-nodeclaim"
	Proof       Rule = "proof" // nothing shows that a new node would do better
	InFlight    Rule = "in-flight"
	FailedShare Rule = "failed-share" // too many nodes of the NodePool have failed
	LoopGuard   Rule = "loop-guard"   // the last deletions have not helped yet
	Workload    Rule = "workload"     // a pod runs on the node
	Changed     Rule = "changed"      // the live objects differ from the cache
	Unreadable  Rule = "unreadable"   // the live objects cannot be read
	Refused     Rule = "refused"      // the API server refuses the deletion
	DryRun      Rule = "dry-run"
)

// Breakers returns the rules that hold every deletion, in their order.
func Breakers() []Rule {
	return append(breaker.Rules(), LedgerFailed, HourlyBudget, DailyBudget, Halted)
}

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
}

// Input is the cluster at one moment.
type Input struct {
	Statuses     []fleet.Status
	Ledger       Ledger
	ControlGroup controlgroup.State
}

// Decision is what Decide has found.
type Decision struct {
	// Candidates may be deleted as far as the caches tell, the oldest first. At most one of them is.
	Candidates []fleet.Status
	Withheld   []act.Withheld // deletions that a rule does not allow
	// Ledger is the one of Input, brought up to date; it must be written before anything is deleted if Changed.
	Ledger  Ledger
	Changed bool
	Stuck   []Deletion // found stuck just now
	Halted  []string   // scopes that have been halted just now
	// Breakers are the rules that hold every deletion, with their numbers.
	Breakers map[Rule]string
}

// Decide says which nodes may be replaced at now, where the API server's clock must be known.
func (s Settings) Decide(in Input, now clock.Now) Decision {
	d := Decision{Ledger: in.Ledger.clone()}
	s.track(&d, in, now)
	d.Breakers = s.breakers(in, d.Ledger, now)
	for _, status := range in.Statuses {
		isReplaced := func(d Deletion) bool { return d.NodeUID == status.Node.UID && d.isInFlight() }
		if !s.isCandidate(status, now) || slices.ContainsFunc(d.Ledger.Deletions, isReplaced) {
			continue
		}
		if rule, text := s.withhold(status, in, &d, now); rule != "" {
			d.Withheld = append(d.Withheld, act.Withheld{Node: status.Node, Rule: rule, Text: text})
			continue
		}
		d.Candidates = append(d.Candidates, status)
	}
	slices.SortFunc(d.Candidates, func(a, b fleet.Status) int {
		return cmp.Or(a.Node.CreationTimestamp.Compare(b.Node.CreationTimestamp.Time), cmp.Compare(a.Node.Name, b.Node.Name))
	})
	return d
}

// withhold returns the first rule that does not allow to replace a candidate, or "".
func (s Settings) withhold(candidate fleet.Status, in Input, d *Decision, now clock.Now) (Rule, string) {
	scope := s.scopeOf(candidate.Node)
	for _, ask := range []func() (Rule, string){
		func() (Rule, string) { return s.protected(candidate.Node) },
		func() (Rule, string) { return breaker.First(Breakers(), d.Breakers) },
		func() (Rule, string) { return s.Unproven(in.ControlGroup, 0, now) },
		func() (Rule, string) { return s.proof(candidate.Node, in.Statuses) },
		func() (Rule, string) { return inFlight(d.Ledger) },
		func() (Rule, string) { return s.failedShare(scope, in.Statuses, d.Ledger) },
		func() (Rule, string) { return d.guard(scope, now) },
		func() (Rule, string) { return d.guard(Cluster, now) },
	} {
		if rule, text := ask(); rule != "" {
			return rule, text
		}
	}
	return "", ""
}

// proof demands a younger node that is verified: a new node would do better than this one. Both creation times come from the
// API server, and the other node's annotation says that our checks have passed there, so that a restart changes nothing.
func (s Settings) proof(node *corev1.Node, statuses []fleet.Status) (Rule, string) {
	for _, status := range statuses {
		if s.wasVerified(status) && status.Node.UID != node.UID && node.CreationTimestamp.Before(&status.Node.CreationTimestamp) {
			return "", ""
		}
	}
	return Proof, "no node that was created after this one (" + formatTime(node.CreationTimestamp.Time) + ") has been verified"
}

// wasVerified reports whether a node is verified by our checks, not by a label that somebody has written.
func (s Settings) wasVerified(status fleet.Status) bool {
	_, released := status.Node.Annotations[s.Fleet.Request.Annotation]
	return status.State == fleet.Verified && released
}

// breakers returns what holds every deletion now, with the numbers.
func (s Settings) breakers(in Input, ledger Ledger, now clock.Now) map[Rule]string {
	found := s.Holding(in.Statuses, in.ControlGroup, now)
	for rule, budget := range budgets() {
		if n := ledger.within(budget.period, now); n >= budget.deletions {
			found[rule] = fmt.Sprintf("%d deletions within %s, at most %d are allowed", n, budget.period, budget.deletions)
		}
	}
	if halted := ledger.halted(Cluster); halted != "" {
		found[Halted] = halted
	}
	return found
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
