package fleet

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
)

// Condition is what the controller must write to the condition of a node.
type Condition struct {
	Node    *corev1.Node
	Status  corev1.ConditionStatus
	Reason  condition.Reasons
	Message string
	Event   bool // the node gets an Event, too
	// Rechecked means that the node was verified before.
	Rechecked bool
}

// wanted returns the condition to write on a node, if it differs from the present one.
func (e evidence) wanted(finding Finding) (wanted Condition, isNeeded bool) {
	isRechecked := e.isVerified && e.Rechecks.Enabled()
	switch {
	case e.untouchable != "":
		return Condition{}, false
	case isRechecked:
		wanted, isNeeded = e.wantedOfRechecked(finding)
	case e.isVerified:
		wanted, isNeeded = e.wantedOfReleased()
	default:
		wanted, isNeeded = e.wantedOfUnreleased(finding)
	}
	wanted.Node, wanted.Rechecked = e.node, isRechecked
	return wanted, isNeeded
}

// wantedOfReleased returns True if no agent writes it: in controller mode, in place of what the controller has written, and when
// there is no agent left to correct the condition.
func (e evidence) wantedOfReleased() (Condition, bool) {
	isMissing := e.mode().writes(condition.Verified) && e.WasGated(e.node)
	isStale := e.isOwnFalse(e.condition) || e.condition.Type != "" && e.pod == nil
	return Condition{Status: corev1.ConditionTrue, Reason: condition.Verified, Message: "the node is verified"},
		e.condition.Status != corev1.ConditionTrue && (isMissing || isStale)
}

// wantedOfUnreleased returns False with the reason if it is the controller that finds the failure. A node that was opened
// manually gets none: it serves, and a tool that acts on the condition could drain or replace it.
func (e evidence) wantedOfUnreleased(finding Finding) (Condition, bool) {
	reasons := cmp.Or(finding.Reported, finding.Reason)
	isOwn := e.isOwnFalse(e.condition)
	isNew := e.condition.Status != corev1.ConditionFalse || condition.Parse(e.condition.Reason) != reasons
	mayBeFalse := e.isGated && !e.isOpened(e.node)
	fails := finding.State == Failed && mayBeFalse && e.mode().writes(finding.Reason)
	switch {
	case fails && isOwn && e.now.Since(e.since) < settlesAfter:
		return Condition{}, false // while a pod is being replaced, its reason changes several times within a moment
	case fails && isNew:
		return Condition{Status: corev1.ConditionFalse, Reason: reasons, Message: finding.Message, Event: true}, true
	case !mayBeFalse && isOwn && !e.isRetainted:
		// The startup taint was removed manually. A tool that acts on the stale False could replace the node.
		return Condition{Status: corev1.ConditionUnknown, Reason: condition.NotGated,
			Message: "the startup taint was removed before the node was verified"}, true
	}
	return Condition{}, false
}

// wantedOfRechecked returns the condition to write on a verified node that is checked again. An agent without a path to the API
// server cannot write False, but kubelet sees that it is not ready. Only the agent writes True: it has proven it.
func (e evidence) wantedOfRechecked(finding Finding) (Condition, bool) {
	reason, message := finding.Reason, finding.Message
	if reason == 0 && e.isSilent() {
		reason, message = condition.Silent, fmt.Sprintf("pod %s/%s runs but is not ready: its rechecks fail, but it does not write "+
			"the reason; read its log, and check the node's path to the API server", e.pod.Namespace, e.pod.Name)
	}
	r, written := e.recheck, e.lastWritten()
	isYoung := e.now.Since(written) < recheck.RefreshInterval && !written.Before(r.NotReady)
	mayBeWritten := e.condition.Type != "" || e.WasGated(e.node)
	switch {
	case reason != 0 && r.Reason == reason && isYoung:
		return Condition{}, false
	case reason != 0 && mayBeWritten:
		return Condition{Status: corev1.ConditionFalse, Reason: reason, Message: message, Event: r.Reason != reason}, true
	case r.Failed && e.absence.HasLasted(e.NoAgentFor):
		return Condition{Status: corev1.ConditionUnknown, Reason: condition.NotRechecked, Message: "no agent rechecks the node"}, true
	}
	return Condition{}, false
}
