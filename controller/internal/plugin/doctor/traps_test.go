package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startup = "node-ready/unverified"
	failed  = "node-ready/failed"
	label   = "node-ready/verified"
)

func taint(key string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Value: "true", Effect: effect}
}

func tolerate(keys ...string) (list []corev1.Toleration) {
	for _, key := range keys {
		list = append(list, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return list
}

func readyNode(name string, taints ...corev1.Taint) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}, Annotations: map[string]string{}},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

// releasedNode joined with the startup taint, and is verified.
func releasedNode(name string) corev1.Node {
	node := readyNode(name)
	node.Labels[label] = "true"
	node.Annotations[nodepatch.Annotation] = `{"time":"2026-01-02T03:00:00Z","duration":"1s","removed":["node-ready/unverified=true:NoSchedule"],"version":"1"}`
	return node
}

func podOn(node string, tolerations ...corev1.Toleration) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-" + node, Namespace: "kube-system"},
		Spec: corev1.PodSpec{NodeName: node, Tolerations: tolerations}}
}

// readyPodOn is a pod that kubelet calls ready.
func readyPodOn(node string, tolerations ...corev1.Toleration) corev1.Pod {
	pod := podOn(node, tolerations...)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return pod
}

// addFargate adds a node of Fargate: its taint keeps the pod away that another scheduler has placed there, and the chart excludes it.
func addFargate(c *Cluster) {
	c.Release.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "eks.amazonaws.com/compute-type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"fargate"}}}}}}}}
	c.Release.Settings.Rules = fleet.NewRules(c.Release.Template, c.Release.Settings.Keys)
	node := readyNode("fargate", corev1.Taint{Key: "eks.amazonaws.com/compute-type", Value: "fargate", Effect: corev1.TaintEffectNoSchedule})
	node.Labels["eks.amazonaws.com/compute-type"] = "fargate"
	c.Nodes.Value = append(c.Nodes.Value, node)
}

func deployment(name string, tolerations ...corev1.Toleration) (d appsv1.Deployment) {
	d.Namespace, d.Name, d.Spec.Template.Spec.Tolerations = "kube-system", name, tolerations
	return d
}

func webhook(name, service string, pods ...corev1.Pod) Webhook {
	return Webhook{Configuration: name, Backend: Part[Backend]{Value: Backend{Pods: pods}}, Webhook: admissionv1.ValidatingWebhook{Name: name + ".example.com",
		ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "system", Name: service}},
		Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}},
	}}
}

func nodePool(name string, taints, startupTaints []corev1.Taint) (pool NodePool) {
	pool.Name, pool.Spec.Template.Spec.Taints, pool.Spec.Template.Spec.StartupTaints = name, taints, startupTaints
	return pool
}

// clean returns a cluster in which no trap is set: a released node, one that is being verified, and DNS that tolerates the taint.
func clean(t *testing.T, change ...func(*config.Config)) *Cluster {
	cfg, err := config.Parse([]string{"--dry-run"}, func(string) (string, bool) { return "", false }, nil)
	require.NoError(t, err)
	for _, f := range change {
		f(&cfg)
	}
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/name": "kube-node-ready"}},
		Spec: corev1.PodSpec{Tolerations: append(tolerate(startup, failed),
			corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})},
	}
	keys := nodepatch.Keys{TaintKey: cfg.TaintKey, FailedTaintKey: cfg.FailedTaintKey, Label: cfg.VerifiedLabel,
		LabelValue: cfg.VerifiedLabelValue}
	keys.WaitFor = cfg.WaitForTaints
	c := &Cluster{Release: installation.Release{
		Name: "kube-node-ready", Namespace: "kube-system", Fullname: "kube-node-ready", Known: installation.Everything, Agent: cfg, Template: template,
		Settings: fleet.Settings{Rules: fleet.NewRules(template, keys), Keys: keys, ConditionType: cfg.ConditionType},
	}}
	c.Nodes.Value = []corev1.Node{releasedNode("old"), readyNode("new", taint(startup, corev1.TaintEffectNoSchedule))}
	c.Agents.Value = []corev1.Pod{podOn("new")}
	c.DNS.Value = Backend{Pods: []corev1.Pod{podOn("old", tolerate(startup, failed)...)}}
	c.Corefile.Value = ".:53 {\n  errors\n  kubernetes cluster.local in-addr.arpa {\n    pods insecure\n  }\n  forward . /etc/resolv.conf\n}\n"
	c.NodePools.Value = []NodePool{nodePool("gated", nil, []corev1.Taint{taint(startup, corev1.TaintEffectNoSchedule)})}
	c.AutoscalerStatus.Absent = true
	c.Namespace.Value = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", Labels: map[string]string{"kubernetes.io/metadata.name": "kube-system"}}}
	c.Webhooks.Value = []Webhook{webhook("tolerating", "hook", podOn("old", tolerate(startup, failed)...))}
	addPolicies(c, "kube-node-ready", "kube-node-ready-events")
	return c
}

func addPolicies(c *Cluster, names ...string) {
	labels := map[string]string{"app.kubernetes.io/part-of": "kube-node-ready", "app.kubernetes.io/instance": "kube-node-ready"}
	for _, name := range names {
		meta := metav1.ObjectMeta{Name: name, Labels: labels}
		c.Policies.Value = append(c.Policies.Value, admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta})
		c.Bindings.Value = append(c.Bindings.Value, admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}})
	}
}

func autoscaler(args ...string) []appsv1.Deployment {
	var d appsv1.Deployment
	d.Namespace, d.Name = "kube-system", "autoscaler"
	d.Spec.Template.Spec.Containers = []corev1.Container{{Image: "registry.k8s.io/autoscaling/cluster-autoscaler:v1.34.0",
		Command: append([]string{"./cluster-autoscaler"}, args...)}}
	return []appsv1.Deployment{d}
}

// corefile sets the Corefile of CoreDNS.
func corefile(text string) func(*Cluster) { return func(c *Cluster) { c.Corefile.Value = text } }

// requires sets config.require.
func requires(entries string) func(*config.Config) {
	return func(cfg *config.Config) { _ = cfg.Require.Parse("[" + entries + "]") }
}

// daemonSet is gpu/plugin, which runs on all nodes.
func daemonSet(ready int32, tolerations ...corev1.Toleration) Part[[]appsv1.DaemonSet] {
	return daemonSetOf("gpu", "plugin", ready, tolerations...)
}

func daemonSetOf(namespace, name string, ready int32, tolerations ...corev1.Toleration) Part[[]appsv1.DaemonSet] {
	var set appsv1.DaemonSet
	set.Namespace, set.Name = namespace, name
	set.Spec.Template.Spec.Tolerations = tolerations
	set.Status.DesiredNumberScheduled, set.Status.NumberReady = 2, ready
	return Part[[]appsv1.DaemonSet]{Value: []appsv1.DaemonSet{set}}
}

func onTimeoutTaint(cfg *config.Config) { cfg.OnTimeout = []string{config.OnTimeoutTaint} }

func set(t *testing.T, c *Cluster, name string) Result {
	all := traps(*c)
	i := slices.IndexFunc(all, func(each trap) bool { return each.name == name })
	require.GreaterOrEqual(t, i, 0, "no trap %s", name)
	return all[i].look(*c, nil)
}

// Each trap, set in every way. The same cluster without the change has none: see TestReadACleanCluster.
func TestTraps(t *testing.T) {
	for name, test := range map[string]struct {
		trap   string
		config func(*config.Config)
		change func(c *Cluster)
		text   string
		remedy string
	}{
		"DNS does not tolerate node-ready/unverified": {trap: "dns-behind-gate", text: "tolerates node-ready/unverified, and no node", remedy: "let the DNS pods tolerate node-ready/unverified",
			change: func(c *Cluster) { c.DNS.Value.Pods = []corev1.Pod{podOn("old")} }},
		"DNS tolerates one value of the failed taint": {trap: "dns-behind-gate", config: onTimeoutTaint,
			text: "tolerates node-ready/failed,", remedy: "Exists", change: func(c *Cluster) {
				without := corev1.Toleration{Key: failed, Effect: corev1.TaintEffectNoSchedule}
				c.DNS.Value.Pods = []corev1.Pod{podOn("old", append(tolerate(startup), without)...)}
			}},
		"DNS does not tolerate the failed taint": {trap: "dns-behind-gate", config: onTimeoutTaint, text: "tolerates node-ready/failed,",
			change: func(c *Cluster) { c.DNS.Value.Pods = []corev1.Pod{podOn("old", tolerate(startup)...)} }},
		"the ungated node cannot run DNS": {trap: "dns-behind-gate", text: "tolerates node-ready/unverified",
			change: func(c *Cluster) {
				c.DNS.Value.Pods = []corev1.Pod{podOn("old")}
				c.Nodes.Value = append(c.Nodes.Value, readyNode("control-plane", taint("node-role.kubernetes.io/control-plane", corev1.TaintEffectNoSchedule)))
			}},
		"the chart adds the startup taint to all nodes": {trap: "dns-behind-gate", text: "tolerates node-ready/unverified",
			change: func(c *Cluster) {
				c.DNS.Value.Pods = []corev1.Pod{podOn("plain")}
				c.Nodes.Value = append(c.Nodes.Value, readyNode("plain"))
				c.Adds.Value = true
			}},
		"a NodePool adds the startup taint": {trap: "dns-behind-gate", text: "tolerates node-ready/unverified",
			change: func(c *Cluster) {
				plain := readyNode("plain")
				plain.Labels[nodePoolLabel] = "gated"
				c.DNS.Value.Pods, c.Nodes.Value = []corev1.Pod{podOn("plain")}, append(c.Nodes.Value, plain)
			}},
		"DNS is ready on a node that was released": {trap: "dns-behind-gate", text: "tolerates node-ready/unverified, and no node",
			change: func(c *Cluster) { c.DNS.Value.Pods = []corev1.Pod{readyPodOn("old")} }},

		"the CNI's agent does not tolerate the startup taint": {trap: "network-behind-gate", text: "the DaemonSet cilium/cilium does not tolerate node-ready/unverified",
			remedy: "let its pods tolerate node-ready/unverified", change: func(c *Cluster) { c.DaemonSets = daemonSetOf("cilium", "cilium", 1, tolerate("other")...) }},
		"kube-proxy tolerates only CriticalAddonsOnly": {trap: "network-behind-gate", text: "the DaemonSet kube-system/kube-proxy",
			change: func(c *Cluster) {
				c.DaemonSets = daemonSetOf("kube-system", "kube-proxy", 1, tolerate("CriticalAddonsOnly")...)
			}},
		"Kubespray's NodeLocal DNSCache does not tolerate the startup taint": {trap: "network-behind-gate", text: "the DaemonSet kube-system/nodelocaldns",
			change: func(c *Cluster) { c.DaemonSets = daemonSetOf("kube-system", "nodelocaldns", 1) }},
		"NodeLocal DNSCache tolerates another value": {trap: "network-behind-gate", text: "the DaemonSet kube-system/node-local-dns",
			change: func(c *Cluster) {
				c.DaemonSets = daemonSetOf("kube-system", "node-local-dns", 1, corev1.Toleration{Key: startup, Value: "other"})
			}},
		"the CNI's operator waits for the gate": {trap: "network-behind-gate", text: "no pod of the Deployment kube-system/cilium-operator tolerates node-ready/unverified, and no node",
			remedy: "let its pods tolerate node-ready/unverified", change: func(c *Cluster) {
				c.Deployments.Value = []appsv1.Deployment{deployment("cilium-operator", tolerate("node.cilium.io/agent-not-ready")...)}
			}},

		"no DNS pod":     {trap: "dns-behind-gate", text: "has no pods", change: func(c *Cluster) { c.DNS.Value.Pods = nil }},
		"no DNS Service": {trap: "dns-behind-gate", text: "or is not there", change: func(c *Cluster) { c.DNS = Part[Backend]{Absent: true} }},

		"nothing is forwarded": {trap: "external-names", text: "nothing in the Corefile answers it", remedy: "use only names of the cluster, such as kubernetes.default.svc.cluster.local, or",
			change: corefile(".:53 {\n  kubernetes cluster.local\n  cache 30\n}\n")},
		"no server for the name": {trap: "external-names", text: "nothing in the Corefile answers it",
			change: corefile("cluster.local:53 {\n  kubernetes cluster.local\n  forward . 192.0.2.1\n}\n")},

		"another domain": {trap: "cluster-domain", text: "the cluster's domain is corp.example (the Corefile)", remedy: "use kubernetes.default.svc.corp.example instead",
			change: func(c *Cluster) {
				c.Corefile.Value = strings.ReplaceAll(c.Corefile.Value, "cluster.local", "corp.example")
			}},
		"another domain, behind a snippet": {trap: "cluster-domain", text: "the cluster's domain is corp.example (the Corefile)",
			change: corefile("(snippet) {\n  errors\n}\n.:53 { # all\n  kubernetes corp.example in-addr.arpa {\n  }\n  forward . 192.0.2.1\n}\n")},

		"Karpenter: under taints": {trap: "karpenter", text: "has node-ready/unverified under taints", remedy: "startupTaints",
			change: func(c *Cluster) {
				c.NodePools.Value[0] = nodePool("gated", []corev1.Taint{taint(startup, corev1.TaintEffectNoSchedule)}, nil)
			}},
		"Karpenter: undeclared": {trap: "karpenter", text: "its node old joined with it", remedy: "under spec.template.spec.startupTaints of the NodePool gated",
			change: func(c *Cluster) {
				c.NodePools.Value[0].Spec.Template.Spec.StartupTaints = nil
				c.Nodes.Value[0].Labels["karpenter.sh/nodepool"] = "gated"
			}},

		"Cluster Autoscaler: no prefix": {trap: "cluster-autoscaler", text: "(Deployment kube-system/autoscaler)", remedy: "--startup-taint=KEY",
			change: func(c *Cluster) { c.Deployments.Value = autoscaler("--ignore-taint=example.com/other") }},
		"Cluster Autoscaler: a longer key": {trap: "cluster-autoscaler", text: "(Deployment kube-system/autoscaler)",
			change: func(c *Cluster) { c.Deployments.Value = autoscaler("--startup-taint=" + startup + "-other") }},
		"Cluster Autoscaler: another image": {trap: "cluster-autoscaler", text: "(Deployment kube-system/autoscaler)",
			change: func(c *Cluster) {
				c.Deployments.Value = autoscaler()
				c.Deployments.Value[0].Spec.Template.Spec.Containers[0].Image = "example.com/mirror@sha256:0"
			}},
		"Cluster Autoscaler: managed": {trap: "cluster-autoscaler", text: "the cloud runs it",
			change: func(c *Cluster) { c.AutoscalerStatus = Part[bool]{Value: true} }},

		"a foreign taint on a node": {trap: "foreign-taints", text: "the node new has the startup taint and example.com/gpu=true:NoExecute", remedy: "toleration",
			change: func(c *Cluster) {
				c.Nodes.Value[1].Spec.Taints = append(c.Nodes.Value[1].Spec.Taints, taint("example.com/gpu", corev1.TaintEffectNoExecute))
			}},
		"a foreign taint of a NodePool": {trap: "foreign-taints", text: "nodes of the NodePool gated join with",
			change: func(c *Cluster) {
				c.NodePools.Value[0].Spec.Template.Spec.Taints = []corev1.Taint{taint("example.com/gpu", corev1.TaintEffectNoExecute)}
			}},

		"a condition that no node has": {trap: "requirements", text: "condition Net=False: new, for example: the node has none: nodes that need it are not released", remedy: "correct config.require",
			change: func(c *Cluster) { requires(`{"condition":"Net=False"},{"label":"kubernetes.io/os"}`)(&c.Release.Agent) }},
		"a resource that no such node has": {trap: "requirements", text: "allocatable nvidia.com/gpu on gpu=nvidia: new, for example: the node has none",
			change: func(c *Cluster) {
				requires(`{"allocatable":"nvidia.com/gpu","on":{"gpu":"nvidia"}}`)(&c.Release.Agent)
				c.Nodes.Value[1].Labels["gpu"] = "nvidia"
			}},
		"a required DaemonSet that is not there": {trap: "requirements", text: "daemonSet gpu/plugin: there is no such DaemonSet",
			change: func(c *Cluster) { requires(`{"daemonSet":"gpu/plugin"}`)(&c.Release.Agent) }},
		"a required DaemonSet behind the gate": {trap: "requirements", text: "daemonSet gpu/plugin: its pods do not tolerate the taints of a node that waits for them", remedy: "let it tolerate node-ready/unverified (operator Exists)",
			change: func(c *Cluster) {
				requires(`{"daemonSet":"gpu/plugin"}`)(&c.Release.Agent)
				c.DaemonSets = daemonSet(1, tolerate("other")...)
			}},
		"a required DaemonSet that is ready nowhere": {trap: "requirements", text: "daemonSet gpu/plugin: none of its pods is ready",
			change: func(c *Cluster) {
				requires(`{"daemonSet":"gpu/plugin"}`)(&c.Release.Agent)
				c.DaemonSets = daemonSet(0, tolerate(startup)...)
			}},

		"labelled and tainted": {trap: "labelled-and-tainted", text: "the node new has the label node-ready/verified=false", remedy: "kubectl node-ready verify new",
			change: func(c *Cluster) { c.Nodes.Value[1].Labels[label] = "false"; c.Agents.Value = nil }},
		"gated and left out at the installation, with rechecks": {trap: "labelled-and-tainted", text: "has the label node-ready/verified=preexisting and the startup taint",
			remedy: "kubectl node-ready verify late", change: func(c *Cluster) {
				rechecking(c)
				node := readyNode("late", taint(startup, corev1.TaintEffectNoSchedule))
				node.Labels[label] = "preexisting"
				c.Nodes.Value = append(c.Nodes.Value, node)
			}},
		"gated and excluded by the node rules": {trap: "excluded-and-tainted", text: "the node windows has the startup taint, but the node rules", remedy: "kubectl node-ready open windows",
			change: func(c *Cluster) { addWindows(c) }},
		"failed and no agent": {trap: "failed-taint", text: "the node old has the taint node-ready/failed", remedy: "kubectl node-ready verify old",
			change: func(c *Cluster) {
				c.Nodes.Value[0].Spec.Taints = []corev1.Taint{taint(failed, corev1.TaintEffectNoSchedule)}
			}},

		"a webhook behind the gate": {trap: "webhooks", text: "is called for the agent's pods", remedy: "let its pods tolerate node-ready/unverified, or exclude the namespace kube-system",
			change: func(c *Cluster) { c.Webhooks.Value[0].Backend.Value.Pods = []corev1.Pod{podOn("old")} }},
		"a webhook for bindings": {trap: "webhooks", text: "is called for pods/binding",
			change: func(c *Cluster) { hook(c).Rules[0].Resources = []string{"pods/binding"} }},
		"a webhook for the older resource of bindings": {trap: "webhooks", text: "is called for pods/binding",
			change: func(c *Cluster) { hook(c).Rules[0].Resources = []string{"bindings"} }},
		"a webhook for the bindings of everything": {trap: "webhooks", text: "is called for pods/binding",
			change: func(c *Cluster) { hook(c).Rules[0].Resources = []string{"*/binding"} }},
		"a webhook for tokens": {trap: "webhooks", text: "is called for serviceaccounts/token",
			change: func(c *Cluster) { hook(c).Rules[0].Resources = []string{"serviceaccounts/token"} }},
		"a webhook for every resource and its subresources": {trap: "webhooks", text: "is called for pods/binding",
			change: func(c *Cluster) {
				hook(c).Rules[0].Resources = []string{"*/*"}
				hook(c).ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "app.kubernetes.io/name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-node-ready"}}}}
			}},
		"a webhook for the status of workers": {trap: "webhooks", text: "is called for pods/status", change: func(c *Cluster) {
			c.Release.Settings.Workers = true
			hook(c).Rules[0].Operations, hook(c).Rules[0].Resources = []admissionv1.OperationType{admissionv1.Update}, []string{"pods/status"}
		}},
		"a webhook for the status of nodes": {trap: "webhooks", config: func(cfg *config.Config) { cfg.Condition = config.ConditionAlways }, text: "is called for nodes/status",
			change: func(c *Cluster) {
				hook(c).Rules[0].Operations, hook(c).Rules[0].Resources = []admissionv1.OperationType{admissionv1.Update}, []string{"nodes/status"}
			}},
		"a webhook without pods": {trap: "webhooks", text: "its Service system/hook has no pods",
			change: func(c *Cluster) { c.Webhooks.Value[0].Backend = Part[Backend]{Absent: true} }},
		"a webhook for nodes": {trap: "webhooks", text: "is called for nodes",
			change: func(c *Cluster) {
				hook := &c.Webhooks.Value[0]
				hook.Backend.Value.Pods = []corev1.Pod{podOn("old")}
				hook.Webhook.Rules[0] = admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{"*"},
					Rule: admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"nodes"}}}
			}},

		"no policy": {trap: "policy", text: "the agent's token may patch any node", change: func(c *Cluster) { c.Policies.Value = c.Policies.Value[1:] }},
		"no policy for deletions": {trap: "policy", text: "there is no ValidatingAdmissionPolicy kube-node-ready-controller-nodes: the controller's token may delete any node",
			change: func(c *Cluster) {
				withController(c, config.Controller{DeleteNodes: true, RemediationMode: config.RemediationDelete})
			}},
		"a binding that only audits and warns": {trap: "policy", text: "kube-node-ready has no binding with the action Deny", change: func(c *Cluster) {
			c.Bindings.Value[0].Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Audit, admissionv1.Warn}
		}},
		"no binding": {trap: "policy", text: "has no binding", change: func(c *Cluster) { c.Bindings.Value = c.Bindings.Value[1:] }},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []func(*config.Config)
			if test.config != nil {
				changes = append(changes, test.config)
			}
			c := clean(t, changes...)
			require.Empty(t, set(t, c, test.trap).Findings, "before the change")
			test.change(c)
			found := set(t, c, test.trap)
			require.NoError(t, found.Unchecked)
			require.Len(t, found.Findings, 1)
			assert.Contains(t, found.Findings[0].Text, test.text)
			assert.Contains(t, found.Findings[0].Remedy, test.remedy)
			assert.Equal(t, 1, Report(new(strings.Builder), *c, nil), "and no other trap")
		})
	}
}

// A component of the network that does not tolerate the taint is a warning while no node is gated, or unchecked.
func TestNetworkBeforeGating(t *testing.T) {
	c := clean(t)
	c.DaemonSets, c.Nodes.Value, c.NodePools.Value = daemonSetOf("kube-system", "cilium", 1), []corev1.Node{readyNode("plain")}, nil
	found := set(t, c, "network-behind-gate")
	require.NoError(t, found.Unchecked)
	assert.Empty(t, found.Findings)
	require.Len(t, found.Warnings, 1)
	assert.Contains(t, found.Warnings[0].Text, "the DaemonSet kube-system/cilium does not tolerate node-ready/unverified")

	for name, change := range map[string]func(c *Cluster, err error){
		"NodePools": func(c *Cluster, err error) { c.NodePools.Err = err },
		"policies":  func(c *Cluster, err error) { c.Adds.Err = err },
	} {
		t.Run(name, func(t *testing.T) {
			of, forbidden := *c, errors.New("forbidden to you")
			change(&of, forbidden)
			found := set(t, &of, "network-behind-gate")
			assert.Empty(t, append(found.Findings, found.Warnings...))
			require.ErrorIs(t, found.Unchecked, forbidden)
			of.GateAll = true
			assert.Len(t, set(t, &of, "network-behind-gate").Findings, 1, "it is certain")
		})
	}

	c.Nodes.Value[0].Labels["kubernetes.io/os"] = "windows"
	c.Release.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
	c.Release.Settings.Rules = fleet.NewRules(c.Release.Template, c.Release.Settings.Keys)
	assert.Equal(t, Result{Passed: "no known component of the network waits for the gate"}, set(t, c, "network-behind-gate"))
}

// Each policy of the chart is missed, and no other one.
func TestMissingPolicies(t *testing.T) {
	c := clean(t)
	withController(c, config.Controller{DeleteNodes: true, RemediationMode: config.RemediationDelete})
	addPolicies(c, "kube-node-ready-controller-nodes")
	require.Empty(t, set(t, c, "policy").Findings)
	files, err := filepath.Glob("../../../../chart/templates/controller/*policy.yaml")
	require.NoError(t, err)
	var ofController []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		ofController = append(ofController, regexp.MustCompile(`printf "%s-[a-z]+" \$name`).FindAllString(string(text), -1)...)
	}
	require.Len(t, c.Policies.Value, 3+len(ofController), "two of the agent, and the controller's own")
	for i, missing := range c.Policies.Value {
		without := *c
		without.Policies.Value = slices.Delete(slices.Clone(c.Policies.Value), i, i+1)
		found := set(t, &without, "policy").Findings
		require.Len(t, found, 1, missing.Name)
		assert.Contains(t, found[0].Text, "there is no ValidatingAdmissionPolicy "+missing.Name+": ")
	}
}

// Karpenter does not wait for a startup taint that a NodePool does not declare.
func TestNodePoolWithoutTheStartupTaint(t *testing.T) {
	c := clean(t)
	c.NodePools.Value[0].Spec.Template.Spec.StartupTaints = nil
	c.Nodes.Value = append(c.Nodes.Value, readyNode("plain"))
	c.Nodes.Value[2].Labels[nodePoolLabel] = "gated"
	warning := set(t, c, "karpenter").Warnings[0]
	assert.Contains(t, warning.Text, "the NodePool gated (nodes: 1) does not declare node-ready/unverified: if its nodes join with that taint")
	assert.Contains(t, warning.Remedy, "of the NodePool gated: this drifts its nodes, and Karpenter replaces them")
	const text = "and initializes the NodeClaims of such nodes: remediation may not delete them"
	assert.NotContains(t, set(t, c, "karpenter").Warnings[0].Text, text)
	withController(c, config.Controller{RemediationMode: config.RemediationDelete})
	assert.Contains(t, set(t, c, "karpenter").Warnings[0].Text, text)

	c.Nodes.Err = errors.New("forbidden to you") // nobody knows whether they are gated
	require.ErrorIs(t, set(t, c, "karpenter").Unchecked, c.Nodes.Err)
}

// A node registers without the labels of feature discovery.
func TestRequirementOnALabelThatComesLate(t *testing.T) {
	c := clean(t, requires(`{"label":"kubernetes.io/os","on":{"nvidia.com/gpu.present":"true","kubernetes.io/os":"linux"}},`+
		`{"label":"kubernetes.io/os","on":{"feature.node.kubernetes.io/pci-10de.present":"true"}}`))
	found := set(t, c, "requirements")
	assert.Empty(t, found.Findings)
	require.Len(t, found.Warnings, 2)
	assert.Contains(t, found.Warnings[0].Text, "feature discovery adds the label nvidia.com/gpu.present later")
	assert.Contains(t, found.Warnings[1].Text, "feature.node.kubernetes.io/pci-10de.present")
}

// What looks like a trap and is none.
func TestNoTrap(t *testing.T) {
	for name, test := range map[string]struct {
		trap   string
		config func(*config.Config)
		change func(c *Cluster)
	}{
		"an ungated node runs DNS": {trap: "dns-behind-gate", change: func(c *Cluster) {
			c.DNS.Value.Pods = []corev1.Pod{podOn("system")}
			c.Nodes.Value = append(c.Nodes.Value, readyNode("system"))
		}},
		"DNS is ready on Fargate": {trap: "dns-behind-gate", change: func(c *Cluster) {
			c.DNS.Value.Pods = []corev1.Pod{readyPodOn("fargate")}
			addFargate(c)
		}},
		"a webhook that is ready on Fargate": {trap: "webhooks", change: func(c *Cluster) {
			hook(c)
			c.Webhooks.Value[0].Backend.Value.Pods = []corev1.Pod{readyPodOn("fargate")}
			addFargate(c)
		}},
		"a CNI for other nodes": {trap: "network-behind-gate", change: func(c *Cluster) {
			c.DaemonSets = daemonSetOf("kube-system", "kube-proxy", 0)
			c.DaemonSets.Value[0].Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "windows"}
		}},
		"a DaemonSet that is not of the network": {trap: "network-behind-gate", change: func(c *Cluster) { c.DaemonSets = daemonSet(1) }},
		"the CNI's operator runs on an ungated node": {trap: "network-behind-gate", change: func(c *Cluster) {
			c.Deployments.Value, c.Nodes.Value = []appsv1.Deployment{deployment("calico-typha")}, append(c.Nodes.Value, readyNode("system"))
		}},
		"a stopped operator": {trap: "network-behind-gate", change: func(c *Cluster) {
			c.Deployments.Value = []appsv1.Deployment{deployment("cilium-operator")}
			c.Deployments.Value[0].Spec.Replicas = new(int32)
		}},
		"one DNS pod is enough": {trap: "dns-behind-gate", change: func(c *Cluster) { c.DNS.Value.Pods = append(c.DNS.Value.Pods, podOn("old")) }},
		"the policy leaves Karpenter's nodes alone": {trap: "dns-behind-gate", change: func(c *Cluster) {
			plain := readyNode("plain")
			plain.Labels[nodePoolLabel] = "plain"
			c.Adds.Value, c.DNS.Value.Pods, c.Nodes.Value = true, []corev1.Pod{podOn("plain")}, append(c.Nodes.Value, plain)
		}},
		"the policy leaves nodes with another value of the label alone": {trap: "dns-behind-gate", change: func(c *Cluster) {
			plain := readyNode("plain")
			plain.Labels[label] = "excluded"
			c.Adds.Value, c.DNS.Value.Pods, c.Nodes.Value = true, []corev1.Pod{podOn("plain")}, append(c.Nodes.Value, plain)
		}},
		"DNS outside": {trap: "dns-behind-gate", change: func(c *Cluster) { c.DNS.Value = Backend{External: true} }},
		"managed DNS": {trap: "dns-behind-gate", config: func(cfg *config.Config) { cfg.DNSService = "" }, change: func(c *Cluster) { c.DNS.Value.Pods = nil }},
		"an external name that only warns": {trap: "external-names", config: func(cfg *config.Config) {
			cfg.DNSTestDomains = []string{"kubernetes.default.svc.cluster.local", "warn+google.com"}
		}, change: corefile(".:53 {\n  kubernetes cluster.local\n}\n")},
		"a name of another domain that only warns": {trap: "cluster-domain", config: func(cfg *config.Config) {
			cfg.DNSTestDomains = append(cfg.DNSTestDomains, "warn+db.prod.svc.other.example")
		}, change: func(*Cluster) {}},
		"no external name": {trap: "external-names", config: func(cfg *config.Config) { cfg.DNSTestDomains = cfg.DNSTestDomains[:1] },
			change: corefile(".:53 {\n  kubernetes cluster.local\n}\n")},
		"names of the cluster": {trap: "external-names", config: func(cfg *config.Config) {
			cfg.DNSTestDomains = []string{"kubernetes.default", "kubernetes.default.svc", "host.corp.example", "host.corp.example."}
		}, change: corefile("corp.example:53 {\n  kubernetes corp.example\n}\n")},
		"a taint that keeps no pod away": {trap: "dns-behind-gate", config: func(cfg *config.Config) { cfg.TaintEffect = "PreferNoSchedule" },
			change: func(c *Cluster) { c.DNS.Value.Pods = []corev1.Pod{podOn("old")} }},
		"an external name with svc in it": {trap: "cluster-domain", config: func(cfg *config.Config) {
			cfg.DNSTestDomains = append(cfg.DNSTestDomains, "api.svc.example.com")
		}, change: func(*Cluster) {}},
		"a second domain of the plugin kubernetes": {trap: "cluster-domain", change: corefile(".:53 {\n  kubernetes corp.example cluster.local {\n  }\n  forward . 192.0.2.1\n}\n")},
		"a server of another cluster": {trap: "cluster-domain", config: func(cfg *config.Config) {
			cfg.DNSTestDomains = append(cfg.DNSTestDomains, "api.shared.svc.ClusterSet.local", "api.shared.svc.c.example")
		}, change: func(c *Cluster) {
			c.Corefile.Value += "svc.clusterset.local:53 {\n  multicluster clusterset.LOCAL\n}\nC.example:53 {\n  kubernetes\n}\n"
		}},
		"the cluster's domain in another case": {trap: "cluster-domain", change: func(c *Cluster) {
			c.Release.Agent.DNSTestDomains = []string{"kubernetes.default.svc.corp.example", "kubernetes.default.SVC.CORP.example."}
			c.Corefile.Value = ".:53 {\n  kubernetes corp.EXAMPLE\n}\n"
		}},
		"an internal name in another case": {trap: "external-names", change: func(c *Cluster) {
			c.Release.Agent.DNSTestDomains = []string{"kubernetes.default.svc.Cluster.Local", "host.CLUSTER.local"}
			c.Corefile.Value = ".:53 {\n  kubernetes cluster.local\n}\n"
		}},
		"a NodePool that is not gated": {trap: "karpenter", change: func(c *Cluster) { c.NodePools.Value[0].Spec.Template.Spec.StartupTaints = nil }},
		"a NodePool whose nodes the policy leaves alone": {trap: "karpenter", change: func(c *Cluster) {
			c.Adds.Value, c.NodePools.Value[0].Spec.Template.Spec.StartupTaints = true, nil
			c.Nodes.Value = append(c.Nodes.Value, readyNode("plain"))
			c.Nodes.Value[2].Labels[nodePoolLabel] = "gated"
		}},
		"no Karpenter":           {trap: "karpenter", change: func(c *Cluster) { c.NodePools = Part[[]NodePool]{Absent: true} }},
		"--startup-taint":        {trap: "cluster-autoscaler", change: func(c *Cluster) { c.Deployments.Value = autoscaler("--startup-taint=" + startup) }},
		"--ignore-taint":         {trap: "cluster-autoscaler", change: func(c *Cluster) { c.Deployments.Value = autoscaler("--ignore-taint", startup) }},
		"--startup-taint-prefix": {trap: "cluster-autoscaler", change: func(c *Cluster) { c.Deployments.Value = autoscaler("--startup-taint-prefix=node-ready/") }},
		"the prefix":             {trap: "cluster-autoscaler", config: func(cfg *config.Config) { cfg.TaintKey = "startup-taint.cluster-autoscaler.kubernetes.io/unverified" }, change: func(c *Cluster) { c.Deployments.Value = autoscaler() }},
		"--startup-taint with a value and an effect, in the arguments alone": {trap: "cluster-autoscaler", change: func(c *Cluster) {
			c.Deployments.Value = autoscaler()
			c.Deployments.Value[0].Spec.Template.Spec.Containers[0].Command = nil
			c.Deployments.Value[0].Spec.Template.Spec.Containers[0].Args = []string{"--startup-taint=" + startup + "=true:NoSchedule"}
		}},
		"--startup-taint in a shell script": {trap: "cluster-autoscaler", change: func(c *Cluster) {
			c.Deployments.Value = autoscaler()
			c.Deployments.Value[0].Spec.Template.Spec.Containers[0].Command = []string{"sh", "-c",
				"exec ./cluster-autoscaler \\\n\t--v=4 \\\n\t--startup-taint=" + startup + "\n"}
		}},
		"--startup-taint in quotes, with the key on the next line": {trap: "cluster-autoscaler", change: func(c *Cluster) {
			c.Deployments.Value = autoscaler("\"--startup-taint\" \\\n'" + startup + "'")
		}},
		"--startup-taint-prefix in a shell script": {trap: "cluster-autoscaler", change: func(c *Cluster) {
			c.Deployments.Value = autoscaler("--v=4 \\\n--startup-taint-prefix=\"node-ready/\"\n")
		}},
		"a taint that Karpenter removes": {trap: "foreign-taints", change: func(c *Cluster) { addTaint(c, "karpenter.sh/unregistered") }},
		"a taint that a CNI removes": {trap: "foreign-taints", config: func(cfg *config.Config) { cfg.WaitForTaints = []string{"node.cilium.io/"} },
			change: func(c *Cluster) { addTaint(c, "node.cilium.io/agent-not-ready") }},
		"a taint that Kubernetes removes":                   {trap: "foreign-taints", change: func(c *Cluster) { addTaint(c, "node.kubernetes.io/network-unavailable") }},
		"a taint that a CSI driver removes from a new node": {trap: "foreign-taints", change: func(c *Cluster) { addTaint(c, "ebs.csi.aws.com/agent-not-ready") }},
		"a startup taint of a NodePool": {trap: "foreign-taints", change: func(c *Cluster) {
			c.NodePools.Value[0].Spec.Template.Spec.StartupTaints = append(c.NodePools.Value[0].Spec.Template.Spec.StartupTaints, taint("example.com/starting", corev1.TaintEffectNoExecute))
			c.Nodes.Value[1].Labels[nodePoolLabel] = "gated"
			addTaint(c, "example.com/starting")
		}},
		"another program of that name": {trap: "cluster-autoscaler", change: func(c *Cluster) {
			c.Deployments.Value = autoscaler()
			c.Deployments.Value[0].Spec.Template.Spec.Containers = []corev1.Container{{Image: "quay.io/cluster-autoscaler-operator:v1"}, {Command: []string{"", "cluster-autoscaler"}}}
		}},
		"the agent is still there": {trap: "labelled-and-tainted", change: func(c *Cluster) { c.Nodes.Value[1].Labels[label] = "true" }},
		"a node that was left out at the installation, with rechecks": {trap: "excluded-and-tainted", change: func(c *Cluster) {
			rechecking(c)
			node := readyNode("late", taint(startup, corev1.TaintEffectNoSchedule))
			node.Labels[label] = "preexisting"
			c.Nodes.Value = append(c.Nodes.Value, node)
		}},
		"an excluded node without the startup taint": {trap: "excluded-and-tainted", change: func(c *Cluster) { addWindows(c).Spec.Taints = nil }},
		"an agent is still on the excluded node": {trap: "excluded-and-tainted", change: func(c *Cluster) {
			addWindows(c)
			c.Agents.Value = append(c.Agents.Value, podOn("windows"))
		}},
		"controller mode": {trap: "labelled-and-tainted", change: func(c *Cluster) {
			c.Nodes.Value[1].Labels[label] = "true"
			c.Agents.Value = nil
			c.Release.Settings.Workers = true
		}},
		"the agent removes the taint": {trap: "failed-taint", change: func(c *Cluster) { addTaint(c, failed) }},
		"the controller removes it": {trap: "failed-taint", change: func(c *Cluster) {
			addTaint(c, failed)
			c.Agents.Value = nil
			c.Release.Settings.FailedTaintValue = "true"
		}},
		"one node meets it": {trap: "requirements", config: requires(`{"allocatable":"nvidia.com/gpu"},{"daemonSet":"gpu/plugin"}`), change: func(c *Cluster) {
			c.Nodes.Value[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
			c.DaemonSets = daemonSet(1, tolerate(startup)...)
		}},
		"no node is of the kind": {trap: "requirements", config: requires(`{"allocatable":"nvidia.com/gpu","on":{"gpu":"nvidia"}}`), change: func(*Cluster) {}},
		"failurePolicy Ignore":   {trap: "webhooks", change: func(c *Cluster) { hook(c).FailurePolicy = new(admissionv1.Ignore) }},
		"a webhook for another namespace": {trap: "webhooks", change: func(c *Cluster) {
			hook(c).NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"mine": "yes"}}
		}},
		"a webhook for other pods": {trap: "webhooks", change: func(c *Cluster) {
			hook(c).ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"mine": "yes"}}
		}},
		"a webhook for other objects": {trap: "webhooks", change: func(c *Cluster) { hook(c).Rules[0].Resources = []string{"pods/exec"} }},
		"a webhook for all resources without subresources, and not for these pods": {trap: "webhooks", change: func(c *Cluster) {
			hook(c).Rules[0].Resources = []string{"*"}
			hook(c).ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"mine": "yes"}}
		}},
		"a webhook for bindings in other namespaces": {trap: "webhooks", change: func(c *Cluster) {
			hook(c).Rules[0].Resources = []string{"pods/binding"}
			hook(c).NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"mine": "yes"}}
		}},
		"a webhook for cluster-scoped objects": {trap: "webhooks", change: func(c *Cluster) {
			hook(c).Rules[0].Resources, hook(c).Rules[0].Scope = []string{"pods", "pods/binding"}, new(admissionv1.ClusterScope)
		}},
		"a webhook for the status of nodes, which no release waits for": {trap: "webhooks", change: func(c *Cluster) {
			hook(c).Rules[0].Operations, hook(c).Rules[0].Resources = []admissionv1.OperationType{admissionv1.Update}, []string{"nodes/status"}
		}},
		"a stopped Cluster Autoscaler": {trap: "cluster-autoscaler", change: func(c *Cluster) {
			c.Deployments.Value = autoscaler()
			c.Deployments.Value[0].Spec.Replicas, c.AutoscalerStatus.Value = new(int32), true
		}},
		"a webhook outside": {trap: "webhooks", change: func(c *Cluster) { hook(c); c.Webhooks.Value[0].Backend.Value.External = true }},
		"deletions of a dry run": {trap: "policy", change: func(c *Cluster) {
			withController(c, config.Controller{DeleteNodes: true, RemediationMode: config.RemediationDryRun})
		}},
		"before Kubernetes 1.30": {trap: "policy", change: func(c *Cluster) { c.Policies = Part[[]admissionv1.ValidatingAdmissionPolicy]{Absent: true} }},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []func(*config.Config)
			if test.config != nil {
				changes = append(changes, test.config)
			}
			c := clean(t, changes...)
			test.change(c)
			found := set(t, c, test.trap)
			require.NoError(t, found.Unchecked)
			assert.Empty(t, found.Findings)
			assert.True(t, found.Passed != "" || len(found.Warnings) > 0, "what was looked at is shown where nothing was found")
		})
	}
}

// withController is a release with a controller, and with the policy that each has.
func withController(c *Cluster, cfg config.Controller) {
	c.Release.Controller = &cfg
	for _, suffix := range []string{"", "-workers", "-objects", "-nodeclaims"} {
		addPolicies(c, c.Release.Fullname+"-controller"+suffix)
	}
}

func addName(c *Cluster, name string) {
	c.Release.Agent.DNSTestDomains = append(c.Release.Agent.DNSTestDomains, name)
}

func addTaint(c *Cluster, key string) {
	c.Nodes.Value[1].Spec.Taints = append(c.Nodes.Value[1].Spec.Taints, taint(key, corev1.TaintEffectNoExecute))
}

// rechecking makes the node rules those of agents that stay.
func rechecking(c *Cluster) {
	rule := corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"preexisting"}}
	c.Release.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{rule}}}}}}
	c.Release.Settings.Rules = fleet.NewRules(c.Release.Template, c.Release.Settings.Keys)
}

// addWindows adds a node with the startup taint that the node rules exclude.
func addWindows(c *Cluster) *corev1.Node {
	c.Release.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
	c.Release.Settings.Rules = fleet.NewRules(c.Release.Template, c.Release.Settings.Keys)
	node := readyNode("windows", taint(startup, corev1.TaintEffectNoSchedule))
	node.Labels["kubernetes.io/os"] = "windows"
	c.Nodes.Value = append(c.Nodes.Value, node)
	return &c.Nodes.Value[len(c.Nodes.Value)-1]
}

// hook returns the webhook, whose pods are behind the gate.
func hook(c *Cluster) *admissionv1.ValidatingWebhook {
	c.Webhooks.Value[0].Backend.Value.Pods = []corev1.Pod{podOn("old")}
	return &c.Webhooks.Value[0].Webhook
}

// Which nodes join with the startup taint is unknown where the chart's policy or the NodePools cannot be read.
func TestUncheckedIfUngatedNodesAreUnknown(t *testing.T) {
	no := errors.New("forbidden to you")
	for name, refuse := range map[string]func(*Cluster){
		"policy":    func(c *Cluster) { c.Adds.Err = no },
		"NodePools": func(c *Cluster) { c.NodePools = Part[[]NodePool]{Err: no} },
	} {
		for _, trap := range []string{"dns-behind-gate", "webhooks"} {
			t.Run(name+" "+trap, func(t *testing.T) {
				c := clean(t)
				refuse(c)
				require.NoError(t, set(t, c, trap).Unchecked, "pods that tolerate the taint need no such node")
				c.DNS.Value.Pods = []corev1.Pod{podOn("plain")}
				hook(c)
				assert.Len(t, set(t, c, trap).Findings, 1, "no node could run them")
				c.Nodes.Value = append(c.Nodes.Value, readyNode("plain"))
				found := set(t, c, trap)
				assert.Empty(t, found.Findings)
				require.ErrorIs(t, found.Unchecked, no)
			})
		}
	}
}

// Before any node is gated, DNS pods that do not tolerate the taint lock nothing: that is worth a warning.
func TestWarningBeforeGating(t *testing.T) {
	c := clean(t)
	c.Nodes.Value, c.Agents.Value = []corev1.Node{readyNode("plain")}, nil
	c.DNS.Value.Pods = []corev1.Pod{podOn("plain")}
	c.NodePools.Value[0].Spec.Template.Spec.StartupTaints = nil
	hook(c)
	texts := map[string]string{"dns-behind-gate": "no pod of kube-system/kube-dns tolerates node-ready/unverified",
		"webhooks": "they run only on nodes that join without it"}
	for trap, text := range texts {
		found := set(t, c, trap)
		assert.Empty(t, found.Findings)
		require.Len(t, found.Warnings, 1)
		assert.Contains(t, found.Warnings[0].Text, text)
		assert.NotEmpty(t, found.Warnings[0].Remedy)
	}
	var out strings.Builder
	assert.Zero(t, Report(&out, *c, nil))
	assert.Equal(t, 3, strings.Count(out.String(), "WARN"), out.String())
	assert.Contains(t, out.String(), "WARN  dns-behind-gate       no pod of kube-system/kube-dns tolerates")
	assert.NotContains(t, out.String(), "PASS  dns-behind-gate")

	c.GateAll = true
	for trap := range texts {
		assert.Len(t, set(t, c, trap).Findings, 1, trap)
	}
	assert.Equal(t, 2, Report(new(strings.Builder), *c, nil), "Karpenter adds no taint that a NodePool does not declare")
}

// Nodes that the release is not for stay without taints.
func TestNoWarningForOtherNodes(t *testing.T) {
	for name, excluded := range map[string]func(*Cluster) *corev1.Node{
		"node rules": addWindows,
		"label": func(c *Cluster) *corev1.Node {
			node := readyNode("labelled")
			node.Labels[label] = "excluded"
			c.Nodes.Value = append(c.Nodes.Value, node)
			return &c.Nodes.Value[len(c.Nodes.Value)-1]
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := clean(t)
			excluded(c).Spec.Taints = nil
			c.DNS.Value.Pods = []corev1.Pod{podOn("old")}
			hook(c)
			for _, c.GateAll = range []bool{false, true} {
				for _, trap := range []string{"dns-behind-gate", "webhooks"} {
					found := set(t, c, trap)
					assert.Empty(t, append(found.Findings, found.Warnings...), trap)
				}
			}
		})
	}
}

// The remedy corrects the names of the cluster, and no other.
func TestRemedyForTheClusterDomain(t *testing.T) {
	c := clean(t, func(cfg *config.Config) {
		cfg.DNSTestDomains = []string{"db-0.db.prod.svc.cluster.local.", "api.svc.example.com", "kubernetes.default.svc", "10.0.0.2"}
	})
	c.Corefile.Value = ".:53 {\n  kubernetes corp.example\n}\n"
	found := set(t, c, "cluster-domain")
	require.Len(t, found.Findings, 1)
	assert.Contains(t, found.Findings[0].Text, "db-0.db.prod.svc.cluster.local. is in config.dnsTestDomains")
	assert.Equal(t, "use db-0.db.prod.svc.corp.example instead", found.Findings[0].Remedy)

	// A cluster that forwards nothing refuses the external name.
	found = set(t, c, "external-names")
	require.Len(t, found.Findings, 1)
	assert.Contains(t, found.Findings[0].Text, "api.svc.example.com is in config.dnsTestDomains")
}

// What other servers know of the Services of other clusters cannot be seen.
func TestServicesOfOtherClusters(t *testing.T) {
	const upstream = ".:53 {\n  kubernetes cluster.local\n  forward . 192.0.2.1\n}\n"
	for name, corefile := range map[string]string{
		"upstream":      upstream,
		"a stub zone":   upstream + "Example:53 {\n  forward . 192.0.2.1\n}\n",
		"a rewrite":     ".:53 {\n  rewrite name suffix .b.example .cluster.local\n  kubernetes cluster.local\n}\n",
		"two key lines": "cluster.local:53,\n" + upstream,
	} {
		t.Run(name, func(t *testing.T) {
			c := clean(t)
			c.Corefile.Value = corefile
			addName(c, "api.shared.svc.b.example.")
			found := set(t, c, "cluster-domain")
			assert.Empty(t, append(found.Findings, found.Warnings...))
			require.ErrorContains(t, found.Unchecked, "whether api.shared.svc.b.example. resolves: no Corefile shows it: run helm test, or doctor --ask-dns")
			assert.NotContains(t, found.Unchecked.Error(), "kubernetes.default")
		})
	}
	c := clean(t)
	addName(c, "api.shared.svc.elsewhere")
	c.Corefile.Value = ".:53 {\n  kubernetes cluster.local\n}\n"
	found := set(t, c, "cluster-domain")
	require.Len(t, found.Findings, 1)
	assert.Equal(t, "use api.shared.svc.cluster.local instead", found.Findings[0].Remedy)
}

// It is not certain what the server of the cluster's zone answers to a name below that zone.
func TestNamesBelowTheClusterDomain(t *testing.T) {
	const own = "cluster.local:53 {\n  kubernetes {\n    pods insecure\n  }\n}\n.:53 {\n  forward . 192.0.2.1\n}\n"
	for _, corefile := range []string{clean(t).Corefile.Value, own} {
		c := clean(t)
		c.Corefile.Value = corefile
		addName(c, "kubernetes.default.svc.prod.cluster.local")
		found := set(t, c, "cluster-domain")
		assert.Empty(t, append(found.Findings, found.Warnings...))
		require.ErrorContains(t, found.Unchecked, "whether kubernetes.default.svc.prod.cluster.local resolves: no Corefile shows it")
	}
}

// Only a plain forward of everything passes, and only a Corefile in which nothing can answer is a trap. Everything else is unchecked.
func TestExternalNamesByCorefile(t *testing.T) {
	const none, pass, unclear = "trap", "pass", "unchecked"
	block := func(lines string) string {
		return ".:53 {\n  errors\n  kubernetes cluster.local in-addr.arpa ip6.arpa {\n    pods insecure\n    fallthrough in-addr.arpa ip6.arpa\n  }\n" + lines + "}\n"
	}
	for name, test := range map[string]struct{ corefile, want string }{
		"kubeadm's":                      {block("  forward . /etc/resolv.conf {\n    max_concurrent 1000\n  }\n  cache 30\n"), pass},
		"with Windows line ends":         {strings.ReplaceAll(block("  forward . 192.0.2.1\n"), "\n", "\r\n"), pass},
		"a stub zone beside":             {block("  forward . 192.0.2.1\n") + "corp.example:53 {\n  forward . 192.0.2.2\n}\n", pass},
		"nothing forwards":               {block("  cache 30\n"), none},
		"no block for the name":          {"cluster.local:53 {\n  kubernetes cluster.local\n  forward . 192.0.2.1\n}\n", none},
		"forward of one zone":            {block("  forward corp.example 192.0.2.1\n"), unclear},
		"forward with an exception":      {block("  forward . 192.0.2.1 {\n    except com\n  }\n"), unclear},
		"file":                           {block("  file /etc/coredns/db.example example.org\n"), unclear},
		"hosts with fallthrough":         {block("  hosts {\n    192.0.2.1 other.example\n    fallthrough\n  }\n"), unclear},
		"hosts before a plain forward":   {block("  hosts {\n    192.0.2.1 google.com\n  }\n  forward . 192.0.2.1\n"), unclear},
		"template for AAAA":              {block("  template ANY AAAA {\n    rcode NXDOMAIN\n  }\n"), unclear},
		"template with braces":           {block("  template IN A com {\n    answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n  }\n"), unclear},
		"a server block for the name":    {block("  cache 30\n") + "dns://COM.:53 {\n  forward . 192.0.2.1\n}\n", unclear},
		"an import":                      {block("  import custom/*.override\n"), unclear},
		"an import of server blocks":     {block("  cache 30\n") + "import custom/*.server\n", unclear},
		"keys on two lines":              {"cluster.local:53,\n.:53 {\n  kubernetes cluster.local\n}\n", unclear},
		"a brace on a line of its own":   {".:53\n{\n  kubernetes cluster.local\n}\n", unclear},
		"a single server without braces": {".:53\nkubernetes cluster.local\nforward . 192.0.2.1 {\n  tls\n}\n", unclear},
		"a variable":                     {".:53 {\n  kubernetes cluster.local\n  forward . {$UPSTREAM}\n}\n", unclear},
		"only comments":                  {"# .:53 {\n# }\n", unclear},
		"a commented forward":            {block("  # forward . 192.0.2.1\n"), none},
		"rewrite with a group":           {block("  rewrite name regex (.*)\\.old\\.example {1}.new.example\n  forward . 192.0.2.1\n"), unclear},
		"a zone that another block has":  {block("  forward . 192.0.2.1\n") + "com:53 {\n  errors\n}\n", unclear},
		"a second zone of kubernetes":    {strings.Replace(block("  forward . 192.0.2.1\n"), "cluster.local", "cluster.local com", 1), unclear},
		"kubernetes may answer it":       {strings.Replace(block("  cache 30\n"), "cluster.local", "cluster.local com", 1), unclear},
		"a comment after a brace":        {strings.Replace(block("  forward . 192.0.2.1 # all\n"), ".:53 {", ".:53 { # DNS", 1), pass},
		"a brace that is not closed":     {block("  forward . 192.0.2.1 {\n"), unclear},
		"options on one line":            {block("  forward . 192.0.2.1 { except com }\n"), unclear},
		"a quote over two lines":         {block("  forward . 192.0.2.1\n  template IN A x {\n    answer \"{{ .Name }} {\n}\"\n  }\n"), unclear},
		"a forward on another port":      {block("  cache 30\n") + ".:5353 {\n  forward . 192.0.2.1\n}\n", unclear},
		"port 53 for the cluster alone":  {"cluster.local {\n  kubernetes\n}\ndns://.:5353 {\n  forward . 192.0.2.1\n}\n", unclear},
		"a forward over TLS alone":       {"cluster.local {\n  kubernetes\n}\ntls://. {\n  forward . 192.0.2.1\n}\n", unclear},
		"two blocks for all names":       {block("  cache 30\n") + "dns://. {\n  forward . 192.0.2.1\n}\n", unclear},
		"OpenShift's":                    {strings.ReplaceAll(block("  forward . /etc/resolv.conf {\n    policy sequential\n  }\n"), ".:53", ".:5353") + "hostname.bind:5353 {\n    chaos\n}\n", pass},
		"kubernetes serves everything":   {".:53 {\n  kubernetes\n  forward . 192.0.2.1\n}\n", unclear},
	} {
		t.Run(name, func(t *testing.T) {
			c := clean(t)
			c.Corefile.Value = test.corefile
			found, got := set(t, c, "external-names"), pass
			switch {
			case len(found.Findings) > 0:
				got = none
			case found.Unchecked != nil:
				got = unclear
				assert.ErrorContains(t, found.Unchecked, "whether google.com resolves: no Corefile shows it: run helm test, or doctor --ask-dns")
			}
			assert.Equal(t, test.want, got)
			assert.Empty(t, set(t, c, "cluster-domain").Findings, "the cluster's own names are right")
		})
	}
}

// Agents ask NodeLocal DNSCache, which may forward names that CoreDNS does not. Without the list of DaemonSets it may be there.
func TestNodeLocalDNSCacheHasACorefileOfItsOwn(t *testing.T) {
	const cached = "NodeLocal DNSCache answers it by a Corefile of its own: run helm test"
	for name, test := range map[string]struct {
		sets Part[[]appsv1.DaemonSet]
		text string
	}{
		"upstream":   {daemonSetOf("kube-system", "node-local-dns", 1), cached},
		"Kubespray":  {daemonSetOf("kube-system", "nodelocaldns", 1), cached},
		"unreadable": {Part[[]appsv1.DaemonSet]{Err: errors.New("forbidden to you")}, "forbidden to you"},
	} {
		t.Run(name, func(t *testing.T) {
			c := clean(t)
			c.Corefile.Value = ".:53 {\n  kubernetes cluster.local\n}\n"
			c.Release.Agent.DNSTestDomains = []string{"google.com", "api.team.svc.other.example"}
			require.NotEmpty(t, set(t, c, "external-names").Findings)
			c.DaemonSets = test.sets
			for _, c.Answers = range []map[string]error{ // of a CoreDNS pod, which other pods do not ask
				nil,
				{"google.com": nil, "api.team.svc.other.example": nil},
				{"google.com": errors.New("REFUSED"), "api.team.svc.other.example": errors.New("REFUSED")},
			} {
				for trap, external := range map[string]string{"external-names": "google.com", "cluster-domain": "api.team.svc.other.example"} {
					found := set(t, c, trap)
					assert.Empty(t, append(found.Findings, found.Warnings...))
					require.EqualError(t, found.Unchecked, "whether "+external+" resolves: "+test.text)
				}
			}
			c.Release.Agent.DNSTestDomains = []string{"kubernetes.default.svc.cluster.local", "kubernetes.default"}
			c.Answers = map[string]error{"kubernetes.default.svc.cluster.local": nil, "kubernetes.default": nil}
			require.NoError(t, set(t, c, "cluster-domain").Unchecked, "the cache forwards the cluster's zone to CoreDNS")
		})
	}
}

// The plugin kubernetes also serves reverse zones, in either form.
func TestClusterDomainIsNoReverseZone(t *testing.T) {
	for _, zones := range []string{"in-addr.arpa cluster.local", "10.96.0.0/16 cluster.local", "fd00::/108 ip6.arpa cluster.local"} {
		c := clean(t)
		c.Corefile.Value = ".:53 {\n  kubernetes " + zones + "\n  forward . 192.0.2.1\n}\n"
		found := set(t, c, "cluster-domain")
		require.NoError(t, found.Unchecked)
		assert.Empty(t, found.Findings, zones)
		assert.Equal(t, "cluster.local (the Corefile)", found.Passed)
	}
}

// A release waits for no Event, and matchConditions may exclude every request.
func TestWebhooksThatOnlyWarn(t *testing.T) {
	for name, edit := range map[string]func(*admissionv1.ValidatingWebhook){
		"events": func(hook *admissionv1.ValidatingWebhook) { hook.Rules[0].Resources = []string{"events"} },
		"pods/status": func(hook *admissionv1.ValidatingWebhook) {
			hook.Rules[0].Operations, hook.Rules[0].Resources = []admissionv1.OperationType{admissionv1.Update}, []string{"pods/status"}
		},
		"pods": func(hook *admissionv1.ValidatingWebhook) {
			hook.MatchConditions = []admissionv1.MatchCondition{{Name: "x"}}
		},
	} {
		for _, gone := range []bool{false, true} {
			c := clean(t)
			edit(hook(c))
			if gone {
				c.Webhooks.Value[0].Backend = Part[Backend]{Absent: true}
			}
			found := set(t, c, "webhooks")
			assert.Empty(t, found.Findings, name)
			require.Len(t, found.Warnings, 1, name)
			assert.Contains(t, found.Warnings[0].Text, name+" with failurePolicy Fail")
		}
	}
}

// A webhook that is called for the agent's status and for the patch of its node blocks that patch.
func TestWebhookForStatusAndNodes(t *testing.T) {
	c := clean(t)
	hook(c).Rules[0].Operations, hook(c).Rules[0].Resources = []admissionv1.OperationType{admissionv1.Update}, []string{"pods/status", "nodes"}
	found := set(t, c, "webhooks")
	require.Len(t, found.Findings, 1)
	assert.Contains(t, found.Findings[0].Text, "is called for nodes with")
}

// One node that meets a requirement proves it possible; another one that is old enough and does not meet it has a reason.
func TestNodesThatLackARequirement(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*Cluster, *corev1.Node)
		want string
	}{
		"old": {func(*Cluster, *corev1.Node) {}, "allocatable nvidia.com/gpu: other nodes meet it, but not lacking"},
		"new": {func(c *Cluster, node *corev1.Node) {
			node.CreationTimestamp.Time = c.Now.Add(-c.Release.Agent.InitialTimeout)
		}, ""},
		"not Ready": {func(_ *Cluster, node *corev1.Node) { node.Status.Conditions = nil }, ""},
		"left out":  {func(_ *Cluster, node *corev1.Node) { node.Labels[label] = "preexisting" }, ""},
		"not for it": {func(c *Cluster, _ *corev1.Node) {
			requires(`{"allocatable":"nvidia.com/gpu","on":{"gpu":"yes"}}`)(&c.Release.Agent)
		}, ""},
		"no node meets it": {func(c *Cluster, _ *corev1.Node) { c.Nodes.Value[0].Status.Allocatable = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := clean(t, requires(`{"allocatable":"nvidia.com/gpu"},{"daemonSet":"gpu/plugin"}`))
			c.DaemonSets = daemonSet(1, tolerate(startup)...)
			c.Now = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
			node := readyNode("lacking")
			node.CreationTimestamp.Time = c.Now.Add(-c.Release.Agent.InitialTimeout - time.Second)
			c.Nodes.Value = []corev1.Node{releasedNode("old"), node}
			c.Nodes.Value[0].Labels["gpu"] = "yes"
			c.Nodes.Value[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
			test.edit(c, &c.Nodes.Value[1])
			var got string
			for _, warning := range set(t, c, "requirements").Warnings {
				got += warning.Text
			}
			assert.Equal(t, test.want, got)
		})
	}
}

// Without a release the plugin's own commands refuse: kubectl's do not.
func TestRemediesWithoutARelease(t *testing.T) {
	c := clean(t)
	c.Release.NotInstalled, c.Agents.Value = true, nil
	c.Nodes.Value[1].Labels[label] = "false"
	addWindows(c)
	assert.Contains(t, set(t, c, "labelled-and-tainted").Findings[0].Remedy, "kubectl label node new node-ready/verified-;")
	assert.Contains(t, set(t, c, "excluded-and-tainted").Findings[0].Remedy, "kubectl taint nodes windows node-ready/unverified-,")
	addTaint(c, failed)
	found := set(t, c, "no-release").Findings
	require.Len(t, found, 3)
	assert.Equal(t, "the node new has the taint node-ready/failed: nothing removes the taint until the release is installed", found[2].Text)
	assert.Contains(t, found[2].Remedy, "kubectl taint nodes NODE node-ready/failed-")
	c.Nodes.Err = errors.New("forbidden to you")
	require.ErrorIs(t, set(t, c, "no-release").Unchecked, c.Nodes.Err)
}

// A webhook whose pods may not be read is no passed check, whatever else is found.
func TestWebhookThatCannotBeRead(t *testing.T) {
	c := clean(t)
	no := errors.New("forbidden to you")
	c.Webhooks.Value[0].Backend = Part[Backend]{Err: no}
	found := set(t, c, "webhooks")
	assert.Empty(t, found.Findings)
	require.ErrorIs(t, found.Unchecked, no)
	var out strings.Builder
	assert.Zero(t, Report(&out, *c, nil))
	assert.Contains(t, out.String(), "SKIP  webhooks              not checked: the webhook tolerating (tolerating.example.com): forbidden to you\n")
	assert.NotContains(t, out.String(), "PASS  webhooks")

	c.Webhooks.Value = append(c.Webhooks.Value, webhook("gone", "gone"))
	out.Reset()
	assert.Equal(t, 1, Report(&out, *c, nil))
	assert.Contains(t, out.String(), "TRAP  webhooks              the webhook gone ")
	assert.Contains(t, out.String(), "SKIP  webhooks ")

	// One that is not called for these pods does not matter.
	c = clean(t)
	c.Webhooks.Value[0].Backend = Part[Backend]{Err: no}
	c.Webhooks.Value[0].Webhook.FailurePolicy = new(admissionv1.Ignore)
	require.NoError(t, set(t, c, "webhooks").Unchecked)
}

// docs/controller.md lists every trap, in the order of the report.
func TestEveryTrapIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/controller.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n| trap | is set if |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var listed, names []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| [^|]+ \\|$").FindAllStringSubmatch(table, -1) {
		listed = append(listed, row[1])
	}
	for _, trap := range traps(Cluster{}) {
		names = append(names, trap.name)
	}
	assert.Equal(t, names, listed)
}

// Braces in the arguments of a plugin do not hide the cluster's domain.
func TestClusterDomainBesideOtherBraces(t *testing.T) {
	for name, line := range map[string]string{
		"AKS":         "template ANY ANY internal.cloudapp.net {\n    match \"^(?:[^.]+\\.){4,}internal\\.cloudapp\\.net\\.$\"\n    rcode NXDOMAIN\n    fallthrough\n  }",
		"a variable":  "forward . {$UPSTREAM}",
		"a group":     "rewrite name regex (.*)\\.old\\.example {1}.new.example",
		"a template":  "template IN A example {\n    answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n  }",
		"an override": "import custom/*.override",
	} {
		t.Run(name, func(t *testing.T) {
			c := clean(t)
			c.Corefile.Value = ".:53 {\n  errors\n  " + line + "\n  kubernetes cluster.local in-addr.arpa ip6.arpa {\n    pods insecure\n  }\n}\nimport custom/*.server\n"
			found := set(t, c, "cluster-domain")
			require.NoError(t, found.Unchecked)
			assert.Empty(t, found.Findings)
			assert.Equal(t, "cluster.local (the Corefile)", found.Passed)
			assert.Error(t, set(t, c, "external-names").Unchecked)
		})
	}
}

// Without a Corefile, or with one whose domain is a variable of CoreDNS's, nothing is known of the names.
func TestNamesWithoutACorefile(t *testing.T) {
	c := clean(t)
	c.Corefile.Value = ""
	for _, trap := range []string{"external-names", "cluster-domain"} {
		assert.ErrorContains(t, set(t, c, trap).Unchecked, "no Corefile", trap)
	}
	c.Corefile.Value = ".:53 {\n kubernetes {$DOMAIN} in-addr.arpa\n forward . /etc/resolv.conf\n}\n"
	found := set(t, c, "cluster-domain")
	require.EqualError(t, found.Unchecked, "no Corefile shows the cluster's domain")
	assert.Empty(t, found.Findings)
}

// A startup taint that nobody has removed keeps workloads away, also from a verified node. Only its owner can remove it.
func TestLeftStartupTaints(t *testing.T) {
	for key, left := range map[string]bool{
		"ebs.csi.aws.com/agent-not-ready": true, "readiness.k8s.io/storage": true, "cni.example.com/agent": true,
		"startup-taint.cluster-autoscaler.kubernetes.io/gpu": true, "ignore-taint.cluster-autoscaler.kubernetes.io/gpu": true,
		"example.com/declared": true, "example.com/of-another-pool": false, "example.com/dedicated": false,
		"startup-taint.cluster-autoscaler.kubernetes.io/ours": false,
		"node.cloudprovider.kubernetes.io/uninitialized":      true, "node.cluster.x-k8s.io/uninitialized": true, "cni.istio.io/not-ready": true,
		"agent.datadoghq.com/not-ready": true, "pd.csi.storage.gke.io/startup": true, "nidhogg.uswitch.com/kube-system.kiam": true,
		"nodetaint/blocking": true, "nodetaint.wish.com/notready": true, "karpenter.sh/unregistered": true,
		"karpenter.sh/disrupted": false, "ToBeDeletedByClusterAutoscaler": false, "node.kubernetes.io/unschedulable": false,
	} {
		t.Run(key, func(t *testing.T) {
			c := clean(t, func(cfg *config.Config) {
				cfg.WaitForTaints = []string{"cni.example.com/", "karpenter.sh/", "ToBe", "node.kubernetes.io/"}
			})
			c.Now = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
			c.Release.Settings.Keys.AlsoRemove = []string{"startup-taint.cluster-autoscaler.kubernetes.io/ours"}
			c.NodePools.Value = []NodePool{nodePool("gated", nil, []corev1.Taint{{Key: "example.com/declared"}}),
				nodePool("other", nil, []corev1.Taint{{Key: "example.com/of-another-pool"}})}
			node := &c.Nodes.Value[0]
			node.Labels[nodePoolLabel] = "gated"
			node.Spec.Taints = []corev1.Taint{taint(key, corev1.TaintEffectNoExecute)}
			node.CreationTimestamp = metav1.NewTime(c.Now.Add(-c.Release.Agent.InitialTimeout))
			assert.Empty(t, c.LeftStartupTaints(), "its owner has time")
			c.Release.Agent.InitialTimeout = time.Minute
			node.CreationTimestamp = metav1.NewTime(c.Now.Add(-10 * time.Minute))
			assert.Empty(t, c.LeftStartupTaints(), "and at least 10 minutes")
			node.CreationTimestamp = metav1.NewTime(c.Now.Add(-3 * time.Hour))
			c.Nodes.Value = c.Nodes.Value[:1]
			found := set(t, c, "left-startup-taints")
			assert.Empty(t, found.Findings)
			if !left {
				assert.Empty(t, found.Warnings)
				return
			}
			require.Len(t, found.Warnings, 1)
			assert.Equal(t, "the node old is 3h old and still has the foreign startup taint "+key+"=true:NoExecute", found.Warnings[0].Text)
		})
	}
}
