// Package status says which nodes are not verified, since when, why, and what to try next. It is a function of objects.
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
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// States beside those of the fleet: of nodes that were verified, and of nodes that nobody is to verify.
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
	Settings  fleet.Settings
	Namespace string // of the release
	Nodes     []corev1.Node
	Pods      []corev1.Pod   // of the agents, or the workers
	PodEvents []corev1.Event // in the release's namespace
	Events    []corev1.Event // about nodes
}

// Row is a node that is not verified, or fails, or was rebooted since it was verified.
type Row struct {
	Node   string
	Since  time.Time // zero: nobody says
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
	found := Fleet{Nodes: len(in.Nodes), Count: map[fleet.State]int{NotSelected: len(in.Nodes)}}
	add := func(row Row) {
		found.Count[NotSelected]--
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
			add(Row{Node: node.Name, Since: node.CreationTimestamp.Time, State: fleet.Unverified,
				Reason: "the node rules exclude this node: no agent comes", Next: "kubectl node-ready open " + node.Name})
		}
	}
	slices.SortFunc(found.Rows, func(a, b Row) int { return strings.Compare(a.Node, b.Node) })
	return found
}

// staysAsItIs reports whether controller mode leaves a node alone that has no taint of ours: it never had the startup taint.
func (in Input) staysAsItIs(node *corev1.Node) bool {
	_, labelled := node.Labels[in.Settings.Request.Label]
	return !labelled && in.Settings.Workers && !in.Settings.IsGated(node) &&
		!slices.ContainsFunc(fleet.Taints(node), in.Settings.Request.Removes)
}

// row says what the objects tell about a node. What was written about it counts more than what its pod looks like.
func (in Input) row(status fleet.Status, said lastEvent) Row {
	node := status.Node
	if in.staysAsItIs(node) {
		return Row{Node: node.Name, State: NotGated}
	}
	if said.at.Before(node.CreationTimestamp.Time) {
		said = lastEvent{} // about an earlier node of that name
	}
	row := Row{Node: node.Name, State: status.State, Since: node.CreationTimestamp.Time}
	condition := in.Settings.Condition(node)
	isFalse := condition.Status == corev1.ConditionFalse
	reason, message := string(status.Reason), status.Message
	switch {
	case status.State == fleet.Verified && fleet.HasTaint(node, in.Settings.Request.FailedTaintKey):
		row.State, row.Since = Retainted, time.Time{}
	case status.State == fleet.Verified && isFalse && in.Settings.Rechecks.Enabled():
		row.State = RecheckFails
	case status.State == fleet.Verified:
		if status.Rebooted && !in.Settings.Rechecks.Enabled() { // else its agent proves it again by itself
			row.Reason, row.Next, row.Since = "rebooted since it was verified", "kubectl node-ready verify "+row.Node, time.Time{}
		}
		return row
	case verdict.IsOpened(node.Annotations[in.Settings.Request.Annotation]) && !fleet.HasTaint(node, in.Settings.Request.TaintKey):
		row.State = Opened
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
	case reason == "" && !fleet.IsNodeReady(node):
		reason, message = "NodeNotReady", "kubelet or the CNI does not report the node as ready"
	}
	_, message = parse(message)
	row.Next = in.next(row, status, reason)
	if last := strings.LastIndex(message, ": "); reason == verdict.NoPod && last >= 0 {
		message, row.Next = message[:last], cmp.Or(row.Next, message[last+2:]) // the message ends with the remedy
	}
	if status.Untouchable != "" {
		message = strings.TrimPrefix(message+"; "+status.Untouchable, "; ")
	}
	row.Reason = shorten(strings.Trim(reason+": "+message, ": "))
	return row
}

// next is what a person would try first, "" if the message says it.
func (in Input) next(row Row, status fleet.Status, reason string) string {
	if _, labelled := status.Node.Labels[in.Settings.Request.Label]; labelled && row.State == fleet.Unverified {
		return "kubectl node-ready verify " + row.Node
	}
	first, _, _ := strings.Cut(reason, ",")
	find := "kubectl -n " + in.Namespace + " get pods --field-selector spec.nodeName=" + row.Node
	wait, crashed, silent := "wait for its pod", "find its pod: "+find, ""
	if status.Pod != nil {
		logs := "kubectl -n " + in.Namespace + " logs " + status.Pod.Name
		wait, crashed, silent = "wait; its log: "+logs, "read its log: "+logs+" --previous", "; if the pod runs: "+logs
	}
	next, known := map[string]string{
		verdict.NoPod:          "",
		verdict.Unschedulable:  "check priorityClassName and the node's size",
		verdict.ImagePull:      "check the image's name, its pull secret and the path to the registry",
		verdict.SandboxFailed:  "check the CNI on the node",
		verdict.CrashLoop:      crashed,
		verdict.Silent:         "check kubelet and the CNI on the node" + silent,
		verdict.DNSFailed:      "check the DNS pods and config.dnsTestDomains: kubectl node-ready doctor",
		verdict.APIFailed:      "check the agent's rights, kube-proxy and the MTU",
		verdict.NetworkFailed:  "check kube-proxy, the CNI and config.networkTargets",
		verdict.ServiceFailed:  "check the DNS pods, and the CNI's routes between nodes",
		verdict.PeersFailed:    "check the CNI's routes between nodes",
		verdict.NodeFailed:     "check what config.require names: it must run on this node",
		verdict.TaintsOfOthers: "find out who should remove that taint",
		"NodeNotReady":         "check kubelet and the CNI on the node",
	}[first]
	switch {
	case row.State == Retainted:
		return strings.TrimPrefix(next+"; ", "; ") + "to remove the taint now: kubectl node-ready open " + row.Node
	case known:
		return next
	case row.State == fleet.InProgress || reason == "":
		return wait
	default:
		return "kubectl describe node " + row.Node
	}
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
		fleet.Verified, RecheckFails, Retainted, fleet.Unverified, fleet.Pending, fleet.InProgress, fleet.Failed, Opened,
		Excluded, NotGated, NotSelected} {
		name := map[fleet.State]string{fleet.InProgress: "in progress", RecheckFails: "failing rechecks",
			Retainted: "re-tainted", NotGated: "not gated", NotSelected: "not selected"}[state]
		if n := f.Count[state]; n > 0 || state == fleet.Verified {
			parts = append(parts, fmt.Sprintf("%d %s", n, cmp.Or(name, strings.ToLower(string(state)))))
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
