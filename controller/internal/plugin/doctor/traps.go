package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// Trap is one of the things that can lock a cluster.
type Trap struct {
	Name string
	Find func(Cluster) Result
	// ofRelease means that it is about a release's own objects, not about the chart's defaults.
	ofRelease bool
}

// Traps returns all of them, in the order of docs/controller.md.
func Traps() []Trap {
	return []Trap{
		{Name: settingsName, Find: settings},
		{Name: "no-release", Find: noRelease},
		{Name: "dns-behind-gate", Find: dnsBehindGate},
		{Name: "external-names", Find: externalNames},
		{Name: "cluster-domain", Find: clusterDomain},
		{Name: "karpenter", Find: karpenter},
		{Name: "cluster-autoscaler", Find: clusterAutoscaler},
		{Name: "foreign-taints", Find: foreignTaints},
		{Name: "left-startup-taints", Find: leftStartupTaints},
		{Name: "requirements", Find: requirements},
		{Name: "readiness-rules", Find: readinessRules},
		{Name: "labelled-and-tainted", Find: labelledAndTainted},
		{Name: "excluded-and-tainted", Find: excludedAndTainted},
		{Name: "failed-taint", Find: failedTaint, ofRelease: true},
		{Name: "webhooks", Find: webhooks},
		{Name: "policy", Find: policy, ofRelease: true},
		{Name: "room", Find: room},
	}
}

const settingsName = "settings"

// settings: no pod of the release starts with invalid ones.
func settings(c Cluster) (r Result) {
	if c.Release.Invalid != nil {
		r.find(c.Release.Remedy(), "%s", strings.ReplaceAll(c.Release.Invalid.Error(), "\n", "; "))
	}
	if c.Release.NotInstalled && c.Release.Planned == nil {
		return Result{Detail: "the chart's defaults"}
	}
	r.Detail = "the settings in the ConfigMap " + c.Release.Namespace + "/" + c.Release.Fullname + " are valid"
	return r
}

// noRelease: without one nobody removes the taints, and the plugin's other commands refuse.
func noRelease(c Cluster) (r Result) {
	switch {
	case !c.Release.NotInstalled:
		return Result{Detail: "the release is " + c.Release.Name + " in the namespace " + c.Release.Namespace}
	case c.Nodes.Err != nil:
		return unchecked(c.Nodes.Err)
	}
	for _, key := range []string{c.Release.Agent.TaintKey, c.Release.Agent.FailedTaintKey} {
		for _, node := range c.Nodes.Value {
			if fleet.HasTaint(&node, key) {
				r.find("install it; or, to let workloads onto every node, verified or not: kubectl taint nodes --all "+key+"-",
					"the node %s has the taint %s: nothing removes the taint until kube-node-ready is installed", node.Name, key)
			}
		}
	}
	r.Detail = "no node has the startup taint or the failed taint"
	return r
}

// Finding is a trap that is set, and what to do about it.
type Finding struct{ Text, Remedy string }

// Result is what a trap's function has found. Without findings and Unchecked the trap is not set.
type Result struct {
	Findings []Finding
	Warnings []Finding // traps that would be set once more nodes join with the startup taint
	Notes    []string  // what is no trap, and good to know
	Detail   string    // what was looked at, where nothing was found
	// Unchecked is why the trap, or a part of it, could not be looked for.
	Unchecked error
}

// unchecked says why a trap was not looked for, each reason once.
func unchecked(errs ...error) Result {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	return Result{Unchecked: errors.Join(slices.CompactFunc(errs, func(a, b error) bool { return a.Error() == b.Error() })...)}
}

func (r *Result) find(remedy, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{fmt.Sprintf(format, args...), remedy})
}

func (r *Result) warn(remedy, format string, args ...any) {
	r.Warnings = append(r.Warnings, Finding{fmt.Sprintf(format, args...), remedy})
}

func (r *Result) skip(format string, args ...any) {
	r.Unchecked = errors.Join(r.Unchecked, fmt.Errorf(format, args...))
}

func (r *Result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// joinsGated reports whether a node like this one joins with the startup taint: this one did, or somebody adds it to such nodes.
func (c Cluster) joinsGated(node *corev1.Node) bool {
	declares := func(pool NodePool) bool {
		return pool.Name == node.Labels[nodePoolLabel] &&
			hasKey(slices.Concat(pool.Taints, pool.StartupTaints), c.Release.Agent.TaintKey)
	}
	_, ofKarpenter := node.Labels[nodePoolLabel]
	adds := c.GateAll || c.Adds.Value && !ofKarpenter // the chart's policy leaves Karpenter's nodes alone
	return c.joinedGated(node) || slices.ContainsFunc(c.NodePools.Value, declares) || adds && c.canBeGated(node)
}

// joinedGated reports whether node has the startup taint, or had it before it was released.
func (c Cluster) joinedGated(node *corev1.Node) bool {
	key := c.Release.Agent.TaintKey
	record, _ := verdict.ParseRecord(node.Annotations[c.Release.Settings.Request.Annotation])
	isStartup := func(text string) bool { return keyOf(text) == key }
	return fleet.HasTaint(node, key) || slices.ContainsFunc(record.Removed, isStartup)
}

// canBeGated reports whether the release is for nodes like this one: the node rules select it, and it has not joined with a
// verified label. Only a release adds that label's own value later.
func (c Cluster) canBeGated(node *corev1.Node) bool {
	request := c.Release.Settings.Request
	value, labelled := node.Labels[request.Label]
	return c.Release.Settings.Rules.Select(node) && (!labelled || value == request.LabelValue)
}

// repels reports whether one of the taints keeps a pod away.
func repels(pod *corev1.Pod, taints ...corev1.Taint) bool {
	return fleet.Untolerated(taints, pod.Spec.Tolerations) != nil
}

// gate says whether pods can run while every gated node is new.
type gate struct {
	missing []string // keys of the taints that keep the pods away, none if one of the pods tolerates all
	behind  bool     // none can run: no node that joins without the startup taint could run one
	blocks  bool     // none could, if all nodes joined with it that the release is for
	err     error    // why it is unknown which nodes join without it, where a pod needs one
}

func (c Cluster) gateOf(pods []corev1.Pod) (g gate) {
	agent, keys := c.Release.Agent, c.Release.TaintKeys()
	var taints []corev1.Taint
	for _, key := range keys {
		taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
		if key == agent.TaintKey {
			taint.Value, taint.Effect = agent.TaintValue, corev1.TaintEffect(agent.TaintEffect)
		}
		if !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return !repels(&pod, taint) }) {
			g.missing = append(g.missing, key)
		}
		taints = append(taints, taint)
	}
	if slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return !repels(&pod, taints...) }) {
		return gate{}
	}
	if len(g.missing) == 0 {
		g.missing = keys // each is tolerated by some pod, all of them by none
	}
	g.behind, g.blocks = true, true
	for _, node := range c.Nodes.Value {
		canRunHere := func(pod corev1.Pod) bool { return canRun(&pod, &node) }
		if !c.joinsGated(&node) && slices.ContainsFunc(pods, canRunHere) {
			g.behind, g.blocks = false, g.blocks && c.canBeGated(&node)
		}
	}
	if !g.behind {
		g.err = unchecked(c.Adds.Err, c.NodePools.Err).Unchecked
	}
	return g
}

// canRun reports whether node could run pod: it is ready, and has the labels and no taints that keep the pod away.
func canRun(pod *corev1.Pod, node *corev1.Node) bool {
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && matches && fleet.IsNodeReady(node) && !repels(pod, node.Spec.Taints...) && !node.Spec.Unschedulable
}

// hasAgent reports whether an agent or a worker is on the node, or starts there.
func (c Cluster) hasAgent(node *corev1.Node) bool {
	return slices.ContainsFunc(c.Agents.Value, func(pod corev1.Pod) bool {
		return fleet.NodeOf(&pod) == node.Name && pod.DeletionTimestamp == nil && !fleet.HasEnded(&pod)
	})
}
