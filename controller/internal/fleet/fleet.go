// Package fleet decides, from the objects of the API server alone, what state each node is in and what is to be reported. It
// has no side effects: Decide is a function of the objects, of what the process remembers, and of the time.
package fleet

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// State is where a node is on its way to its release.
type State string

// The states of a node.
const (
	Unverified State = "Unverified" // no agent's pod for it yet
	Pending    State = "Pending"    // a pod that does not run yet
	InProgress State = "InProgress" // the agent runs
	Verified   State = "Verified"
	Failed     State = "Failed" // for a reason
)

// States returns all states, in the order of a node's way.
func States() []State { return []State{Unverified, Pending, InProgress, Verified, Failed} }

// Settings are what the operator has decided.
type Settings struct {
	Rules         Rules
	Keys          nodepatch.Keys
	ConditionType string
	// Rechecks keep agents on verified nodes. The failed taint or a False condition then does not make a node unverified.
	Rechecks Rechecks
	// NoAgentFor is how long a verified node may be without an agent. Then its failed taint is removed, and False becomes Unknown.
	NoAgentFor time.Duration
	// FailedTaintValue is the value of the failed taint that this release's controller adds to verified nodes.
	FailedTaintValue string
	// NotStartedAfter is how long a node may be without a running agent.
	NotStartedAfter time.Duration
	// Workers means controller mode: the pods are workers, and nobody but the controller writes the condition.
	Workers bool
	// FailedAfter is how long a node may be unverified until the failure of its workers is reported: INITIAL_TIMEOUT.
	FailedAfter time.Duration
	// SilentAfter is how long an agent may run, or the round of a worker may take, without a word about the node.
	SilentAfter time.Duration
}

// NewSettings returns all that the controller's settings say. template is that of the agents or workers.
func NewSettings(cfg config.Controller, template *corev1.PodTemplateSpec) Settings {
	s := Settings{
		Rules: NewRules(template, cfg.Keys()), Keys: cfg.Keys(), ConditionType: cfg.ConditionType, FailedTaintValue: cfg.AgentName,
		Workers: cfg.DeploymentMode == config.ModeController, NotStartedAfter: cfg.NotStartedAfter, NoAgentFor: cfg.RetaintNoAgentFor,
		FailedAfter: cfg.InitialTimeout, SilentAfter: cfg.InitialTimeout + time.Minute,
		Rechecks: Rechecks{Interval: cfg.RecheckInterval, FailureThreshold: cfg.FailureThreshold,
			RecoveryThreshold: cfg.RecoveryThreshold},
	}
	if s.Workers { // a worker says nothing before its round ends
		s.SilentAfter = max(s.SilentAfter, checklist.LongestRound(cfg.Config)+time.Minute)
	}
	return s
}

// WithoutTime returns the settings for a process that sees the cluster once: for it, no time passes after which a node counts as
// failed.
func (s Settings) WithoutTime() Settings {
	const never = time.Duration(math.MaxInt64)
	s.NotStartedAfter, s.SilentAfter, s.FailedAfter, s.NoAgentFor = never, never, never, never
	return s
}

// Objects is the cluster as the caches show it, and what was looked up for it.
type Objects struct {
	Nodes []corev1.Node
	Pods  []corev1.Pod // of the agents, or the workers
	// Events of the pods whose Status has EventsWanted.
	Events map[types.UID][]corev1.Event
	// Unmet is what nodes do not show (REQUIRE) although their workers have passed, by the nodes' names.
	Unmet map[string]string
	// Seen is what the last Plan remembers.
	Seen Memory
}

// Status is one node as it is now.
type Status struct {
	Node *corev1.Node
	Pod  *corev1.Pod // of its agent, nil: none
	// Gated means that nobody but the agent releases the node: it has the startup taint, or is to be verified again.
	Gated       bool
	Untouchable string // why nothing is to be done to it, or ""
	State       State
	// Reason is why the node has failed. Of a node that is on its way it is why the node would fail, zero if that is not known. A
	// verified node has none, or SandboxFailed where kubelet cannot make the sandbox of its agent.
	Reason     condition.Reasons
	AllReasons condition.Reasons // Reason, or the reasons of all failing checks
	Message    string
	Since      clock.Mark // of State and Reason, without a break
	Recheck    Recheck    // of a verified node
	NoAgent    clock.Mark // since when no agent runs, zero: one does, or none is to run
	Retainted  bool       // it has the failed taint that this release's controller adds
	Rebooted   bool       // it was started again since its release
	// InDoubt means that the node may fail only because the sandbox of its agent is broken. Nothing is to be done to the node until
	// an agent with a new sandbox has failed too.
	InDoubt bool
	// Renewable means that a new pod for the agent may help: the agent had the time to pass, and its sandbox can cause the failure.
	Renewable bool
	// EventsWanted means that only the pod's Events tell why no agent runs, and they have not been read.
	EventsWanted bool
}

// IsPending reports whether somebody verifies the node, or should. In controller mode nobody verifies a node that never had the
// startup taint.
func (s Status) IsPending() bool { return s.State != Verified && (s.Gated || s.Pod != nil) }

// ChangesWithTime reports whether a decision may be due although no object changes. It is true of each node that the controller
// may re-taint or replace, or whose failed taint it may remove.
func (s Status) ChangesWithTime() bool {
	return s.IsPending() || s.Retainted || s.Recheck.Failed || !s.Recheck.NotReady.IsZero() || !s.NoAgent.IsZero()
}

// maxAge is how old a plan may be that is acted on. One is made every 10 s while a status ChangesWithTime.
const maxAge = 30 * time.Second

// Plan is what Decide has found. Nobody changes it.
type Plan struct {
	At         clock.Now // zero: there is no plan
	Statuses   []Status
	Seen       Memory
	Conditions []Condition
}

// IsFresh reports whether something may be done to the nodes of the plan.
func (p Plan) IsFresh(now clock.Now) bool { return now.Since(p.At.Mark()) <= maxAge }
