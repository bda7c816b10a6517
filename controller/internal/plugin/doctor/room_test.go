package doctor

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func resources(pods, cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(pods), corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory)}
}

// empty is a cluster with one plain node before the installation. Its agent will request 5m and 16Mi.
func empty(t *testing.T) *Cluster {
	c := clean(t)
	c.Release.NotInstalled, c.Agents.Value = true, nil
	requests := resources("1", "5m", "16Mi")
	delete(requests, corev1.ResourcePods)
	c.Release.Template.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
	plain := readyNode("plain")
	plain.Status.Allocatable = resources("10", "2", "1Gi")
	c.Nodes.Value = []corev1.Node{plain}
	c.Used.Value = map[string]corev1.ResourceList{"plain": resources("9", "1995m", "1008Mi")}
	return c
}

// The agents come to the existing nodes with a high priority: on a full one a workload must go.
func TestRoom(t *testing.T) {
	const warning = "the node plain has no room for the agent "
	for name, test := range map[string]struct {
		change  func(c *Cluster, node *corev1.Node)
		warning string // "": none
	}{
		"exactly enough":    {func(*Cluster, *corev1.Node) {}, ""},
		"no pod":            {func(c *Cluster, _ *corev1.Node) { c.Used.Value["plain"] = resources("10", "0", "0") }, warning + "(pods: 1 needed, 0 free)"},
		"not enough CPU":    {func(c *Cluster, _ *corev1.Node) { c.Used.Value["plain"] = resources("9", "1996m", "0") }, warning + "(cpu: 5m needed, 4m free)"},
		"overcommitted":     {func(c *Cluster, _ *corev1.Node) { c.Used.Value["plain"] = resources("9", "3", "1009Mi") }, warning + "(cpu: 5m needed, -1 free)"},
		"not enough memory": {func(c *Cluster, _ *corev1.Node) { c.Used.Value["plain"] = resources("9", "0", "1009Mi") }, warning + "(memory: 16Mi needed, 15Mi free)"},
		"no pods yet":       {func(c *Cluster, _ *corev1.Node) { clear(c.Used.Value) }, ""},
		"too small at all": {func(c *Cluster, n *corev1.Node) {
			clear(c.Used.Value)
			n.Status.Allocatable = resources("0", "2", "1Gi")
		}, warning + "(pods: 1 needed, 0 free)"},
		"nothing is known of it": {func(_ *Cluster, n *corev1.Node) { n.Status.Allocatable = nil }, ""},
		"left out by the label": {func(c *Cluster, n *corev1.Node) {
			c.Used.Value["plain"] = resources("10", "2", "1Gi")
			n.Labels[label] = "preexisting"
		}, ""},
		"left out by the node rules": {func(c *Cluster, n *corev1.Node) {
			c.Used.Value["plain"] = resources("10", "2", "1Gi")
			n.Spec.Taints = []corev1.Taint{taint("example.com/only", corev1.TaintEffectNoExecute)}
		}, ""},
		"cordoned: a DaemonSet comes all the same": {func(c *Cluster, n *corev1.Node) {
			c.Used.Value["plain"] = resources("10", "0", "0")
			n.Spec.Unschedulable = true
		}, warning + "(pods: 1 needed, 0 free)"},
		"installed already": {func(c *Cluster, _ *corev1.Node) {
			c.Used.Value["plain"] = resources("10", "2", "1Gi")
			c.Release.NotInstalled = false
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := empty(t)
			test.change(c, &c.Nodes.Value[0])
			found := set(t, c, "room")
			assert.Empty(t, found.Findings, "it locks nothing")
			if test.warning == "" {
				assert.Empty(t, found.Warnings)
				assert.NotEmpty(t, found.Detail)
				return
			}
			require.Len(t, found.Warnings, 1)
			assert.Equal(t, test.warning+": the scheduler preempts a workload there", found.Warnings[0].Text)
			assert.Contains(t, found.Warnings[0].Remedy, `leave existing nodes out: the README's section "Install" has the command`)
		})
	}
}

// Pods are read in pages, and those that have ended hold nothing.
func TestReadRoom(t *testing.T) {
	objects := slices.DeleteFunc(stored(t), func(o client.Object) bool { return o.GetName() == "new" }) // the gated node
	node := objects[0].(*corev1.Node)
	delete(node.Labels, label)
	node.Status.Allocatable = resources("3", "1", "1Gi") // two pods run on it, and one has ended
	of := clean(t).Release
	of.NotInstalled = true
	c := newReader(t, func(string) error { return nil }, objects...).Read(t.Context(), of)
	require.NoError(t, c.Used.Err)
	var pods int64
	for used := range maps.Values(c.Used.Value) {
		pods += used.Pods().Value()
	}
	running := 0
	for _, object := range objects {
		if pod, isPod := object.(*corev1.Pod); isPod && pod.Status.Phase != corev1.PodFailed {
			running++
		}
	}
	assert.EqualValues(t, running, pods)
	var out strings.Builder
	assert.Zero(t, Report(&out, c, nil), "a warning is no trap")
	assert.NotContains(t, out.String(), "WARN  room")
	node.Status.Allocatable = resources("2", "1", "1Gi")
	c = newReader(t, func(string) error { return nil }, append([]client.Object{node}, objects[1:]...)...).Read(t.Context(), of)
	out.Reset()
	assert.Zero(t, Report(&out, c, nil), "a warning is no trap")
	assert.Contains(t, out.String(), "WARN  room                  the node old has no room for the agent (pods: 1 needed, 0 free): ")
}
