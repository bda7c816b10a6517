// Package fleet decides what state each node is in, and which conditions the controller must write, from the objects of the API
// server alone.
//
// The loop calls Decide after each change and publishes the Plan: report writes its Conditions, metrics counts its Statuses, and
// retaint, remediation, renewal, reboot and handover act on them. Remediation also calls Decide for one node, with live objects
// and the memory of the plan. `kubectl node-ready status` calls it without a memory. The package also holds what all of them
// need to know about nodes and pods (node.go, pods.go, workerpod.go), and what the caches keep of both (objects.go).
//
// For each node, Decide takes four steps, in this order. None of them has a side effect:
//
//	snapshot  what the objects show now (decide.go)
//	observe   the memory of the last decision and the snapshot give a new memory (observe.go, recheck.go)
//	judge     the snapshot and the memory give a Finding: released.go judges a verified node, and the mode judges any other
//	          node (agents.go for daemonset mode, workers.go for controller mode)
//	wanted    the finding gives the condition to write, if the present one differs (condition.go)
//
// What must stay true:
//   - Only observe and memory.after make a memory. It is lost in a restart, which may only delay a decision.
//   - Only the mode differs between the deployment modes, and only Settings.mode chooses it.
//   - A node that was never gated gets no condition, except to correct one that it has. A node that is cordoned, drained or
//     being deleted gets none at all.
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

// Settings are what the operator has configured. They do not change.
type Settings struct {
	Rules         Rules
	Keys          nodepatch.Keys
	ConditionType string
	// Rechecks keep agents on verified nodes. The failed taint or a False condition then does not make a node unverified.
	Rechecks Rechecks
	// NoAgentFor is how long a verified node may be without an agent. After that its failed taint is removed, and False becomes
	// Unknown.
	NoAgentFor time.Duration
	// FailedTaintValue is the value of the failed taint that this release's controller adds to verified nodes.
	FailedTaintValue string
	// NotStartedAfter is how long a node may be without a running agent.
	NotStartedAfter time.Duration
	// Workers selects controller mode: the pods are workers, and only the controller writes the condition. See mode.
	Workers bool
	// FailedAfter is how long a node may be unverified until the failure of its workers is reported: INITIAL_TIMEOUT.
	FailedAfter time.Duration
	// SilentAfter is how long an agent may run, or the round of a worker may take, without any report about the node.
	SilentAfter time.Duration
}

// NewSettings returns the settings that follow from the controller's configuration. template is that of the agents or workers.
func NewSettings(cfg config.Controller, template *corev1.PodTemplateSpec) Settings {
	silentAfter, isController := cfg.InitialTimeout+time.Minute, cfg.DeploymentMode == config.ModeController
	if isController { // a worker reports nothing before its round ends
		silentAfter = max(silentAfter, checklist.LongestRound(cfg.Config)+time.Minute)
	}
	return Settings{
		Rules: NewRules(template, cfg.Keys()), Keys: cfg.Keys(), ConditionType: cfg.ConditionType, FailedTaintValue: cfg.AgentName,
		Workers: isController, NotStartedAfter: cfg.NotStartedAfter, NoAgentFor: cfg.RetaintNoAgentFor,
		FailedAfter: cfg.InitialTimeout, SilentAfter: silentAfter,
		Rechecks: Rechecks{Interval: cfg.RecheckInterval, FailureThreshold: cfg.FailureThreshold,
			RecoveryThreshold: cfg.RecoveryThreshold},
	}
}

// WithoutTime returns the settings for a process that sees the cluster only once, so that no node fails because of a timeout.
func (s Settings) WithoutTime() Settings {
	const never = time.Duration(math.MaxInt64)
	s.NotStartedAfter, s.SilentAfter, s.FailedAfter, s.NoAgentFor = never, never, never, never
	return s
}

// Objects is the cluster as the caches show it, and what was looked up for it.
type Objects struct {
	Nodes []corev1.Node
	Pods  []corev1.Pod // of the agents, or the workers
	// Events of the pods whose Status has EventsWanted. A pod without an entry has not been looked up.
	Events map[types.UID][]corev1.Event
	// Unmet is what nodes do not show (REQUIRE) although their workers have passed, by the nodes' names.
	Unmet map[string]string
	// Seen is the memory of the last Plan, or nil.
	Seen Memory
}

// State is where a node is on its way to its release.
type State string

// The states of a node.
const (
	Unverified State = "Unverified" // there is no pod of an agent or worker for it yet
	Pending    State = "Pending"    // its pod does not run yet
	InProgress State = "InProgress" // its pod runs
	Verified   State = "Verified"
	Failed     State = "Failed" // for a Reason
)

// States returns all states, in the order in which a node passes through them.
func States() []State { return []State{Unverified, Pending, InProgress, Verified, Failed} }

// Finding is how a node was judged.
type Finding struct {
	State State
	// Reason is why the node has failed, or why it would fail if it stayed in its state for too long; zero if that is not known.
	// A verified node has none, or SandboxFailed if kubelet cannot make the sandbox of its agent.
	Reason condition.Reasons
	// Reported are all the reasons that an agent, a worker or the condition has reported. It is zero if the controller has found
	// the Reason.
	Reported condition.Reasons
	Message  string
	// EventsWanted means that only the pod's Events can explain why no agent runs, and that they have not been read.
	EventsWanted bool
}

// Status is one node as it is now.
type Status struct {
	Node *corev1.Node
	Pod  *corev1.Pod // of its agent or worker, or nil
	// Gated means that the node waits for its agent or worker to release it: it has the startup taint, or must be verified again.
	Gated       bool
	Untouchable string // why the controller must not change the node, or ""
	Finding
	Since        clock.Mark // of State and Reason, without a break
	Recheck      Recheck    // of a verified node
	Absence      Absence    // of its agent or worker
	RunningSince clock.Mark // of the container of its agent or worker, zero if none runs
	Retainted    bool       // it has the failed taint that this release's controller adds
	Rebooted     bool       // it was started again since its release
}

// IsPending reports whether the node is being verified, or should be. In controller mode no worker verifies a node that never had
// the startup taint.
func (s Status) IsPending() bool { return s.State != Verified && (s.Gated || s.Pod != nil) }

// ChangesWithTime reports whether a decision may be due although no object changes. It is true of each node that the controller
// may re-taint or replace, or whose failed taint it may remove.
func (s Status) ChangesWithTime() bool {
	return s.IsPending() || s.Retainted || s.Recheck.Failed || !s.Recheck.NotReady.IsZero() || s.Absence.Is
}

// maxAge is how old a plan may be that is acted on. One is made every 10 s while a status ChangesWithTime.
const maxAge = 30 * time.Second

// Plan is the result of Decide. It never changes.
type Plan struct {
	At         clock.Now // zero if there is no plan
	Statuses   []Status
	Seen       Memory
	Conditions []Condition
}

// IsFresh reports whether the plan is recent enough to act on.
func (p Plan) IsFresh(now clock.Now) bool { return now.Since(p.At.Mark()) <= maxAge }
