package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
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
		before := objects.Seen[node.UID]
		before.seenSince = cmp.Or(before.seenSince, now.Mark())
		status, after := s.status(node, pods[node.Name], objects.Events, before, now)
		// A node that was rebooted serves while it waits: only a check that fails says something against it.
		if status.State == Failed && status.Failing == "" && status.Rebooted && !HasTaint(node, s.Request.TaintKey) {
			status.State = Pending
		}
		s.doubt(&status, before, after, now)
		plan.remember(status, before, after, now)
	}
	for _, status := range plan.Statuses {
		if condition, needed := s.wanted(status, now); needed {
			plan.Conditions = append(plan.Conditions, condition)
		}
	}
	return plan
}

func (s Settings) status(node *corev1.Node, pod *corev1.Pod, events map[types.UID][]corev1.Event, m memory, now clock.Now) (
	Status, memory) {
	status := Status{Node: node, Pod: pod, Untouchable: Untouchable(node), Retainted: s.IsRetainted(Taints(node)),
		Rebooted: verdict.WasRebooted(node.Annotations[s.Request.Annotation], node.Status.NodeInfo.BootID)}
	if s.IsVerified(node) {
		status.State = Verified
		m.notRunning, m.running, m.waiting = clock.Mark{}, clock.Mark{}, clock.Mark{} // for the next verification
		if s.Rechecks.Enabled() {
			// An agent counts so soon that one which replaces another is never missed.
			m = m.recheck(s.Condition(node), node, pod, min(s.Rechecks.RecoversAfter(), s.NoAgentFor/2), now)
			status.Recheck = m.rechecked.Recheck
			s.lacksSandbox(&status, &m, events, now)
		}
		return status, m
	}
	m.rechecked = recheckMemory{began: now.Mark()}
	status.Gated = s.IsGated(node)
	m = m.observe(pod, now)
	if !status.Gated {
		m.waiting = clock.Mark{}
	} else {
		m.waiting = cmp.Or(m.waiting, now.Mark())
	}
	status.Recheck.NoAgent = m.notRunning
	if s.Workers && s.decideByWorker(&status, &m, now) {
		return status, m
	}

	if m.container != "" && (m.notRunning.IsZero() || !hasRestarted(pod)) { // else it has crashed just now, and may again
		s.running(&status, m, now)
		return status, m
	}
	status.Reason, status.Message = s.Rules.notRunning(node, pod, events)
	status.State = Pending
	if pod == nil {
		status.State = Unverified
	}
	if status.Gated && now.HasLasted(m.notRunning, s.NotStartedAfter) {
		if status.EventsWanted = status.Reason == ""; !status.EventsWanted {
			status.State = Failed
		}
	}
	return status, m
}

// running is the status of a node whose agent runs: what the agent says of it, if it says something in time.
func (s Settings) running(status *Status, m memory, now clock.Now) {
	condition := s.Condition(status.Node)
	switch {
	case condition.Status == corev1.ConditionFalse && status.Gated && !firstReason(condition).IsOwn():
		status.failAs(condition)
	case now.Since(m.running) >= s.SilentAfter && HasTaint(status.Node, s.Request.TaintKey): // the agent marks no other node
		status.State, status.Reason = Failed, Silent
		status.Message = fmt.Sprintf("pod %s/%s has run for %s and has neither verified the node nor reported a failure: "+
			"read its log, and check the node's path to the API server", status.Pod.Namespace, status.Pod.Name, s.SilentAfter)
	default:
		status.State = InProgress
	}
}

// failAs takes over what the condition says.
func (s *Status) failAs(condition corev1.NodeCondition) {
	s.State, s.Reason, s.Failing, s.Message = Failed, firstReason(condition), condition.Reason, condition.Message
}

// remember adds a status to the plan, with since when it is so.
func (p *Plan) remember(status Status, before, after memory, now clock.Now) {
	if status.State != before.state || status.Reason != before.reason {
		after.state, after.reason, after.since = status.State, status.Reason, now.Mark()
	}
	status.Since = after.since
	p.Seen[status.Node.UID] = after
	p.Statuses = append(p.Statuses, status)
}

// wanted returns the condition that is to be written on a node, if it differs from the one that is there.
func (s Settings) wanted(status Status, now clock.Now) (Condition, bool) {
	switch {
	case status.Untouchable != "":
		return Condition{}, false
	case status.State == Verified && s.Rechecks.Enabled():
		return s.wantedOfRechecked(status, now)
	}
	written := s.Condition(status.Node)
	isFalse := written.Status == corev1.ConditionFalse
	isOwn := isFalse && s.writes(firstReason(written))
	fails := status.State == Failed && status.Gated && s.writes(status.Reason)
	reason := Reason(cmp.Or(status.Failing, string(status.Reason)))
	// In controller mode nobody else says of a node that was released that it is verified.
	unsaid := s.Workers && written.Status != corev1.ConditionTrue && s.WasGated(status.Node)
	switch {
	case status.State == Verified && (unsaid || isFalse && (isOwn || status.Pod == nil)):
		return Condition{Node: status.Node, Status: corev1.ConditionTrue, Reason: verdict.Verified,
			Message: "the node is verified"}, true
	case fails && isOwn && now.Since(status.Since) < settled:
		return Condition{}, false // a pod that is being replaced has one reason after the other for a moment
	case fails && (!isFalse || written.Reason != string(reason)):
		return Condition{Node: status.Node, Status: corev1.ConditionFalse, Reason: reason, Message: status.Message, Event: true}, true
	case status.State != Verified && !status.Gated && isOwn && !status.Retainted:
		// A stale False could get a node replaced whose startup taint somebody has removed.
		return Condition{Node: status.Node, Status: corev1.ConditionUnknown, Reason: "NotGated",
			Message: "the startup taint was removed before the node was verified"}, true
	}
	return Condition{}, false
}

// isLeftBehind reports whether node, which is not selected (any more), has something of the controller that nobody else would
// correct: the failed taint, or a condition from when it had the startup taint.
func (s Settings) isLeftBehind(node *corev1.Node) bool {
	condition := s.Condition(node)
	isOwnFalse := condition.Status == corev1.ConditionFalse && s.writes(firstReason(condition))
	return s.IsRetainted(Taints(node)) || isOwnFalse && s.Rules.matches(node)
}

// IsExcluded reports whether somebody has left node out, by another value of the label: it has no taint of ours and no agent.
func (s Settings) IsExcluded(node *corev1.Node) bool {
	value, labelled := node.Labels[s.Request.Label]
	return labelled && value != s.Request.LabelValue && !slices.ContainsFunc(Taints(node), s.Request.Removes)
}

// IsStranded reports whether node has the startup taint although the rules exclude it: nobody releases it.
func (s Settings) IsStranded(node *corev1.Node) bool {
	return HasTaint(node, s.Request.TaintKey) && !s.Rules.Select(node)
}

// IsRetainted reports whether taints have the failed taint that this release's controller adds to verified nodes.
func (s Settings) IsRetainted(taints []nodepatch.Taint) bool {
	return slices.ContainsFunc(taints, func(taint nodepatch.Taint) bool {
		return taint.Key == s.Request.FailedTaintKey && taint.Value == s.FailedTaintValue && s.FailedTaintValue != ""
	})
}

// writes reports whether the controller writes this reason to the condition.
func (s Settings) writes(reason Reason) bool { return s.Workers || reason.IsOwn() }

// IsGated reports whether nobody but the agent or a worker releases node: it has the startup taint, or is to be verified again.
func (s Settings) IsGated(node *corev1.Node) bool {
	_, released := node.Annotations[s.Request.Annotation]
	_, labelled := node.Labels[s.Request.Label]
	return HasTaint(node, s.Request.TaintKey) || (released && !labelled)
}

// IsVerified reports whether node has the label and none of the taints that a release removes.
func (s Settings) IsVerified(node *corev1.Node) bool {
	request := s.Request
	if s.Rechecks.Enabled() {
		request = request.Released()
	}
	return request.IsVerified(node.Labels, Taints(node))
}

// Condition returns our condition of node, or an empty one.
func (s Settings) Condition(node *corev1.Node) corev1.NodeCondition {
	return nodeCondition(node, corev1.NodeConditionType(s.ConditionType))
}

// nodeCondition returns one of a node's conditions, or an empty one.
func nodeCondition(node *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	return firstOf(node.Status.Conditions, func(condition corev1.NodeCondition) bool { return condition.Type == kind })
}

// firstOf returns the first of a list that is wanted, or an empty one.
func firstOf[T any](list []T, isWanted func(T) bool) (found T) {
	if i := slices.IndexFunc(list, isWanted); i >= 0 {
		return list[i]
	}
	return found
}

// firstReason returns the first of the reasons of a condition, which the agent joins with commas; NotVerified for one that is
// unknown.
func firstReason(condition corev1.NodeCondition) Reason {
	first, _, _ := strings.Cut(condition.Reason, ",")
	if reason := Reason(first); first != "" && slices.Contains(Reasons(), reason) {
		return reason
	}
	return NotVerified
}

// podsByNode returns the agent's pod of each node: the one that is not being deleted, and of those the newest.
func podsByNode(pods []corev1.Pod) map[string]*corev1.Pod {
	found := make(map[string]*corev1.Pod, len(pods))
	for i := range pods {
		pod := &pods[i]
		node := NodeOf(pod)
		if other := found[node]; other == nil || Newer(pod, other) > 0 {
			found[node] = pod
		}
	}
	return found
}

// Newer compares two pods of a node: one that is not being deleted is newer than one that is, and one that has not ended than one
// that has. The later attempt is newer. Only then the time of the creation counts: the API server's clock may have been set back.
func Newer(a, b *corev1.Pod) int {
	is := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	return cmp.Or(is(b.DeletionTimestamp != nil)-is(a.DeletionTimestamp != nil),
		is(HasEnded(b))-is(HasEnded(a)), Attempt(a)-Attempt(b),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

// NodeOf returns the node that a pod runs on, or that it is made for: the DaemonSet controller names it as the controller does.
func NodeOf(pod *corev1.Pod) string {
	for _, term := range requiredTerms(pod.Spec.Affinity) {
		for _, field := range term.MatchFields {
			if pod.Spec.NodeName == "" && field.Key == "metadata.name" && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return pod.Spec.NodeName
}

// LastTime returns when an event has happened last.
func LastTime(event corev1.Event) time.Time {
	if event.Series != nil {
		return event.Series.LastObservedTime.Time
	}
	return cmp.Or(event.LastTimestamp.Time, event.EventTime.Time, event.FirstTimestamp.Time, event.CreationTimestamp.Time)
}
