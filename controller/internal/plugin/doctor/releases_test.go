package doctor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
	"github.com/imunhatep/kube-node-ready/internal/config"
)

const poolLabel = "example.com/pool"

// pools returns a cluster with two releases: the one that doctor looks at is for every pool but gpu and manual, the other one for gpu.
func pools(t *testing.T) *Cluster {
	c := clean(t)
	c.Release.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: poolLabel, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"gpu", "manual"}}}}}}}}
	gpu := clean(t).Release
	gpu.Name, gpu.Fullname, gpu.Settings.FailedTaintValue = "gpu", "gpu-kube-node-ready", "gpu-kube-node-ready"
	gpu.Template.Spec.NodeSelector = map[string]string{poolLabel: "gpu"}
	gpu.Template.Spec.Tolerations = append(gpu.Template.Spec.Tolerations, tolerate("nvidia.com/gpu")...)
	for _, of := range []*installation.Release{&c.Release, &gpu} {
		of.Settings.Rules = fleet.NewRules(of.Template, of.Settings.Keys)
	}
	c.Release.Others = []installation.Release{gpu}
	return c
}

// withKeys gives the other release keys of its own.
func withKeys(c *Cluster, startup, failed string) {
	gpu := &c.Release.Others[0]
	gpu.Agent.TaintKey, gpu.Settings.Keys.TaintKey = startup, startup
	gpu.Agent.FailedTaintKey, gpu.Settings.Keys.FailedTaintKey = failed, failed
	gpu.Settings.Rules = fleet.NewRules(gpu.Template, gpu.Settings.Keys)
}

// isUnseen makes the other release one that could not be read.
func isUnseen(c *Cluster) {
	c.Release.Others, c.Release.Unseen = nil, errors.New("the release kube-system/gpu: forbidden to you")
}

// inPool adds a node.
func (c *Cluster) inPool(node corev1.Node, pool string) *corev1.Node {
	node.Labels[poolLabel] = pool
	c.Nodes.Value = append(c.Nodes.Value, node)
	return &c.Nodes.Value[len(c.Nodes.Value)-1]
}

func retainted(controller string) corev1.Node {
	node := releasedNode("n")
	node.Spec.Taints = []corev1.Taint{{Key: failed, Value: controller, Effect: corev1.TaintEffectNoSchedule}}
	return node
}

// docs/platforms.md, "One release for each pool": what another release does to its nodes is no trap, and what no release does is one.
func TestTwoReleases(t *testing.T) {
	joined := func(name string, taints ...corev1.Taint) corev1.Node {
		return readyNode(name, append(taints, taint(startup, corev1.TaintEffectNoSchedule))...)
	}
	for name, test := range map[string]struct {
		trap   string
		change func(c *Cluster)
		found  string // "": nothing
		remedy string
	}{
		"a node that the other one verifies": {"excluded-and-tainted", func(c *Cluster) { c.inPool(joined("n"), "gpu") }, "", ""},
		"a node of no release": {"excluded-and-tainted", func(c *Cluster) { c.inPool(joined("n"), "manual") }, "the node n has the startup taint",
			"kubectl node-ready open n --namespace kube-system --release kube-node-ready, and let"},
		"a node whose key the other one does not remove": {"excluded-and-tainted", func(c *Cluster) {
			withKeys(c, "gpu/unverified", failed)
			c.inPool(joined("n"), "gpu")
		}, "the node n has the startup taint", "open n"},
		"a key that only the other one has": {"excluded-and-tainted", func(c *Cluster) {
			withKeys(c, "gpu/unverified", "gpu/failed")
			c.inPool(readyNode("n", taint("gpu/unverified", corev1.TaintEffectNoSchedule)), "manual")
		}, "", ""},
		"labelled, of the other one": {"labelled-and-tainted", func(c *Cluster) { c.inPool(joined("n"), "gpu").Labels[label] = "true" }, "", ""},
		"labelled, of this one": {"labelled-and-tainted", func(c *Cluster) { c.inPool(joined("n"), "cpu").Labels[label] = "true" },
			"the node n has the label", "kubectl node-ready verify n --namespace kube-system --release kube-node-ready; "},
		"re-tainted by the other one":                   {"failed-taint", func(c *Cluster) { c.inPool(retainted("gpu-kube-node-ready"), "gpu") }, "", ""},
		"re-tainted by the other one, which was for it": {"failed-taint", func(c *Cluster) { c.inPool(retainted("gpu-kube-node-ready"), "cpu") }, "", ""},
		"re-tainted by a controller that is gone": {"failed-taint", func(c *Cluster) { c.inPool(retainted("gone"), "cpu") },
			"the node n has the taint node-ready/failed", "kubectl node-ready verify n --namespace"},
		"re-tainted, and of no release": {"failed-taint", func(c *Cluster) { c.inPool(retainted("gone"), "manual") },
			"the node n has the taint node-ready/failed", "kubectl node-ready open n --namespace"},
		"a foreign taint that the other one tolerates": {"foreign-taints", func(c *Cluster) {
			c.inPool(joined("n", taint("nvidia.com/gpu", corev1.TaintEffectNoExecute)), "gpu")
		}, "", ""},
		"a foreign taint on a node of this one": {"foreign-taints", func(c *Cluster) {
			c.inPool(joined("n", taint("nvidia.com/gpu", corev1.TaintEffectNoExecute)), "cpu")
		}, "the node n has the startup taint and nvidia.com/gpu", "add a toleration"},
		"a requirement that nodes of the other one do not meet": {"requirements", func(c *Cluster) {
			requires(`{"condition":"Net=False"}`)(&c.Release.Agent)
			c.Nodes.Value = nil
			c.inPool(releasedNode("n"), "gpu")
		}, "", ""},
		"a requirement that no node of this one meets": {"requirements", func(c *Cluster) {
			requires(`{"condition":"Net=False"}`)(&c.Release.Agent)
			c.Nodes.Value = nil
			c.inPool(releasedNode("n"), "cpu")
		}, "condition Net=False: n, for example", ""},
		"DNS runs on nodes that the other one verifies, and tolerates that": {"dns-behind-gate", func(c *Cluster) {
			withKeys(c, "gpu/unverified", "gpu/failed")
			c.inPool(readyNode("n", taint("gpu/unverified", corev1.TaintEffectNoSchedule)), "gpu")
			c.DNS.Value.Pods = []corev1.Pod{podOn("n", tolerate("gpu/unverified")...)}
		}, "", ""},
		"DNS runs on nodes that the other one verifies": {"dns-behind-gate", func(c *Cluster) {
			withKeys(c, "gpu/unverified", "gpu/failed")
			node := c.inPool(releasedNode("n"), "gpu")
			node.Annotations["node-ready/verification"] = `{"removed":["gpu/unverified=true:NoSchedule"]}`
			c.DNS.Value.Pods = []corev1.Pod{podOn("n")}
		}, "no node that joins without the startup taint", "let the DNS pods tolerate node-ready/unverified"},
	} {
		t.Run(name, func(t *testing.T) {
			c := pools(t)
			require.Empty(t, set(t, c, test.trap).Findings, "before the change")
			test.change(c)
			found := set(t, c, test.trap)
			require.NoError(t, found.Unchecked)
			if test.found == "" {
				assert.Empty(t, found.Findings)
				return
			}
			require.Len(t, found.Findings, 1)
			assert.Contains(t, found.Findings[0].Text, test.found)
			assert.Contains(t, found.Findings[0].Remedy, test.remedy)
		})
	}
}

// A node that may belong to an unreadable release is not a trap, and no advice says to open it. The release's own nodes are judged.
func TestUnseenRelease(t *testing.T) {
	for name, test := range map[string]struct {
		trap string
		node corev1.Node
		pool string
		find bool
	}{
		"excluded":                    {"excluded-and-tainted", readyNode("n", taint(startup, corev1.TaintEffectNoSchedule)), "gpu", false},
		"labelled":                    {"labelled-and-tainted", labelledNode("n"), "gpu", false},
		"labelled, of this release":   {"labelled-and-tainted", labelledNode("n"), "cpu", true},
		"re-tainted":                  {"failed-taint", retainted("gpu-kube-node-ready"), "gpu", false},
		"re-tainted, of this release": {"failed-taint", retainted("gpu-kube-node-ready"), "cpu", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := pools(t)
			isUnseen(c)
			c.inPool(test.node, test.pool)
			c.inPool(test.node, test.pool).Name = "m"
			found := set(t, c, test.trap)
			if test.find {
				require.NoError(t, found.Unchecked)
				assert.Len(t, found.Findings, 2)
				return
			}
			assert.Empty(t, found.Findings)
			require.EqualError(t, found.Unchecked, "the node n, for example, may be of another release: the release kube-system/gpu: forbidden to you")
			var out strings.Builder
			assert.Zero(t, Report(&out, *c, nil), out.String())
			assert.NotContains(t, out.String(), "node-ready open")
		})
	}
	t.Run("nothing is installed", func(t *testing.T) {
		c := pools(t)
		isUnseen(c)
		c.Release.NotInstalled, c.Agents.Value = true, nil
		found := set(t, c, "no-release")
		assert.Empty(t, found.Findings)
		require.ErrorIs(t, found.Unchecked, c.Release.Unseen)
	})
}

func labelledNode(name string) corev1.Node {
	node := readyNode(name, taint(startup, corev1.TaintEffectNoSchedule))
	node.Labels[label] = "true"
	return node
}

// doctor looks at one release, and names the others.
func TestOtherReleasesAreNamed(t *testing.T) {
	found := set(t, pools(t), "no-release")
	assert.Equal(t, []string{"for the nodes of the release gpu: kubectl node-ready doctor --namespace kube-system --release gpu"}, found.Notes)
	assert.Empty(t, set(t, clean(t), "no-release").Notes)
}

// A NodePool of another release declares that release's startup taint, and must not declare this one's.
func TestNodePoolOfAnotherRelease(t *testing.T) {
	gpu := nodePool("gpu", []corev1.Taint{taint("nvidia.com/gpu", corev1.TaintEffectNoExecute)}, []corev1.Taint{taint("gpu/unverified", corev1.TaintEffectNoSchedule)})
	c := pools(t)
	withKeys(c, "gpu/unverified", failed)
	c.NodePools.Value = append(c.NodePools.Value, gpu)
	found := set(t, c, "karpenter")
	assert.Empty(t, found.Warnings)
	assert.Equal(t, "each NodePool declares the startup taint of a release under startupTaints", found.Passed)
	c.Release.Others = nil
	assert.Len(t, set(t, c, "karpenter").Warnings, 1, "no other release has that key")

	// With the same key it cannot be seen whose nodes a NodePool has.
	gpu.Spec.Template.Spec.StartupTaints[0].Key = startup
	for name, change := range map[string]func(*Cluster){"another release": func(*Cluster) {}, "an unseen one": isUnseen} {
		c = pools(t)
		change(c)
		c.NodePools.Value = append(c.NodePools.Value, gpu)
		found = set(t, c, "foreign-taints")
		assert.Empty(t, found.Findings, name)
		require.Len(t, found.Warnings, 1, name)
		assert.Contains(t, found.Warnings[0].Text, "nodes of the NodePool gpu join with the startup taint and nvidia.com/gpu")
	}
	c.Release.Others, c.Release.Unseen = nil, nil
	assert.Len(t, set(t, c, "foreign-taints").Findings, 1, "this is the only release")
}

// Another release's startup taint is removed by that release.
func TestStartupTaintOfAnotherReleaseIsNotForeign(t *testing.T) {
	const key = "startup-taint.cluster-autoscaler.kubernetes.io/gpu"
	c := pools(t)
	c.inPool(readyNode("n", taint(key, corev1.TaintEffectNoSchedule)), "gpu").CreationTimestamp.Time = c.Now.Add(-time.Hour)
	require.Len(t, c.LeftStartupTaints(), 1)
	withKeys(c, key, failed)
	assert.Empty(t, c.LeftStartupTaints())
}

// The agents of every release are read: a node where one of them runs is not stuck.
func TestAgentOfAnotherRelease(t *testing.T) {
	c := pools(t)
	c.Release.Others[0].Template.Labels = map[string]string{"app.kubernetes.io/instance": "gpu"}
	pod := podOn("n")
	pod.Labels = c.Release.Others[0].Template.Labels
	found := Read(t.Context(), newReader(t, func(string) error { return nil }, &pod), c.Release)
	assert.Len(t, found.Agents.Value, 1)
	c.Agents = found.Agents
	c.inPool(labelledNode("n"), "cpu")
	assert.Empty(t, set(t, c, "labelled-and-tainted").Findings)
	c.inPool(labelledNode("m"), "cpu")
	assert.Len(t, set(t, c, "labelled-and-tainted").Findings, 1)
}

// Helm releases in two namespaces may have the same name. The names of their policies differ.
func TestPoliciesOfAReleaseOfTheSameName(t *testing.T) {
	c := clean(t)
	policies := []string{"kube-node-ready", "kube-node-ready-events"}
	addPolicies(c, "other-kube-node-ready", "other-kube-node-ready-events")
	var objects []client.Object
	for i := range c.Policies.Value {
		objects = append(objects, &c.Policies.Value[i])
		if name := c.Bindings.Value[i].Name; slices.Contains(policies, name) {
			objects = append(objects, &c.Bindings.Value[i])
		}
	}
	adds := &admissionv1.MutatingAdmissionPolicy{ObjectMeta: c.Policies.Value[0].ObjectMeta}
	adds.Name = "other-kube-node-ready-startup-taint"
	objects = append(objects, adds)
	reader := newReader(t, func(string) error { return nil }, objects...)
	found := Read(t.Context(), reader, c.Release)
	assert.False(t, found.Adds.Value, "the other one adds its own taint")
	assert.Empty(t, set(t, &found, "policy").Findings)

	c.Release.Fullname = "other-kube-node-ready"
	found = Read(t.Context(), reader, c.Release)
	assert.True(t, found.Adds.Value)
	assert.Len(t, set(t, &found, "policy").Findings, 2, "they have no bindings")
}

// Nodes that the other release may gate later are only a warning for the pods on them, as this release's are.
func TestNodesThatAnotherReleaseMayGate(t *testing.T) {
	c := pools(t)
	withKeys(c, "gpu/unverified", "gpu/failed")
	c.inPool(readyNode("n"), "gpu")
	c.DNS.Value.Pods = []corev1.Pod{podOn("n")}
	found := set(t, c, "dns-behind-gate")
	assert.Empty(t, found.Findings)
	assert.Len(t, found.Warnings, 1)
	c.GateAll = true
	assert.Empty(t, set(t, c, "dns-behind-gate").Findings, "it is about the nodes of this release")
	c.DNS.Value.Pods = []corev1.Pod{podOn("n", tolerate("gpu/unverified")...)}
	assert.Empty(t, set(t, c, "dns-behind-gate").Warnings, "they run there all the same")
	c.Release.Others[0].Agent.OnTimeout = []string{config.OnTimeoutTaint}
	assert.Len(t, set(t, c, "dns-behind-gate").Warnings, 1)
}
