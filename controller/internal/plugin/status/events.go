package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/report"
	"github.com/imunhatep/kube-node-ready/controller/internal/retaint"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// lastEvent is the newest Event that says how a node's verification goes.
type lastEvent struct {
	at      time.Time
	fails   bool
	message string
}

// lastEvents returns the newest such Event of each node.
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
		if known && !newest[name].at.After(at) {
			newest[name] = lastEvent{at: at, fails: failed, message: event.Message}
		}
	}
	return newest
}
