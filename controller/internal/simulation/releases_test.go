//go:build !race

package simulation

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// release is one of the Helm releases of a world: see hack/examples/pools. The zero value is the first one, which most worlds have
// alone. The second one has keys and objects of its own, and selects every other pool.
type release int

const secondRelease release = 1

const ruleReleases = "10: a release leaves the nodes of another release alone"

// poolKey is the label that decides which release selects a node.
const poolKey = "example.com/pool"

// drawMore adds a second release to some worlds, and one more scene to some stages. It draws from a stream of its own: the other
// worlds stay as they were.
func (o *options) drawMore(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 4))
	hasSecond, hasScene := r.Float64() < 0.3, r.Float64() < 0.3
	switch {
	case !hasScene:
	case o.stage == "" && !o.workers && o.triggers > 0:
		o.also = lateTaints
	case o.stage == stageRetaint && o.retaint:
		o.also = []string{"gated-behind", "opened-before", "few-peers", "drained", "kept-away"}[r.IntN(5)]
	case o.stage == stageRemediation && o.workers && !o.long:
		o.also = []string{"open-failing", longTimeout}[r.IntN(2)]
	case o.stage == stageRemediation && !o.long:
		o.also = []string{newLeaders, ownSandboxes, "cordon-failing"}[r.IntN(3)]
		if o.recheck > 0 && r.IntN(2) == 0 {
			o.also = "label-failing"
		}
	}
	switch o.also {
	case "drained": // enough nodes for two with the failed taint
		o.nodes, o.pools = 20, 1
	case "kept-away":
		o.evicts, o.nodes = true, 11
	case newLeaders: // a leader must watch longer for an agent that does not start than for a failure that the condition shows
		o.bad, o.failedFor, o.pools, o.nodes = 0.3, 2*time.Minute, 1, 10
	case ownSandboxes:
		o.failedFor = 2 * time.Minute
	case longTimeout: // nodes are old enough before they have failed, and may be replaced for what they lack
		o.initial, o.failedFor, o.nodes = 10*time.Minute, time.Minute, 10
	}
	if hasSecond && o.pools > 1 && o.nodes > 2 && !o.long {
		o.releases = 2
	}
}

// Rare scenes that are about all machines: the platform adds each startup taint late; machines lack what REQUIRE demands, and
// INITIAL_TIMEOUT is long; leaders change while agents do not start; only the sandboxes of first agents are broken.
const lateTaints, longTimeout, newLeaders, ownSandboxes = "late-taints", "long-timeout", "new-leaders", "own-sandboxes"

// releases returns all releases of a world.
func (w *world) releases() []release { return []release{0, secondRelease}[:max(1, w.options.releases)] }

// agentName is the name of the release's DaemonSet, and the beginning of the names of its controller's objects.
func (r release) agentName() string {
	if r == secondRelease {
		return "gpu-" + agentName
	}
	return agentName
}

// settings are those that differ between releases.
func (r release) settings() map[string]string {
	if r == secondRelease {
		return map[string]string{"AGENT_NAME": r.agentName(), "TAINT_KEY": otherStartupTaint, "FAILED_TAINT_KEY": "node-ready/gpu-failed", "CONDITION_TYPE": otherCondition}
	}
	return nil
}

// selects returns the rule that keeps a release to its own pools.
func (r release) selects() corev1.NodeSelectorRequirement {
	rule := corev1.NodeSelectorRequirement{Key: poolKey, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"gpu"}}
	if r == secondRelease {
		rule.Operator = corev1.NodeSelectorOpIn
	}
	return rule
}

// releaseOf returns the release that selects a node.
func releaseOf(node *corev1.Node) release {
	if node.Labels[poolKey] == "gpu" {
		return secondRelease
	}
	return 0
}

// releaseOfPod returns the release that a pod belongs to.
func releaseOfPod(pod *corev1.Pod) release {
	if pod.Labels["app.kubernetes.io/instance"] == secondRelease.agentName() {
		return secondRelease
	}
	return 0
}

const (
	otherStartupTaint = "node-ready/gpu-unverified"
	otherCondition    = "GPUNodeVerified"
)

// exchanged swaps the keys of the two releases. Swapping twice restores the text.
var exchanged = strings.NewReplacer("gpu-"+agentName, agentName, agentName, "gpu-"+agentName, otherStartupTaint, startupTaint, startupTaint, otherStartupTaint,
	"node-ready/gpu-failed", failedTaint, failedTaint, "node-ready/gpu-failed", otherCondition, conditionType, conditionType, otherCondition)

// translated is how the rules and the players see a Node, and how they write it. They know the keys of the first release only: on a
// node of the second one they see its own keys as these, and those of the first release as foreign.
func translated(body []byte) []byte {
	if !bytes.Contains(body, []byte(`"`+poolKey+`":"gpu"`)) {
		return body
	}
	return []byte(exchanged.Replace(string(body)))
}

// leaveBehind gives a new node the startup taint and a condition of the other release, as one that was moved between pools has them.
func leaveBehind(node *corev1.Node) {
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: otherStartupTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: otherCondition, Status: corev1.ConditionFalse, Reason: "NoPod"})
}

// crosses checks that a write of ours to a node, or the creation of a pod for it, comes from the release that selects the node.
func (j *judge) crosses(q request, node *corev1.Node) {
	if node != nil && q.from.release != releaseOf(node) {
		j.w.fail(node.Name, ruleReleases, "%s of the release %s has sent %s %s", q.from.name, q.from.release.agentName(), q, q.sent)
	}
}

// decodeNode returns a Node as the rules see it, or nil.
func decodeNode(body []byte) *corev1.Node {
	if body == nil {
		return nil
	}
	node := new(corev1.Node)
	_ = json.Unmarshal(translated(body), node)
	return node
}
