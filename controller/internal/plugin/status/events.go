package status

import (
	"slices"
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
		verdict.NodeVerified: false, "NodeRecovered": false, retaint.FailedTaintRemoved: false,
		verdict.NodeNotVerified: true, report.NodeTimedOut: true, report.NodeNotStarted: true,
		report.RecheckFailed: true, retaint.FailedTaintAdded: true,
	}
	newest := make(map[string]lastEvent)
	for _, event := range events {
		failed, known := fails[event.Reason]
		at := fleet.LastTime(event)
		name := event.InvolvedObject.Name
		if before, seen := newest[name]; !known || seen && before.at.After(at) {
			continue
		}
		said := lastEvent{at: at, fails: failed, message: event.Message}
		if text, found := strings.CutPrefix(event.Message, "since "); found { // 2026-01-01T00:00:00Z: dns: ...
			stamp, rest, _ := strings.Cut(text, ": ")
			if since, err := time.Parse(time.RFC3339, stamp); err == nil {
				said.since, said.message = since, rest
			}
		}
		said.reason = reasonOf(said.message)
		newest[name] = said
	}
	return newest
}

// reasonOf returns the reason of a condition with this message. The controller's Events begin with it; the agent's name the
// checks.
func reasonOf(message string) string {
	first, rest, _ := strings.Cut(message, ": ")
	if slices.Contains(fleet.Reasons(), fleet.Reason(first)) {
		return first
	}
	if strings.HasPrefix(first, "not verified within ") {
		message = rest
	}
	var failed []string
	for _, check := range checkNames() {
		if strings.HasPrefix(message, check+": ") || strings.Contains(message, "; "+check+": ") {
			failed = append(failed, check)
		}
	}
	return verdict.Reason(failed)
}

// brief returns what is new in a message behind its reason: the first failure, without its check's name and the remedy.
func brief(message string) string {
	first, rest, found := strings.Cut(message, ": ")
	if found && slices.Contains(fleet.Reasons(), fleet.Reason(first)) {
		return rest
	}
	if rest, found := strings.CutPrefix(message, "not verified within "); found {
		if _, failure, more := strings.Cut(rest, ": "); more {
			return brief(failure)
		}
	}
	if found && slices.Contains(checkNames(), first) {
		rest, _, _ = strings.Cut(rest, " (")
		return rest
	}
	return message
}

func checkNames() []string {
	return []string{checks.DNSName, checks.APIName, checks.NetworkName, checks.ServiceName, checks.PeersName}
}
