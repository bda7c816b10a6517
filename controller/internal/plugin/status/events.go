package status

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/report"
	"github.com/imunhatep/kube-node-ready/controller/internal/retaint"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// lastEvent is the newest Event that says how a node's verification goes.
type lastEvent struct {
	at, since       time.Time // since: what the agent says, or zero
	fails           bool
	reason, message string
}

// lastEvents returns that of each node. Events that say something else are ignored.
func lastEvents(events []corev1.Event) map[string]lastEvent {
	fails := map[string]bool{
		verdict.NodeVerified: false, verdict.NodeRecovered: false, retaint.FailedTaintRemoved: false,
		verdict.NodeNotVerified: true, verdict.NodeTimedOut: true, report.NodeNotStarted: true,
		verdict.RecheckFailed: true, retaint.FailedTaintAdded: true,
	}
	newest := make(map[string]lastEvent)
	for _, event := range events {
		failed, known := fails[event.Reason]
		at, name := fleet.LastTime(event), event.InvolvedObject.Name
		if !known || newest[name].at.After(at) {
			continue
		}
		said := lastEvent{at: at, fails: failed, message: event.Message}
		if text, found := strings.CutPrefix(event.Message, "since "); found { // 2026-01-01T00:00:00Z: dns: ...
			stamp, rest, _ := strings.Cut(text, ": ")
			if since, err := time.Parse(time.RFC3339, stamp); err == nil {
				said.since, said.message = since, rest
			}
		}
		said.reason, _ = parse(said.message)
		newest[name] = said
	}
	return newest
}

// parse returns the reason of a condition with this message, and what is new in the message behind that: the first failure,
// without its check's name and the remedy. The controller's messages begin with the reason; the agent's name the checks.
func parse(message string) (reason, brief string) {
	first, rest, found := strings.Cut(message, ": ")
	switch {
	case found && verdict.MeaningOf(first).Reason != "":
		return first, rest
	case found && strings.HasPrefix(first, "not verified within "):
		return parse(rest)
	}
	brief = message
	var failed []string
	for _, check := range append(checks.Names(), checks.NodeName, checks.PeersName) {
		if strings.HasPrefix(message, check+": ") || strings.Contains(message, "; "+check+": ") {
			failed = append(failed, check)
		}
		if found && first == check {
			brief, _, _ = strings.Cut(rest, " (")
		}
	}
	return verdict.Reason(failed), brief
}
