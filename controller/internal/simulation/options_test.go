//go:build !race

package simulation

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startupTaint  = "node-ready/unverified"
	failedTaint   = "node-ready/failed"
	label         = "node-ready/verified"
	agentName     = "kube-node-ready"
	conditionType = "NodeVerified"
	cniTaint      = "cni.example.com/agent-not-ready"
	gpu           = "example.com/gpu"
	evictTaint    = "example.com/evict" // NoExecute, which agents may not tolerate
	noAgentFor    = 10 * time.Minute

	failureThreshold, recoveryThreshold = 3, 3
)

// options are what the operator has decided, and how large the world is.
type options struct {
	workers, controller, retaint, remediates, deleteNodes, reboots bool
	recheck, initial, check, linger, late                          time.Duration
	onTimeout, condition, waitFor, require                         string
	maxWorkers, replicas, nodes, pools, releases                   int
	stage, also                                                    string // what nearly everything is about, and one scene that is rare
	inFleet, long                                                  bool   // the controllers run on nodes of the fleet; the world lasts for hours
	coolDown, failedFor                                            time.Duration
	alone                                                          bool    // single nodes fail for long, and little else happens
	evicts                                                         bool    // agents do not tolerate each taint with NoExecute
	bad, triggers                                                  float64 // shares: of the machines that never work, of the writes at which something happens
}

// newOptions draws them. The lock is held, or nothing runs yet.
func (w *world) newOptions() options {
	o := options{nodes: oneOf(w, 1, 2, 3, 9, 10, 11, 11, 20, 40), pools: oneOf(w, 1, 1, 2, 4, 12), replicas: oneOf(w, 1, 2, 2),
		initial: oneOf(w, time.Minute, 2*time.Minute, 5*time.Minute), check: oneOf(w, 3*time.Second, 3*time.Second, 3*time.Second, time.Minute),
		linger: oneOf(w, 0, 0, 15*time.Second), late: time.Minute, coolDown: 10 * time.Minute, failedFor: 2 * time.Minute, maxWorkers: oneOf(w, 2, 2, 50), onTimeout: "keep", condition: "auto", triggers: oneOf(w, 0, 0.02, 0.1)}
	o.controller = w.chance(0.8)
	o.workers = o.controller && w.chance(0.35)
	if !o.workers {
		o.onTimeout = oneOf(w, "keep", "taint", "condition", "taint,condition")
		o.condition = oneOf(w, "auto", "auto", "always")
		o.recheck = oneOf(w, 0, 0, time.Minute, time.Minute, 10*time.Minute)
	}
	if o.alone = w.chance(0.3); o.alone {
		o.controller, o.workers, o.recheck, o.check, o.triggers, o.nodes = true, false, time.Minute, 3*time.Second, 0, oneOf(w, 3, 10, 11, 20)
	}
	o.retaint = o.controller && o.recheck > 0 && (o.alone || w.chance(0.85))
	o.remediates = o.controller && w.chance(0.5)
	o.deleteNodes = o.remediates && w.chance(0.5)
	if o.remediates {
		o.bad = oneOf(w, 0, 0.05, 0.1, 0.25)
	}
	o.reboots = o.controller && o.recheck == 0 && w.chance(0.6)
	if w.chance(0.5) {
		o.waitFor = "cni.example.com/"
	}
	if w.chance(0.4) {
		o.require = `[{"allocatable":"` + gpu + `>=8"}]`
	}
	// Of a stream of its own: every other world stays as it was.
	if w.openings.Float64() < 0.25 && !o.workers && o.condition == "auto" {
		o.onTimeout = map[bool]string{true: "open,condition", false: "open"}[strings.Contains(o.onTimeout, "condition")]
	}
	if w.hasStages {
		o.drawStage(w.seed)
		o.drawMore(w.seed)
	}
	if !o.workers && o.controller || o.recheck > 0 || o.condition == "always" { // as the chart does
		o.onTimeout = strings.TrimPrefix(strings.Replace(o.onTimeout, "condition", "", 1)+",condition", "keep")
		o.onTimeout = strings.TrimPrefix(strings.ReplaceAll(o.onTimeout, ",,", ","), ",")
	}
	return o
}

// opens reports whether agents remove the startup taint of nodes that are not verified in time.
func (o options) opens() bool { return strings.HasPrefix(o.onTimeout, "open") }

func (o options) String() string {
	type plain options
	return fmt.Sprintf("%+v", plain(o))
}

// replacesUnmet reports whether a node is replaced that lacks a requirement and nothing else.
func (o options) replacesUnmet() bool { return o.remediates && o.require != "" && o.nodes%2 == 0 }

// mostRequests is how many requests a controller may send in a minute. Of a few hundred worlds with up to 40 nodes the busiest
// minutes had 79, a fifth of them for the Lease, and in controller mode 267, when the workers of 40 nodes failed and were replaced. A loop
// without a pause sends thousands.
func (o options) mostRequests() int {
	if o.workers {
		return 600
	}
	return 200
}

// env returns the settings as the chart's ConfigMap has them.
func (o options) env() map[string]string {
	mode := config.ModeDaemonSet
	if o.workers {
		mode = config.ModeController
	}
	env := map[string]string{"DEPLOYMENT_MODE": mode, "INITIAL_TIMEOUT": o.initial.String(), "CHECK_TIMEOUT": o.check.String(), "METRICS_LINGER": o.linger.String(),
		"LATE_TAINT_WINDOW": o.late.String(), "ON_TIMEOUT": o.onTimeout, "CONDITION": o.condition, "WAIT_FOR_TAINTS": o.waitFor, "REQUIRE": o.require,
		"MAX_CONCURRENT_WORKERS": fmt.Sprint(o.maxWorkers), "VERIFY_AFTER_REBOOT": fmt.Sprint(o.reboots), "RETAINT": fmt.Sprint(o.retaint),
		"DELETE_NODES": fmt.Sprint(o.deleteNodes), "REMEDIATION_MODE": "off", "DELETE_AFTER": deleteAfter.String(), "FAILED_FOR": o.failedFor.String(), "CONTROL_GROUP_FOR": "1m",
		"RETAINT_CONTROL_GROUP_FOR": "1m", "RETAINT_COOL_DOWN": o.coolDown.String(), "RETAINT_NO_AGENT_FOR": noAgentFor.String(), "DNS_SERVICE": "kube-system/kube-dns"}
	if o.remediates {
		env["REMEDIATION_MODE"] = "delete"
	}
	// Without a draw of its own: each seed keeps its story.
	env["UNMET_REQUIREMENTS"] = fmt.Sprint(o.replacesUnmet())
	if o.recheck > 0 {
		env["RECHECK_INTERVAL"] = o.recheck.String()
	}
	return env
}

// template is what the chart renders for a release.
func (o options) template(of release) *corev1.PodTemplateSpec {
	template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/name": agentName,
		"app.kubernetes.io/instance": of.agentName(), component: "agent"}}}
	rule := corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpDoesNotExist}
	if o.recheck > 0 {
		rule.Operator, rule.Values = corev1.NodeSelectorOpNotIn, []string{"preexisting"}
	}
	os := corev1.NodeSelectorRequirement{Key: "kubernetes.io/os", Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}
	rules := []corev1.NodeSelectorRequirement{os, rule}
	if o.workers {
		template.Labels[component], rules = "worker", rules[:1]
	}
	if o.releases == 2 {
		rules = append(rules, of.selects())
	}
	tolerations := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	if o.evicts { // of NoExecute they tolerate what comes with a node that starts or is not ready
		tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
		for _, key := range []string{unregistered, corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
			tolerations = append(tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
		}
	}
	template.Spec = corev1.PodSpec{Tolerations: tolerations, Containers: []corev1.Container{{Name: template.Labels[component]}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: rules}}}}}}
	return template
}

func (o options) keys() nodepatch.Keys {
	k := nodepatch.Keys{TaintKey: startupTaint, FailedTaintKey: failedTaint, Label: label, LabelValue: "true"}
	if o.waitFor != "" {
		k.WaitFor = []string{o.waitFor}
	}
	return k
}
