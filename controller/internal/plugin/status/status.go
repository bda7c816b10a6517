// Package status says which nodes are not verified, since when, why, and what to try next. It is a function of objects.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// States beside those of the fleet: of nodes that were verified.
const (
	RecheckFails fleet.State = "RecheckFails"
	Closed       fleet.State = "Closed" // by the failed taint
)

// Input is the cluster as it was read.
type Input struct {
	Settings  fleet.Settings
	Namespace string // of the release
	Nodes     []corev1.Node
	Pods      []corev1.Pod   // of the agents, or the workers
	PodEvents []corev1.Event // in the release's namespace
	Events    []corev1.Event // about nodes
}

// Row is a node that is not verified, or fails.
type Row struct {
	Node   string
	Since  time.Time // zero: nobody says
	State  fleet.State
	Reason string
	Next   string
}

// Fleet is the state of all nodes.
type Fleet struct {
	Nodes, NotSelected int
	Count              map[fleet.State]int
	Rows               []Row // by name
}

// Of returns the state of the fleet at now.
func Of(in Input, now time.Time) Fleet {
	podEvents := make(map[types.UID][]corev1.Event)
	for _, pod := range in.Pods {
		podEvents[pod.UID] = []corev1.Event{} // read, and none found
	}
	for _, event := range in.PodEvents {
		if uid := event.InvolvedObject.UID; podEvents[uid] != nil {
			podEvents[uid] = append(podEvents[uid], event)
		}
	}
	plan := in.Settings.Decide(fleet.Objects{Nodes: in.Nodes, Pods: in.Pods, Events: podEvents}, now)
	reports := newestReports(in.Events)
	found := Fleet{Nodes: len(in.Nodes), NotSelected: len(in.Nodes) - len(plan.Statuses), Count: make(map[fleet.State]int)}
	for _, status := range plan.Statuses {
		row := in.row(status, reports[status.Node.Name])
		found.Count[row.State]++
		if row.State != fleet.Verified {
			found.Rows = append(found.Rows, row)
		}
	}
	slices.SortFunc(found.Rows, func(a, b Row) int { return strings.Compare(a.Node, b.Node) })
	return found
}

// row says what the objects tell about a node. What was written about it counts more than what its pod looks like.
func (in Input) row(status fleet.Status, said report) Row {
	node := status.Node
	if said.at.Before(node.CreationTimestamp.Time) {
		said = report{} // about an earlier node of that name
	}
	row := Row{Node: node.Name, State: status.State, Since: node.CreationTimestamp.Time}
	condition := in.Settings.Condition(node)
	isFalse := condition != nil && condition.Status == corev1.ConditionFalse
	reason, message := string(status.Reason), status.Message
	switch {
	case status.State == fleet.Verified && in.hasFailedTaint(node):
		row.State, row.Since = Closed, time.Time{}
	case status.State == fleet.Verified && isFalse && in.Settings.Rechecks.Enabled():
		row.State = RecheckFails
	case status.State == fleet.Verified:
		return row
	case isFalse && status.Gated || said.fails:
		row.State = fleet.Failed
	case status.Pod != nil && node.Annotations[in.Settings.Request.Annotation] != "":
		row.Since = status.Pod.CreationTimestamp.Time // the node is verified again
	}
	switch {
	case isFalse:
		reason, message, row.Since = condition.Reason, condition.Message, condition.LastTransitionTime.Time
	case said.fails && status.State != fleet.Verified:
		reason, message, row.Since = said.reason, said.message, cmp.Or(said.since, said.at)
	case reason == "" && !isNodeReady(node):
		reason, message = "NodeNotReady", "kubelet or the CNI does not report the node as ready"
	}
	if status.Untouchable != "" {
		message = strings.TrimPrefix(message+"; "+status.Untouchable, "; ")
	}
	row.Reason = shorten(strings.TrimSuffix(reason+": "+brief(message), ": "))
	row.Next = in.next(row, status, reason)
	return row
}

func (in Input) hasFailedTaint(node *corev1.Node) bool {
	return in.Settings.Request.FailedTaintKey != "" && fleet.HasTaint(node, in.Settings.Request.FailedTaintKey)
}

// next is what a person would try first.
func (in Input) next(row Row, status fleet.Status, reason string) string {
	if _, labelled := status.Node.Labels[in.Settings.Request.Label]; labelled && row.State == fleet.Unverified {
		return "verify it again: kubectl node-ready verify " + row.Node
	}
	first, _, _ := strings.Cut(reason, ",")
	pod := "POD"
	if status.Pod != nil {
		pod = status.Pod.Name
	}
	logs := "kubectl -n " + in.Namespace + " logs " + pod
	next, known := map[string]string{
		string(fleet.NoPod):          "add the toleration, or check the DaemonSet's Events",
		string(fleet.Unschedulable):  "check priorityClassName and the node's size",
		string(fleet.ImagePull):      "check the image's name, its pull secret and the path to the registry",
		string(fleet.SandboxFailed):  "check the CNI on the node",
		string(fleet.CrashLoop):      "read its log: " + logs + " --previous",
		string(fleet.Silent):         "check kubelet and the CNI on the node; if the pod runs: " + logs,
		string(fleet.DNSFailed):      "check the DNS pods and config.dnsTestDomains: kubectl node-ready doctor",
		string(fleet.APIFailed):      "check the agent's rights, kube-proxy and the MTU",
		string(fleet.NetworkFailed):  "check kube-proxy, the CNI and config.networkTargets",
		string(fleet.ServiceFailed):  "check the DNS pods, and the CNI's routes between nodes",
		string(fleet.PeersFailed):    "check the CNI's routes between nodes",
		string(fleet.TaintsOfOthers): "find out who should remove that taint",
		"NodeNotReady":               "check kubelet and the CNI on the node",
	}[first]
	switch {
	case known:
		return next
	case row.State == Closed:
		return "the taint goes once rechecks pass; at once: kubectl node-ready open " + row.Node
	case row.State == fleet.InProgress || reason == "":
		return "wait; its log: " + logs
	default:
		return "kubectl describe node " + row.Node
	}
}

func isNodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// report is the newest Event that says how a node's verification goes.
type report struct {
	at, since       time.Time // since: what the agent says, or zero
	fails           bool
	reason, message string
}

// newestReports returns the report about each node. Reasons of Events that say something else are ignored.
func newestReports(events []corev1.Event) map[string]report {
	fails := map[string]bool{
		verdict.NodeVerified: false, "NodeRecovered": false, "FailedTaintRemoved": false,
		verdict.NodeNotVerified: true, "NodeVerificationTimedOut": true, "NodeNotStarted": true,
		"NodeRecheckFailed": true, "FailedTaintAdded": true,
	}
	newest := make(map[string]report)
	for _, event := range events {
		failed, known := fails[event.Reason]
		at := lastTime(event)
		name := event.InvolvedObject.Name
		if before, seen := newest[name]; !known || seen && before.at.After(at) {
			continue
		}
		said := report{at: at, fails: failed, message: event.Message}
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

func lastTime(event corev1.Event) time.Time {
	if event.Series != nil {
		return event.Series.LastObservedTime.Time
	}
	for _, at := range []time.Time{event.LastTimestamp.Time, event.EventTime.Time, event.FirstTimestamp.Time} {
		if !at.IsZero() {
			return at
		}
	}
	return event.CreationTimestamp.Time
}

// shorten keeps a row on one line. The whole text is in `kubectl describe node`.
func shorten(text string) string {
	const most = 90
	text = strings.ReplaceAll(text, "\n", " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return text
}

// Summary is the fleet in one line.
func (f Fleet) Summary() string {
	var parts []string
	for _, state := range []fleet.State{
		fleet.Verified, RecheckFails, Closed, fleet.Unverified, fleet.Pending, fleet.InProgress, fleet.Failed} {
		name := map[fleet.State]string{fleet.InProgress: "in progress", RecheckFails: "failing rechecks"}[state]
		if n := f.Count[state]; n > 0 || state == fleet.Verified {
			parts = append(parts, fmt.Sprintf("%d %s", n, cmp.Or(name, strings.ToLower(string(state)))))
		}
	}
	if f.NotSelected > 0 {
		parts = append(parts, fmt.Sprintf("%d not selected", f.NotSelected))
	}
	noun := "nodes"
	if f.Nodes == 1 {
		noun = "node"
	}
	return fmt.Sprintf("%d %s: %s", f.Nodes, noun, strings.Join(parts, ", "))
}
