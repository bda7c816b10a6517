package fleet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
)

// Condition is one to be written on a node.
type Condition struct {
	Node    *corev1.Node
	Status  corev1.ConditionStatus
	Reason  condition.Reasons
	Message string
	Event   bool // whether the node gets an Event, too
	// Rechecked means that the node was verified before.
	Rechecked bool
}

// wanted returns the condition that is to be written on a node, if it differs from the one that is there.
func (s Settings) wanted(status Status, now clock.Now) (wanted Condition, isNeeded bool) {
	isRechecked := status.State == Verified && s.Rechecks.Enabled()
	switch {
	case status.Untouchable != "":
		return Condition{}, false
	case isRechecked:
		wanted, isNeeded = s.wantedOfRechecked(status, now)
	case status.State == Verified:
		wanted, isNeeded = s.wantedOfReleased(status)
	default:
		wanted, isNeeded = s.wantedOfUnreleased(status, now)
	}
	wanted.Node, wanted.Rechecked = status.Node, isRechecked
	return wanted, isNeeded
}

// wantedOfReleased returns True where nobody else writes it: in controller mode, for what the controller has written itself, and
// where no agent is left that would correct it.
func (s Settings) wantedOfReleased(status Status) (Condition, bool) {
	written := s.Condition(status.Node)
	isUnsaid := s.Workers && written.Status != corev1.ConditionTrue && s.WasGated(status.Node)
	isStale := written.Type != "" && written.Status != corev1.ConditionTrue && status.Pod == nil
	isOutdated := s.isOwnFalse(written) || isStale
	wanted := Condition{Status: corev1.ConditionTrue, Reason: condition.Verified, Message: "the node is verified"}
	return wanted, isUnsaid || isOutdated
}

// wantedOfUnreleased returns False with the reason if it is the controller that finds the failure. A node that was opened
// manually gets none: it serves, and a tool that acts on the condition could drain or replace it.
func (s Settings) wantedOfUnreleased(status Status, now clock.Now) (Condition, bool) {
	written := s.Condition(status.Node)
	isOwn := s.isOwnFalse(written)
	isNew := written.Status != corev1.ConditionFalse || condition.Parse(written.Reason) != status.AllReasons
	mayBeFalse := status.Gated && !s.isOpened(status.Node)
	fails := status.State == Failed && mayBeFalse && s.writes(status.Reason)
	switch {
	case fails && isOwn && now.Since(status.Since) < settled:
		return Condition{}, false // a pod that is being replaced has one reason after the other for a moment
	case fails && isNew:
		return Condition{Status: corev1.ConditionFalse, Reason: status.AllReasons, Message: status.Message, Event: true}, true
	case !mayBeFalse && isOwn && !status.Retainted:
		// A stale False could get a node replaced whose startup taint somebody has removed.
		return Condition{Status: corev1.ConditionUnknown, Reason: condition.NotGated,
			Message: "the startup taint was removed before the node was verified"}, true
	}
	return Condition{}, false
}

// wantedOfRechecked returns the condition that is to be written on a verified node that is checked again. An agent without a path
// to the API server cannot write False, but kubelet sees that it is not ready. Only the agent writes True: it has proven it.
func (s Settings) wantedOfRechecked(status Status, now clock.Now) (Condition, bool) {
	r := status.Recheck
	reason, message := status.Reason, status.Message
	if reason == 0 && s.isSilent(r, now) {
		reason, message = condition.Silent, fmt.Sprintf("pod %s/%s runs but is not ready: its rechecks fail, but it does not write "+
			"the reason; read its log, and check the node's path to the API server", status.Pod.Namespace, status.Pod.Name)
	}
	isYoung := now.Since(r.written) < recheck.RefreshInterval && !r.written.Before(r.NotReady)
	mayBeWritten := s.Condition(status.Node).Type != "" || s.WasGated(status.Node)
	switch {
	case reason != 0 && r.Reason == reason && isYoung:
		return Condition{}, false
	case reason != 0 && mayBeWritten:
		return Condition{Status: corev1.ConditionFalse, Reason: reason, Message: message, Event: r.Reason != reason}, true
	case r.Failed && now.HasLasted(status.NoAgent, s.NoAgentFor):
		return Condition{Status: corev1.ConditionUnknown, Reason: condition.NotRechecked, Message: "no agent rechecks the node"}, true
	}
	return Condition{}, false
}
