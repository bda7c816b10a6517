package status

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startup = "node-ready/unverified"
	failed  = "node-ready/failed"
	label   = "node-ready/verified"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// cluster is the input of a test.
type cluster struct {
	Input
	t *testing.T
}

func newCluster(t *testing.T) *cluster {
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: map[string]string{"kubernetes.io/os": "linux"},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}}}
	keys := nodepatch.Keys{TaintKey: startup, FailedTaintKey: failed, Label: label, LabelValue: "true"}
	return &cluster{t: t, Input: Input{Release: installation.Release{Name: "knr", Namespace: "kube-system", Known: installation.Everything,
		Settings: fleet.Settings{Rules: fleet.NewRules(template, keys), Keys: keys, ConditionType: "NodeVerified",
			NotStartedAfter: time.Hour, SilentAfter: time.Hour}}}}
}

// node adds a ready node with the startup taint, ten minutes old.
func (c *cluster) node(name string) *corev1.Node {
	c.Nodes = append(c.Nodes, corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: ago(10 * time.Minute),
			Labels: map[string]string{"kubernetes.io/os": "linux"}, Annotations: map[string]string{}},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
	return &c.Nodes[len(c.Nodes)-1]
}

// makeVerified does what a release of the node does.
func makeVerified(node *corev1.Node) {
	node.Labels[label], node.Annotations[nodepatch.Annotation], node.Spec.Taints = "true", "{}", nil
}

// pod adds the agent's pod of the node n, two minutes old.
func (c *cluster) pod(state corev1.ContainerState) {
	c.Pods = append(c.Pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-n", Namespace: "kube-system", UID: types.UID("agent-n"), CreationTimestamp: ago(2 * time.Minute)},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: state, ContainerID: "containerd://1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}},
	})
}

func (c *cluster) event(node, reason, message string, at time.Duration) {
	c.Events = append(c.Events, corev1.Event{Reason: reason, Message: message, LastTimestamp: ago(at),
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node}})
}

func (c *cluster) isFalse(node *corev1.Node, reason, message string) {
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: "NodeVerified", Status: corev1.ConditionFalse,
		Reason: reason, Message: message, LastTransitionTime: ago(4 * time.Minute)})
}

func (c *cluster) only() Row {
	rows := Of(c.Input, now).Rows
	require.Len(c.t, rows, 1)
	return rows[0]
}

var (
	running = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	pulling = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}
)

func TestRows(t *testing.T) {
	for name, test := range map[string]struct {
		set   func(c *cluster, node *corev1.Node)
		state fleet.State
		since time.Duration // ago
		// parts of the texts
		reason, next string
	}{
		"no pod yet": {func(*cluster, *corev1.Node) {}, fleet.Unverified, 10 * time.Minute, "NoPod: there is no pod", "check the DaemonSet and its Events"},
		"a label of another value": {func(_ *cluster, n *corev1.Node) { n.Labels[label] = "false" }, fleet.Unverified, 10 * time.Minute,
			"NoPod: the label node-ready/verified=false keeps the agent away", "kubectl node-ready verify n"},
		"an untolerated taint": {func(_ *cluster, n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "example.com/gpu", Effect: corev1.TaintEffectNoExecute})
		}, fleet.Unverified, 10 * time.Minute, "NoPod: the agent does not tolerate the taint example.com/gpu:NoExecute", "add a toleration, or remove the taint"},
		"the image does not come": {func(c *cluster, _ *corev1.Node) { c.pod(pulling) }, fleet.Pending, 10 * time.Minute, "ImagePull: pod kube-system/agent-n", "pull secret"},
		"the sandbox fails, as an Event says": {func(c *cluster, _ *corev1.Node) {
			c.pod(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}})
			c.PodEvents = []corev1.Event{{Reason: "FailedCreatePodSandBox", Message: "no network", LastTimestamp: ago(0),
				InvolvedObject: corev1.ObjectReference{UID: "agent-n"}}}
		}, fleet.Pending, 10 * time.Minute, "SandboxFailed: ", "check the CNI"},
		"the agent runs": {func(c *cluster, _ *corev1.Node) { c.pod(running) }, fleet.InProgress, 10 * time.Minute, "", "wait; its log: kubectl -n kube-system logs agent-n"},
		"kubelet is not ready": {func(c *cluster, n *corev1.Node) { c.pod(running); n.Status.Conditions = nil },
			fleet.InProgress, 10 * time.Minute, "NodeNotReady: ", "check kubelet"},
		"verified again": {func(c *cluster, n *corev1.Node) { makeVerified(n); delete(n.Labels, label); c.pod(running) },
			fleet.InProgress, 2 * time.Minute, "", "wait"},
		"the agent's Event": {func(c *cluster, _ *corev1.Node) {
			c.pod(running)
			c.event("n", "NodeNotVerified", verdict.SinceMessage(now.Add(-3*time.Minute), "dns: google.com: NXDOMAIN (no internet?); service: none"), time.Minute)
		}, fleet.Failed, 3 * time.Minute, "DNSFailed,ServiceFailed: google.com: NXDOMAIN", "config.dnsTestDomains"},
		"the agent's timeout": {func(c *cluster, _ *corev1.Node) {
			c.pod(running)
			c.event("n", "NodeVerificationTimedOut", verdict.TimeoutMessage(5*time.Minute, "network: 10.0.0.1:443: refused (kube-proxy)"), time.Minute)
		}, fleet.Failed, time.Minute, "NetworkFailed: 10.0.0.1:443: refused", "kube-proxy"},
		"a requirement": {func(c *cluster, _ *corev1.Node) {
			c.pod(running)
			c.event("n", "NodeNotVerified", "node: label pool: the node has none (check what provides it)", time.Minute)
		}, fleet.Failed, time.Minute, "NodeFailed: label pool: the node has none", "config.require"},
		"the condition": {func(c *cluster, n *corev1.Node) {
			c.pod(running)
			c.isFalse(n, "APIFailed", "api: forbidden")
			c.event("n", "NodeNotVerified", "dns: x", time.Minute)
		}, fleet.Failed, 4 * time.Minute, "APIFailed: forbidden", "the agent's rights"},
		"the controller's condition": {func(c *cluster, n *corev1.Node) {
			c.pod(running)
			c.isFalse(n, "CrashLoop", "pod kube-system/agent-n: exit code 2")
		}, fleet.Failed, 4 * time.Minute, "CrashLoop: pod kube-system/agent-n: exit code 2", "logs agent-n --previous"},
		"the pod is gone": {func(c *cluster, n *corev1.Node) { c.isFalse(n, "CrashLoop", "pod kube-system/agent-n: exit code 2") },
			fleet.Failed, 4 * time.Minute, "CrashLoop: pod kube-system/agent-n: exit code 2", "kubectl -n kube-system get pods --field-selector spec.nodeName=n"},
		"the controller's Event": {func(c *cluster, _ *corev1.Node) {
			c.event("n", "NodeNotStarted", verdict.ReasonMessage("Silent", "kubelet is gone"), time.Minute)
		},
			fleet.Failed, time.Minute, "Silent: kubelet is gone", "check kubelet"},
		"an Event about an earlier node": {func(c *cluster, _ *corev1.Node) {
			c.pod(running)
			c.event("n", "NodeNotVerified", "dns: x", time.Hour)
		},
			fleet.InProgress, 10 * time.Minute, "", "wait"},
		"cordoned": {func(_ *cluster, n *corev1.Node) { n.Spec.Unschedulable = true }, fleet.Unverified, 10 * time.Minute, "it is cordoned", "check"},
		"cordoned while the agent runs": {func(c *cluster, n *corev1.Node) { c.pod(running); n.Spec.Unschedulable = true },
			fleet.InProgress, 10 * time.Minute, "it is cordoned", "wait"},
		"rechecks fail": {func(c *cluster, n *corev1.Node) {
			c.Settings.Rechecks.Interval = time.Minute
			makeVerified(n)
			c.isFalse(n, "PeersFailed", verdict.RecheckMessage("peers: none answers"))
		}, RecheckFails, 4 * time.Minute, "PeersFailed: none answers", "routes between nodes"},
		"excluded by the node rules": {func(_ *cluster, n *corev1.Node) { n.Labels["kubernetes.io/os"] = "windows" },
			fleet.Unverified, 10 * time.Minute, "the node rules exclude this node", "kubectl node-ready open n"},
		"excluded by the node rules, with the failed taint": {func(c *cluster, n *corev1.Node) {
			c.Settings.FailedTaintValue = "knr"
			n.Labels["kubernetes.io/os"] = "windows"
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: failed, Value: "knr", Effect: corev1.TaintEffectNoSchedule})
		}, fleet.Unverified, 10 * time.Minute, "the node rules exclude this node", "kubectl node-ready open n"},
		"re-tainted": {func(c *cluster, n *corev1.Node) {
			c.Settings.Rechecks.Interval = time.Minute
			makeVerified(n)
			n.Spec.Taints = []corev1.Taint{{Key: failed, Effect: corev1.TaintEffectNoSchedule}}
		}, Retainted, -1, "", "kubectl node-ready open n"},
		"opened": {func(c *cluster, n *corev1.Node) {
			open(c, n)
			c.event("n", "NodeVerificationTimedOut", "not verified within 5m0s: dns: google.com: NXDOMAIN", time.Minute)
			c.event("n", "NodeOpened", "the node takes pods although it is not verified", 30*time.Second)
		}, Opened, time.Minute, "DNSFailed: google.com: NXDOMAIN", "doctor"},
		"opened, without an Event":   {open, Opened, 10 * time.Minute, "", "wait; its log"},
		"opened, and the taint back": {func(c *cluster, n *corev1.Node) { taints := n.Spec.Taints; open(c, n); n.Spec.Taints = taints }, fleet.InProgress, 2 * time.Minute, "", "wait"},
		"started again": {func(_ *cluster, n *corev1.Node) { reboot(n) }, fleet.Verified, -1, "rebooted since it was verified",
			"kubectl node-ready verify n"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			test.set(c, c.node("n"))
			row := c.only()
			assert.Equal(t, test.state, row.State)
			if test.since >= 0 {
				assert.Equal(t, test.since, now.Sub(row.Since))
			} else {
				assert.Zero(t, row.Since)
			}
			assert.Contains(t, row.Reason, test.reason)
			assert.NotRegexp(t, "^:", row.Reason)
			if test.reason == "" {
				assert.Empty(t, row.Reason)
			}
			assert.Contains(t, row.Next, test.next)
			assert.NotContains(t, row.Next, "POD", "the name is known, or there is nothing to read")
			if len(c.Pods) == 0 {
				assert.NotContains(t, row.Next, " logs ")
			}
		})
	}
}

// open is what the node's agent does with onTimeout=open.
func open(c *cluster, node *corev1.Node) {
	c.pod(running)
	node.Annotations[nodepatch.Annotation], node.Spec.Taints = `{"opened":"2026-01-02T03:00:00Z","removed":["node-ready/unverified=true:NoSchedule"]}`, nil
}

func TestOpenedNodesAreCounted(t *testing.T) {
	c := newCluster(t)
	open(c, c.node("n"))
	assert.Equal(t, "1 node: 0 verified, 1 opened", Of(c.Input, now).Summary())
}

// reboot starts a node again that was verified before.
func reboot(node *corev1.Node) {
	makeVerified(node)
	node.Annotations[nodepatch.Annotation], node.Status.NodeInfo.BootID = `{"bootID":"before"}`, "now"
}

// With rechecks the agent proves a node that was started again by itself.
func TestRebootWithRechecks(t *testing.T) {
	c := newCluster(t)
	c.Settings.Rechecks.Interval = time.Minute
	reboot(c.node("n"))
	assert.Empty(t, Of(c.Input, now).Rows)
}

// Nodes that are to stay as they are need no line.
func TestCountedOnly(t *testing.T) {
	c := newCluster(t)
	other := c.node("other")
	other.Labels[label], other.Spec.Taints = "excluded", nil
	found := Of(c.Input, now)
	assert.Empty(t, found.Rows)
	assert.Equal(t, "1 node: 0 verified, 1 excluded", found.Summary())

	plain := c.node("plain")
	plain.Spec.Taints = nil
	assert.Len(t, Of(c.Input, now).Rows, 1, "an agent is to come")
	c.Settings.Workers = true
	found = Of(c.Input, now)
	assert.Empty(t, found.Rows)
	assert.Equal(t, "2 nodes: 0 verified, 1 excluded, 1 not gated", found.Summary())

	plain.Annotations[nodepatch.Annotation] = "{}"
	rows := Of(c.Input, now).Rows
	require.Len(t, rows, 1, "it is verified again")
	assert.NotContains(t, rows[0].Next, " logs ")
}

// With rechecks, too, and although its agent has left something on the node.
func TestPreexistingNodesAreExcluded(t *testing.T) {
	c := newCluster(t)
	rule := corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"preexisting"}}
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{rule}}}}}}}}
	c.Settings.Rules = fleet.NewRules(template, c.Settings.Keys)
	c.Settings.Rechecks = fleet.Rechecks{Interval: time.Minute, FailureThreshold: 3, RecoveryThreshold: 3}
	for _, name := range []string{"plain", "failed"} {
		node := c.node(name)
		node.Labels[label], node.Spec.Taints = "preexisting", nil
	}
	c.isFalse(&c.Nodes[1], "Silent", "pod kube-system/agent runs but is not ready")
	found := Of(c.Input, now)
	assert.Empty(t, found.Rows)
	assert.Equal(t, "2 nodes: 0 verified, 2 excluded", found.Summary())
	c.Nodes[0].Spec.Taints = []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}
	rows := Of(c.Input, now).Rows
	require.Len(t, rows, 1, "nobody removes the taint")
	assert.Equal(t, "kubectl node-ready verify plain", rows[0].Next)
}

func TestPrint(t *testing.T) {
	c := newCluster(t)
	makeVerified(c.node("good"))
	c.event("good", "NodeNotVerified", "dns: x", 3*time.Minute)
	c.event("good", "NodeVerified", "all pass", 2*time.Minute)
	windows := c.node("windows")
	windows.Labels["kubernetes.io/os"], windows.Spec.Taints = "windows", nil
	c.isFalse(c.node("bad"), "DNSFailed", "dns: "+strings.Repeat("x", 200)+"\n")
	var out strings.Builder
	require.NoError(t, Of(c.Input, now).Print(&out, now))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 3)
	assert.Equal(t, "3 nodes: 1 verified, 1 failed, 1 not selected", lines[0])
	assert.Regexp(t, `^NODE +SINCE +STATE +REASON +NEXT STEP$`, lines[1])
	assert.Regexp(t, `^bad +4m +Failed +DNSFailed: x+\.\.\. +check the DNS pods`, lines[2])

	c.Nodes = c.Nodes[:1]
	out.Reset()
	require.NoError(t, Of(c.Input, now).Print(&out, now))
	assert.Equal(t, "1 node: 1 verified\n", out.String())
}

// The example in docs/controller.md is what this cluster prints.
func TestDocumentedExample(t *testing.T) {
	c := newCluster(t)
	c.Settings.Rechecks.Interval = time.Minute
	makeVerified(c.node("node1"))
	c.node("node2")
	c.event("node2", "NodeNotVerified", "since 2026-01-02T02:59:05Z: dns: google.com: NXDOMAIN from name server 10.96.0.10:53 (check the name)", time.Minute)
	gpu := c.node("node3")
	gpu.Spec.Taints = append(gpu.Spec.Taints, corev1.Taint{Key: "gpu", Effect: corev1.TaintEffectNoExecute})
	retainted := c.node("node4")
	makeVerified(retainted)
	retainted.Spec.Taints = []corev1.Taint{{Key: failed, Effect: corev1.TaintEffectNoSchedule}}
	c.isFalse(retainted, "PeersFailed", verdict.RecheckMessage("peers: none of 8 agents on other nodes answers (check the CNI)"))
	var out strings.Builder
	require.NoError(t, Of(c.Input, now).Print(&out, now))
	text, err := os.ReadFile("../../../../docs/controller.md")
	require.NoError(t, err)
	assert.True(t, strings.Contains(string(text), "```\n"+out.String()+"```\n"), out.String())
}

// withOther excludes the pools gpu and manual from the release, and adds a release for gpu.
func (c *cluster) withOther() {
	rulesOf := func(operator corev1.NodeSelectorOperator, pools ...string) fleet.Rules {
		return fleet.NewRules(&corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: operator, Values: pools}}}}}}},
		}}, c.Settings.Keys)
	}
	c.Settings.Rechecks.Interval = time.Minute
	gpu := c.Release
	gpu.Name, gpu.Settings.Rules, gpu.Settings.FailedTaintValue = "gpu", rulesOf(corev1.NodeSelectorOpIn, "gpu"), "gpu-kube-node-ready"
	c.Settings.Rules, c.Settings.FailedTaintValue = rulesOf(corev1.NodeSelectorOpNotIn, "gpu", "manual"), "knr"
	c.Others = []installation.Release{gpu}
}

func TestOtherReleases(t *testing.T) {
	const flags = " --namespace kube-system --release knr"
	retainted := func(value string) func(*cluster, *corev1.Node) {
		return func(_ *cluster, n *corev1.Node) {
			makeVerified(n)
			n.Labels["pool"], n.Spec.Taints = "cpu", []corev1.Taint{{Key: failed, Value: value, Effect: corev1.TaintEffectNoSchedule}}
		}
	}
	inPool := func(pool string) func(*cluster, *corev1.Node) {
		return func(_ *cluster, n *corev1.Node) { n.Labels["pool"] = pool }
	}
	unseen := func(change func(*cluster, *corev1.Node)) func(*cluster, *corev1.Node) {
		return func(c *cluster, n *corev1.Node) {
			c.Others, c.Unseen = nil, errors.New("the release kube-system/gpu: one\ntwo")
			change(c, n)
		}
	}
	const isUnseen = "another release may remove the taint: the release kube-system/gpu: one; two"
	for name, test := range map[string]struct {
		set     func(*cluster, *corev1.Node)
		summary string
		next    string // "": no row
	}{
		"a node that the other one verifies":     {inPool("gpu"), "1 node: 0 verified, 1 not selected", ""},
		"a node of no release":                   {inPool("manual"), "1 node: 0 verified, 1 unverified", "to remove the taint now: kubectl node-ready open n" + flags},
		"re-tainted by this one":                 {retainted("knr"), "1 node: 0 verified, 1 re-tainted", "to remove the taint now: kubectl node-ready open n" + flags},
		"re-tainted by the other one":            {retainted("gpu-kube-node-ready"), "1 node: 0 verified, 1 re-tainted", "left to the release gpu: kubectl node-ready --namespace kube-system --release gpu"},
		"a node that an unseen release may have": {unseen(inPool("gpu")), "1 node: 0 verified, 1 unverified", isUnseen},
		"that an unseen release may re-taint":    {unseen(retainted("gpu-kube-node-ready")), "1 node: 0 verified, 1 re-tainted", isUnseen},
		"re-tainted by this one, one is unseen":  {unseen(retainted("knr")), "1 node: 0 verified, 1 re-tainted", "to remove the taint now: kubectl node-ready open n" + flags},
		"to be verified again": {func(_ *cluster, n *corev1.Node) { n.Labels[label] = "false" }, "1 node: 0 verified, 1 unverified",
			"kubectl node-ready verify n" + flags},
		"started again": {func(c *cluster, n *corev1.Node) { c.Settings.Rechecks.Interval = 0; reboot(n) }, "1 node: 1 verified",
			"kubectl node-ready verify n" + flags},
		"DNS fails": {func(c *cluster, n *corev1.Node) { c.isFalse(n, "DNSFailed", "dns: x") }, "1 node: 0 verified, 1 failed",
			"check the DNS pods and config.dnsTestDomains: kubectl node-ready doctor" + flags},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.withOther()
			test.set(c, c.node("n"))
			found := Of(c.Input, now)
			assert.Equal(t, test.summary, found.Summary())
			if test.next == "" {
				assert.Empty(t, found.Rows)
				return
			}
			require.Len(t, found.Rows, 1)
			assert.Equal(t, test.next, found.Rows[0].Next)
		})
	}
}
