// Package status shows which nodes are not verified, since when, why, and what to try next. It is a function of objects.
package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/controller/internal/report"
	"github.com/imunhatep/kube-node-ready/controller/internal/retaint"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// States that fleet does not have: of nodes that were verified, and of nodes that are not verified on purpose.
const (
	RecheckFails fleet.State = "RecheckFails"
	Retainted    fleet.State = "Retainted" // it has the failed taint
	Opened       fleet.State = "Opened"    // by its agent (ON_TIMEOUT=open), and not verified
	Excluded     fleet.State = "Excluded"  // by another value of the verified label
	NotGated     fleet.State = "NotGated"  // in controller mode: never had the startup taint
	NotSelected  fleet.State = "NotSelected"
)

// Input is the cluster as it was read.
type Input struct {
	installation.Release
	Nodes     []corev1.Node
	Pods      []corev1.Pod   // of the agents, or the workers
	PodEvents []corev1.Event // in the release's namespace
	Events    []corev1.Event // about nodes
}

// Row is a node that is not verified, or fails, or was rebooted since it was verified.
type Row struct {
	Node   string
	Since  time.Time // Zero means that it is unknown.
	State  fleet.State
	Reason string
	Next   string
}

// Fleet is the state of all nodes.
type Fleet struct {
	Nodes int
	Count map[fleet.State]int
	Rows  []Row // by name
}

// Of returns the state of the fleet at now.
func Of(in Input, now time.Time) Fleet {
	podEvents := make(map[types.UID][]corev1.Event)
	for _, pod := range in.Pods {
		podEvents[pod.UID] = []corev1.Event{} // read, and none found
	}
	for _, event := range in.PodEvents {
		uid := event.InvolvedObject.UID
		podEvents[uid] = append(podEvents[uid], event)
	}
	unsynced := clock.At(now, time.Time{}) // this is not the API server's clock
	plan := in.Settings.Decide(fleet.Objects{Nodes: in.Nodes, Pods: in.Pods, Events: podEvents}, unsynced)
	last := lastEvents(in.Events)
	found := Fleet{Nodes: len(in.Nodes), Count: make(map[fleet.State]int)}
	selected := 0
	add := func(row Row) {
		selected++
		found.Count[row.State]++
		if row.Reason != "" || !slices.Contains([]fleet.State{fleet.Verified, Excluded, NotGated}, row.State) {
			found.Rows = append(found.Rows, row)
		}
	}
	for _, status := range plan.Statuses {
		if !in.Settings.IsStranded(status.Node) && !in.Settings.IsExcluded(status.Node) {
			add(in.row(status, last[status.Node.Name]))
		}
	}
	for _, node := range in.Nodes {
		switch {
		case in.Settings.IsExcluded(&node):
			add(Row{Node: node.Name, State: Excluded})
		case in.Settings.IsStranded(&node):
			key := in.Settings.Keys.TaintKey
			if other, _ := in.RemovedElsewhere(&node, key); other == nil {
				add(Row{Node: node.Name, Since: node.CreationTimestamp.Time, State: fleet.Unverified,
					Reason: "the node rules exclude this node: no agent of the release comes", Next: in.open(&node, key)})
			}
		}
	}
	found.Count[NotSelected] = len(in.Nodes) - selected
	slices.SortFunc(found.Rows, func(a, b Row) int { return strings.Compare(a.Node, b.Node) })
	return found
}

// row returns the row of a node.
func (in Input) row(status fleet.Status, said lastEvent) Row {
	if said.at.Before(status.Node.CreationTimestamp.Time) {
		said = lastEvent{} // about an earlier node of that name
	}
	row := Row{Node: status.Node.Name, State: in.state(status, said)}
	if row.State == fleet.Verified && status.Rebooted && !in.Settings.Rechecks.Enabled() { // its agent does not verify it again
		row.Reason, row.Next = "rebooted since it was verified", in.Command("verify "+row.Node)
	}
	if row.State == fleet.Verified || row.State == NotGated {
		return row
	}
	why := in.explain(status, row.State, said)
	message := verdict.ParseMessage(why.message).Text
	remedy := in.remedy(status, why.reason)
	if why.reason == condition.NoPod.String() {
		message, remedy, _ = strings.Cut(message, ": ") // see verdict.NoPodMessage
	}
	if status.Untouchable != "" {
		message = strings.TrimPrefix(message+"; "+status.Untouchable, "; ")
	}
	row.Since = why.since
	row.Reason = shorten(strings.Trim(why.reason+": "+message, ": "))
	row.Next = in.next(status, row.State, why.reason, remedy)
	return row
}

// state returns the state of a node. What was written about it counts more than what its pod looks like.
func (in Input) state(status fleet.Status, said lastEvent) fleet.State {
	isFalse := in.Settings.Condition(status.Node).Status == corev1.ConditionFalse
	isVerified := status.State == fleet.Verified
	_, labelled := status.Node.Labels[in.Settings.Keys.Label]
	isTainted := slices.ContainsFunc(fleet.Taints(status.Node), in.Settings.Keys.Removes)
	switch {
	case in.Settings.Workers && !labelled && !isTainted && !in.Settings.IsGated(status.Node):
		return NotGated // it never had the startup taint: controller mode leaves it alone
	case isVerified && fleet.HasTaint(status.Node, in.Settings.Keys.FailedTaintKey):
		return Retainted
	case isVerified && isFalse && in.Settings.Rechecks.Enabled():
		return RecheckFails
	case !isVerified && record.IsOpened(status.Node.Annotations[nodepatch.Annotation]) &&
		!fleet.HasTaint(status.Node, in.Settings.Keys.TaintKey):
		return Opened
	case !isVerified && (isFalse && status.Gated || said.fails):
		return fleet.Failed
	}
	return status.State
}

// explanation is why a node is in its state.
type explanation struct {
	since           time.Time // Zero means that it is unknown.
	reason, message string
}

// explain returns what the condition says, else what the last Event says, else what the node and its pod look like.
func (in Input) explain(status fleet.Status, state fleet.State, said lastEvent) explanation {
	node := status.Node
	condition := in.Settings.Condition(node)
	if condition.Status == corev1.ConditionFalse {
		return explanation{condition.LastTransitionTime.Time, condition.Reason, condition.Message}
	}
	if said.fails && status.State != fleet.Verified {
		message := verdict.ParseMessage(said.message)
		return explanation{cmp.Or(message.Since, said.at), message.Reason, said.message}
	}
	seen := explanation{node.CreationTimestamp.Time, status.Reason.String(), status.Message}
	switch {
	case state == Retainted:
		seen.since = time.Time{}
	case state != Opened && status.Pod != nil && node.Annotations[nodepatch.Annotation] != "":
		seen.since = status.Pod.CreationTimestamp.Time // the node is verified again
	}
	if seen.reason == "" && !fleet.IsNodeReady(node) {
		seen.reason, seen.message = nodeNotReady, "kubelet or the CNI does not report the node as ready"
	}
	return seen
}

// nodeNotReady is the reason of a node whose agent may not be able to start yet. No condition has it.
const nodeNotReady = "NodeNotReady"

// next is what a person would try first. remedy is the reason's, "" if it has none.
func (in Input) next(status fleet.Status, state fleet.State, reason, remedy string) string {
	_, labelled := status.Node.Labels[in.Settings.Keys.Label]
	switch {
	case labelled && state == fleet.Unverified:
		return in.Command("verify " + status.Node.Name)
	case state == Retainted:
		return strings.TrimPrefix(remedy+"; ", "; ") + in.open(status.Node, in.Settings.Keys.FailedTaintKey)
	case remedy != "":
		return remedy
	case state != fleet.InProgress && reason != "":
		return "kubectl describe node " + status.Node.Name
	case status.Pod == nil:
		return "wait for its pod"
	}
	return "wait; its log: " + in.logs(status.Pod)
}

// open returns how to remove the taint with this key, unless that is left to another release.
func (in Input) open(node *corev1.Node, key string) string {
	switch other, unseen := in.RemovedElsewhere(node, key); {
	case other != nil:
		return "left to the release " + other.Name + ": kubectl node-ready " + other.Flags()
	case unseen != nil:
		return "another release may remove the taint: " + strings.ReplaceAll(unseen.Error(), "\n", "; ")
	}
	return "to remove the taint now: " + in.Command("open "+node.Name)
}

func (in Input) logs(pod *corev1.Pod) string {
	return "kubectl -n " + in.Namespace + " logs " + pod.Name
}

// remedy returns what to try first about a reason, "" if nothing is known. It is not beside the reasons in verdict, because the
// agent's program needs none of these texts.
func (in Input) remedy(status fleet.Status, reasons string) string {
	first := condition.Parse(reasons).First()
	switch {
	case reasons == nodeNotReady:
		return "check kubelet and the CNI on the node"
	case first == condition.CrashLoop && status.Pod == nil:
		return "find its pod: kubectl -n " + in.Namespace + " get pods --field-selector spec.nodeName=" + status.Node.Name
	case first == condition.CrashLoop:
		return "read its log: " + in.logs(status.Pod) + " --previous"
	case first == condition.Silent && status.Pod != nil:
		return "check kubelet and the CNI on the node; if the pod runs: " + in.logs(status.Pod)
	}
	return map[condition.Reasons]string{
		condition.Unschedulable:  "check priorityClassName and the node's size",
		condition.ImagePull:      "check the image's name, its pull secret and the path to the registry",
		condition.SandboxFailed:  "check the CNI on the node",
		condition.Silent:         "check kubelet and the CNI on the node",
		condition.DNSFailed:      "check the DNS pods and config.dnsTestDomains: " + in.Command("doctor"),
		condition.APIFailed:      "check the agent's rights, kube-proxy and the MTU",
		condition.NetworkFailed:  "check kube-proxy, the CNI and config.networkTargets",
		condition.ServiceFailed:  "check the DNS pods, and the CNI's routes between nodes",
		condition.PeersFailed:    "check the CNI's routes between nodes",
		condition.NodeFailed:     "check what config.require names: it must run on this node",
		condition.TaintsOfOthers: "find out who should remove that taint",
	}[first]
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
	for _, counted := range []struct {
		state fleet.State
		name  string
	}{
		{fleet.Verified, "verified"}, {RecheckFails, "failing rechecks"}, {Retainted, "re-tainted"}, {fleet.Unverified, "unverified"},
		{fleet.Pending, "pending"}, {fleet.InProgress, "in progress"}, {fleet.Failed, "failed"}, {Opened, "opened"},
		{Excluded, "excluded"}, {NotGated, "not gated"}, {NotSelected, "not selected"},
	} {
		if n := f.Count[counted.state]; n > 0 || counted.state == fleet.Verified {
			parts = append(parts, fmt.Sprintf("%d %s", n, counted.name))
		}
	}
	noun := "nodes"
	if f.Nodes == 1 {
		noun = "node"
	}
	return fmt.Sprintf("%d %s: %s", f.Nodes, noun, strings.Join(parts, ", "))
}

// Print writes the summary, and a table of the rows.
func (f Fleet) Print(out io.Writer, now time.Time) error {
	if _, err := fmt.Fprintln(out, f.Summary()); err != nil || len(f.Rows) == 0 {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "NODE\tSINCE\tSTATE\tREASON\tNEXT STEP")
	for _, row := range f.Rows {
		since := "?"
		if !row.Since.IsZero() {
			since = duration.HumanDuration(now.Sub(row.Since))
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", row.Node, since, row.State, cmp.Or(row.Reason, "-"), row.Next)
	}
	return table.Flush()
}

// lastEvent is the newest Event that reports the result of a node's verification.
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
