package fleet

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Decide says what state each selected node is in, and what is to be written, at now.
func (s Settings) Decide(objects Objects, now clock.Now) Plan {
	plan := Plan{At: now, Seen: make(Memory, len(objects.Nodes)), Statuses: make([]Status, 0, len(objects.Nodes))}
	pods := podsByNode(objects.Pods)
	for i := range objects.Nodes {
		node := &objects.Nodes[i]
		if (!s.Rules.Select(node) || s.IsExcluded(node)) && !s.isLeftBehind(node) {
			continue
		}
		v := view{node: node, pod: pods[s.key(node)], condition: s.Condition(node), isVerified: s.IsVerified(node),
			untouchable: Untouchable(node), unmet: objects.Unmet[node.Name], now: now}
		if v.pod != nil {
			v.events = objects.Events[v.pod.UID]
		}
		v.seen = s.observe(v, objects.Seen[node.UID])
		status := s.judge(v)
		plan.Seen[node.UID] = v.seen.remember(&status, now)
		plan.Statuses = append(plan.Statuses, status)
		if condition, needed := s.wanted(status, now); needed {
			plan.Conditions = append(plan.Conditions, condition)
		}
	}
	return plan
}

// view is all that a node is judged by.
type view struct {
	node       *corev1.Node
	pod        *corev1.Pod    // of its agent or worker, nil: none
	events     []corev1.Event // of pod, nil: they have not been read
	condition  corev1.NodeCondition
	isVerified bool
	// untouchable says why nothing is to be done to the node, or "".
	untouchable string
	unmet       string // what the node does not show of what REQUIRE demands, although its worker has passed
	seen        memory // with what the objects show now
	now         clock.Now
}

// judge says what state a node is in.
func (s Settings) judge(v view) Status {
	status := Status{Node: v.node, Pod: v.pod, Untouchable: v.untouchable, Retainted: s.IsRetainted(Taints(v.node)),
		Rebooted: record.WasRebooted(v.node.Annotations[nodepatch.Annotation], v.node.Status.NodeInfo.BootID),
		NoAgent:  v.seen.noAgent}
	if v.isVerified {
		s.judgeReleased(&status, v)
	} else {
		s.judgeUnreleased(&status, v)
	}
	if s.goesOn(status, v) {
		status.failAs(v.condition)
	}
	s.judgeSandbox(&status, v)
	status.AllReasons = cmp.Or(status.AllReasons, status.Reason)
	return status
}

// judgeUnreleased judges a node that is not verified.
func (s Settings) judgeUnreleased(status *Status, v view) {
	status.Gated = s.IsGated(v.node)
	// A container that has crashed counts as running only once it has settled.
	isRunning := v.seen.container != "" && (v.seen.noAgent.IsZero() || !hasRestarted(v.pod))
	switch {
	case s.Workers && v.pod == nil:
		s.judgeWithoutWorker(status, v)
	case s.hasVerdict(v):
		s.judgeVerdict(status, v)
	case s.isNextAttempt(v):
		status.failAs(v.condition)
	case s.isStillFailing(v):
		status.State, status.Reason = Failed, v.seen.reason
	case isRunning:
		s.judgeRunning(status, v)
	default:
		s.judgeNotRunning(status, v)
	}
	// A node that was rebooted serves while it waits: only a check that fails says something against it.
	isServing := status.Rebooted && !HasTaint(v.node, s.Keys.TaintKey)
	if isServing && status.State == Failed && !status.isReported() {
		status.State = Pending
	}
}

// judgeRunning judges a node whose agent runs: by what the agent says, if it says something in time.
func (s Settings) judgeRunning(status *Status, v view) {
	isOverdue := v.now.Since(v.seen.running) >= s.SilentAfter && HasTaint(v.node, s.Keys.TaintKey) // the agent marks no other node
	// If an earlier agent has written why the node fails, this one should have done so too by then, unless its sandbox is broken.
	isQuoted := v.condition.LastHeartbeatTime.Before(&v.pod.CreationTimestamp) && !s.isSandboxSuspected(v) && !s.Workers
	switch {
	case v.isFalseByAgent() && status.Gated && (!isOverdue || !isQuoted):
		status.failAs(v.condition)
	case isOverdue:
		status.State, status.Reason = Failed, condition.Silent
		status.Message = fmt.Sprintf("pod %s/%s has run for %s and has neither verified the node nor reported a failure: "+
			"read its log, and check the node's path to the API server", v.pod.Namespace, v.pod.Name, s.SilentAfter)
	default:
		status.State = InProgress
	}
}

// judgeNotRunning judges a node whose agent does not run, or crashes.
func (s Settings) judgeNotRunning(status *Status, v view) {
	status.State = Pending
	if v.pod == nil {
		status.State = Unverified
	}
	status.Reason, status.Message = s.Rules.notRunning(v)
	if !status.Gated || !v.now.HasLasted(v.seen.noAgent, s.NotStartedAfter) {
		return
	}
	status.EventsWanted = status.Reason == 0
	if !status.EventsWanted {
		status.State = Failed
	}
}

// judgeReleased judges a verified node.
func (s Settings) judgeReleased(status *Status, v view) {
	status.State, status.Recheck = Verified, v.seen.recheck
	if v.seen.container != "" || !s.isStuck(v, v.seen.noAgent) {
		return
	}
	reason, message := s.Rules.notRunning(v)
	status.EventsWanted = reason == 0
	if reason == condition.SandboxFailed {
		status.Reason, status.Message = reason, message
	}
}

// isFalseByAgent reports whether the condition is False for a reason that an agent or worker has found.
func (v view) isFalseByAgent() bool {
	return v.condition.Status == corev1.ConditionFalse && !firstReason(v.condition).Meaning().Controller
}

// isReported reports whether a worker or the condition says why the node fails, not only its pod.
func (s *Status) isReported() bool { return s.AllReasons != 0 }

// failAs takes over what the condition says.
func (s *Status) failAs(shown corev1.NodeCondition) {
	s.State, s.Reason, s.AllReasons, s.Message = Failed, firstReason(shown), condition.Parse(shown.Reason), shown.Message
}
