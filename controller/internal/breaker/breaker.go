// Package breaker says what keeps the controller from re-tainting and from replacing any node: a fault of the cluster, or of the
// controller itself.
package breaker

import (
	"fmt"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// Rule is why nothing may be done to a node.
type Rule string

// The rules for every node of the cluster that all actions have.
const (
	ControlGroup   Rule = "control-group"   // the checks do not pass in the controller's own pod
	ControlNode    Rule = "control-node"    // the controller's own node is not verified
	FailedRechecks Rule = "failed-rechecks" // too many verified nodes fail their rechecks, or are re-tainted
)

// Settings are what the rules depend on.
type Settings struct {
	Fleet    fleet.Settings
	NodeName string // of the controller
	// ControlGroupFor is how long the control group must have passed before anything is done to a node.
	ControlGroupFor time.Duration
}

// FailingLately says that the checks fail in the controller's own pod, or did so shortly ago, or "". It says nothing of a control
// group that has not passed for long enough but has never failed: the controller has just started.
func (s Settings) FailingLately(group baseline.State, now clock.Now) string {
	text := s.NotProvenFor(0, group, now)
	if text == "" || group.Failure == "" {
		return ""
	}
	return text + "; the last failure: " + group.Failure
}

// NotProvenFor says that the checks have not passed in the controller's own pod, without a break, for ControlGroupFor and some
// time more, or "".
func (s Settings) NotProvenFor(more time.Duration, group baseline.State, now clock.Now) string {
	passed, enough := group.PassedFor(now), s.ControlGroupFor+more
	if passed >= enough {
		return ""
	}
	return fmt.Sprintf("the checks have passed in the controller's pod for %s, but must pass there for %s first",
		passed.Truncate(time.Second), enough)
}

// OwnNode says why the controller's own node is not fit, or "".
func (s Settings) OwnNode(statuses []fleet.Status) string {
	if why := Unfit(s.Fleet, statuses)[s.NodeName]; why != "" {
		return fmt.Sprintf("the controller's own node %s %s", s.NodeName, why)
	}
	return ""
}

// Unfit returns the nodes that the controller must not decide from, with why: they wait for their release, or fail. A node that
// was never gated is as good as a verified one: in controller mode nobody labels it.
func Unfit(s fleet.Settings, statuses []fleet.Status) map[string]string {
	found := make(map[string]string)
	for _, status := range statuses {
		failed := status.State == fleet.Failed || fleet.HasTaint(status.Node, s.Keys.FailedTaintKey)
		switch {
		case status.Recheck.Failed:
			found[status.Node.Name] = "fails its rechecks"
		case status.State != fleet.Verified && (status.Gated || failed):
			found[status.Node.Name] = "is not verified (" + string(status.State) + ")"
		}
	}
	return found
}

// TooManyFail says how many verified nodes fail their rechecks now, if they are so many that the fault is not the nodes', or "".
// A re-tainted node counts also while it is drained: it is drained because of the taint.
func TooManyFail(statuses []fleet.Status) string {
	var failed []string
	for _, status := range statuses {
		if status.Retainted || status.Recheck.Failed && status.Untouchable == "" { // another drained node says nothing new
			failed = append(failed, status.Node.Name)
		}
	}
	limit := max(3, len(statuses)/10)
	if len(failed) < limit {
		return ""
	}
	return fmt.Sprintf("%d of %d nodes fail their rechecks now or are re-tainted (%s, ...): there must be fewer than %d",
		len(failed), len(statuses), strings.Join(failed[:3], ", "), limit)
}
