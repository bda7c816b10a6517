package release

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// pools are the two releases of hack/examples/pools. Each pool has a node with a kubelet, and one that waits forever because no
// kubelet starts its agent.
type pools struct {
	*harness.Suite
	taint, condition map[string]string // by release
}

const (
	gpu     = "gpu"
	gpuNode = "pools-gpu"
)

// Two releases verify the nodes of their own pools. Uninstalling one of them with the block of the documentation does not change the
// other pool, even with the same keys: its waiting node stays closed, and its verified node keeps the label and the condition.
func TestTwoReleases(t *testing.T) {
	for keys, values := range map[string][]string{
		"with keys of their own": nil,
		"with the same keys": {"config.taintKey=" + harness.Taint, "config.failedTaintKey=node-ready/failed",
			"config.conditionType=" + harness.ConditionType},
	} {
		t.Run(keys, func(t *testing.T) {
			p := &pools{Suite: harness.Start(t), taint: map[string]string{harness.Name: harness.Taint, gpu: "node-ready/gpu-unverified"},
				condition: map[string]string{harness.Name: harness.ConditionType, gpu: "GPUNodeVerified"}}
			isShared := values != nil
			if isShared {
				p.taint[gpu], p.condition[gpu] = harness.Taint, harness.ConditionType
			}
			p.NoError(p.Cluster.Undeploy(p.Ctx))
			p.NoError(p.Cluster.Reset(p.Ctx, node))
			p.Undo(func(ctx context.Context) error { return p.Cluster.Reset(ctx, node) })
			p.DeleteCondition(node)
			p.addNode()
			p.Break("meta l4proto { tcp, udp } th dport 53 drop")
			p.Gate(node)
			p.install(harness.Name, "values.yaml")
			p.install(gpu, "values-gpu.yaml", values...)

			p.verify()
			p.waitingNode(harness.Name, "general")
			p.waitingNode(gpu, gpu)
			out := p.uninstall(harness.Name)
			p.NotContains(p.keys("waiting-general"), p.taint[harness.Name])
			p.False(p.isTrue(node, harness.Name) && !isShared, "the condition of the release is left")
			p.True(harness.Verified(p.Node(node)), "a verified node serves on")
			p.Contains(p.keys("waiting-gpu"), p.taint[gpu], "opened without proof")
			p.Equal(isShared, strings.Contains(out, "waiting-gpu "+p.taint[gpu]))
			p.Equal("true", p.Node(gpuNode).Labels[harness.Label])
			p.True(p.isTrue(gpuNode, gpu), "the condition of the other release is lost")

			p.gateGPU()
			p.AwaitNode(gpuNode, p.verified(gpu))
			p.uninstall(gpu)
			p.NotContains(p.keys("waiting-gpu"), p.taint[gpu])
			p.False(p.isTrue(gpuNode, gpu))
			p.False(p.isTrue(node, harness.Name), "the last release with the condition removes it everywhere")
		})
	}
}

// addNode adds the node of the pool gpu, which registers with the pool's label and startup taint.
func (p *pools) addNode() {
	p.T.Helper()
	p.Undo(func(ctx context.Context) error { return p.Cluster.DeleteNodes(ctx, gpuNode) })
	_, err := p.Cluster.Run(p.Ctx, "", "env", "LABELS=example.com/pool=gpu", "REGISTER_TAINTS="+p.taint[gpu]+"=true:NoSchedule",
		filepath.Join(p.Cluster.Root, "hack", "cluster", "cluster"), "add-node", gpuNode)
	p.NoError(err)
}

func (p *pools) install(release, values string, more ...string) {
	p.T.Helper()
	p.Undo(func(ctx context.Context) error {
		_, err := p.Cluster.Run(ctx, "", p.Cluster.Tool("helm"), "uninstall", release, "--namespace", harness.Namespace,
			"--ignore-not-found", "--wait")
		return err
	})
	_, err := p.Cluster.Run(p.Ctx, "", p.Cluster.Tool("helm"), append([]string{"install", release, "chart", "--namespace", harness.Namespace,
		"--values", "hack/examples/pools/" + values}, harness.Set(append(more, "config.condition=always")...)...)...)
	p.NoError(err)
}

// verify asserts that each node has an agent of its own release only, and that this one releases it.
func (p *pools) verify() {
	p.T.Helper()
	for name, release := range map[string]string{node: harness.Name, gpuNode: gpu} {
		p.AwaitNode(name, func(n *corev1.Node) bool {
			found := harness.Condition(n, corev1.NodeConditionType(p.condition[release]))
			return found != nil && found.Status == corev1.ConditionFalse
		})
		p.Equal([]string{release}, agents(p.Suite, name))
	}
	p.Repair()
	p.Kubectl("", "patch", "node", gpuNode, "--subresource=status", "-p",
		`{"status":{"capacity":{"nvidia.com/gpu":"1"},"allocatable":{"nvidia.com/gpu":"1"}}}`)
	for name, release := range map[string]string{node: harness.Name, gpuNode: gpu} {
		now, _ := p.AwaitNode(name, p.verified(release))
		p.Contains(now.Annotations[harness.Annotation], p.taint[release])
		for other, condition := range p.condition {
			isOwn := condition == p.condition[release]
			p.Equal(isOwn, harness.Condition(now, corev1.NodeConditionType(condition)) != nil, "%s on %s", other, name)
		}
	}
}

func (p *pools) verified(release string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		found := harness.Condition(n, corev1.NodeConditionType(p.condition[release]))
		return n.Labels[harness.Label] == "true" && !harness.HasTaint(n, p.taint[release]) &&
			found != nil && found.Status == corev1.ConditionTrue
	}
}

func (p *pools) isTrue(name, release string) bool {
	p.T.Helper()
	found := harness.Condition(p.Node(name), corev1.NodeConditionType(p.condition[release]))
	return found != nil && found.Status == corev1.ConditionTrue
}

// agents lists the releases that have an agent's pod for a node, scheduled or not.
func agents(s *harness.Suite, name string) (releases []string) {
	s.T.Helper()
	pods, err := s.Cluster.Kube.CoreV1().Pods("").List(s.Ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=agent"})
	s.NoError(err)
	for _, pod := range pods.Items {
		terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if slices.Equal(terms[0].MatchFields[0].Values, []string{name}) {
			releases = append(releases, pod.Labels["app.kubernetes.io/instance"])
		}
	}
	slices.Sort(releases)
	return releases
}

// waitingNode adds a node without a kubelet to a pool, and waits for the pod of the pool's release.
func (p *pools) waitingNode(release, pool string) {
	p.T.Helper()
	name := "waiting-" + pool
	p.Apply(fmt.Sprintf("{apiVersion: v1, kind: Node, "+
		"metadata: {name: %s, labels: {kubernetes.io/os: linux, example.com/pool: %s}}, "+
		"spec: {taints: [{key: %s, value: x, effect: NoSchedule}]}}", name, pool, p.taint[release]))
	p.Until(func() (bool, error) { return len(agents(p.Suite, name)) == 1, nil }, "no agent for %s", name)
	p.Equal([]string{release}, agents(p.Suite, name))
}

func (p *pools) keys(name string) (keys []string) {
	p.T.Helper()
	for _, taint := range p.Node(name).Spec.Taints {
		keys = append(keys, taint.Key)
	}
	return keys
}

// gateGPU puts the node back into the state in which it registered.
func (p *pools) gateGPU() {
	p.T.Helper()
	p.Kubectl("", "taint", "node", gpuNode, p.taint[gpu]+"=true:NoSchedule")
	p.Kubectl("", "label", "node", gpuNode, harness.Label+"-")
}

// uninstall runs the blocks of the documentation.
func (p *pools) uninstall(release string) string {
	p.T.Helper()
	const page = "docs/operations.md"
	return p.Bash(strings.Replace(p.Block(page, "uninstall", "sh"), "release="+harness.Name, "release="+release, 1) +
		p.Block(page, "uninstall-condition", "sh"))
}
