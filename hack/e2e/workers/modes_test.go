package workers

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// A release of Helm's goes from the DaemonSet to controller mode and back. No verified node is touched, nodes that wait for a foreign
// taint during the change are verified by the mode that runs then, and nothing of the other mode is left.
func TestModes(t *testing.T) {
	s := start(t)
	helm := func(ctx context.Context, args ...string) error {
		_, err := s.Cluster.Run(ctx, "", s.Cluster.Tool("helm"), append(args, "--namespace", harness.Namespace)...)
		return err
	}
	s.Undo(func(ctx context.Context) error {
		if err := helm(ctx, "uninstall", harness.Name, "--ignore-not-found", "--wait"); err != nil {
			return err
		}
		if err := s.deleteLease(ctx); err != nil {
			return err
		}
		return s.Cluster.Deploy(ctx, values...)
	})
	s.NoError(s.Cluster.Undeploy(s.Ctx, values...))
	s.NoError(s.deleteLease(s.Ctx))
	const foreign = "foreign/agent"
	upgrade := func(mode string) {
		t.Helper()
		args := []string{"upgrade", "--install", harness.Name, "chart"}
		s.NoError(helm(s.Ctx, append(args, harness.Set(append(values, "deploymentMode="+mode, "controller.replicas=1",
			"config.waitForTaints={"+foreign+"}")...)...)...))
	}
	first, second, failing := nodes[0], nodes[1], nodes[0]
	unverified := s.watchUnverified()
	workers := s.record()

	upgrade("daemonset")
	before := s.objects()
	s.Contains(before, "DaemonSet kube-system/"+harness.Name)
	unverified.may(first)
	s.taint(first, foreign)
	s.Gate(first)
	s.AgentPod(first)

	upgrade("controller")
	s.NoError(s.Cluster.NoAgents(s.Ctx))
	s.NotContains(s.objects(), "DaemonSet kube-system/"+harness.Name)
	s.awaitRollout()
	s.Unverified(first)
	s.untaint(first, foreign)
	s.awaitVerified(first, workers, 1)
	s.noWorkers(workers, first)

	unverified.may(second)
	s.taint(second, foreign)
	s.Gate(second)
	unverified.may(failing)
	repair := s.drop(failing, dropDNS)
	s.Gate(failing)
	s.Until(func() (bool, error) {
		all := workers.of(failing)
		return len(all) > 1 && all[1].hasEnded(), nil
	}, "no worker has failed")
	s.Empty(workers.of(second))

	upgrade("daemonset")
	s.AgentPod(second)
	s.Unverified(second)
	s.untaint(second, foreign)
	repair()
	for _, node := range []string{second, failing} {
		now, _ := s.AwaitVerified(node)
		s.Empty(worker(now), "released by a worker")
	}
	// The condition that said that the worker had failed.
	s.AwaitNode(failing, func(n *corev1.Node) bool {
		condition := harness.Condition(n, harness.ConditionType)
		return condition == nil || condition.Status == corev1.ConditionTrue
	})
	s.NoError(s.Cluster.NoAgents(s.Ctx))
	s.Equal(before, s.objects())
	// The controller deletes what is left of the failure.
	s.noWorkers(workers, failing)
	s.Empty(unverified.nodes(), "these were not gated, and have become unverified")
}

// deleteLease deletes the Lease of a release that is gone. Its leader could not give it back: its rights went with it.
func (s *suite) deleteLease(ctx context.Context) error {
	_, err := s.Cluster.Kubectl(ctx, "", "delete", "lease", "--ignore-not-found", "-n", harness.Namespace, harness.Controller)
	return err
}

// awaitRollout waits until the controller's new pods are there, and the old ones are not.
func (s *suite) awaitRollout() {
	s.T.Helper()
	s.NoError(s.Cluster.AwaitController(s.Ctx))
	s.Until(func() (bool, error) {
		pods, err := s.Cluster.Pods(s.Ctx, "controller")
		return len(pods) == 1, err
	}, "old controllers stay")
}

func (s *suite) taint(node, key string) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "taint", "node", node, "--overwrite", key+"=:NoSchedule")
		if err == nil {
			_, err = s.Cluster.Kubectl(ctx, "", "taint", "node", node, key+"-")
		}
		return err
	})
	s.Kubectl("", "taint", "node", node, key+"=:NoSchedule")
}

func (s *suite) untaint(node, key string) {
	s.T.Helper()
	s.Kubectl("", "taint", "node", node, key+"-")
}

// objects lists the objects of the release that are in the cluster.
func (s *suite) objects() []string {
	s.T.Helper()
	const kinds = "daemonsets,deployments,serviceaccounts,configmaps,roles,rolebindings,clusterroles,clusterrolebindings," +
		"poddisruptionbudgets,validatingadmissionpolicies,validatingadmissionpolicybindings"
	out := s.Kubectl("", "get", kinds, "-A", "-l", "app.kubernetes.io/instance="+harness.Name,
		"-o", `go-template={{range .items}}{{.kind}} {{.metadata.namespace}}/{{.metadata.name}}{{"\n"}}{{end}}`)
	found := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(found)
	return found
}

// lostNodes are the nodes that were verified and are not any more, as a watch shows them.
type lostNodes struct {
	mu       sync.Mutex
	verified map[string]bool
	allowed  map[string]bool // the test gates these
	lost     []string
}

// watchUnverified watches the nodes until the test ends.
func (s *suite) watchUnverified() *lostNodes {
	s.T.Helper()
	c := &lostNodes{verified: make(map[string]bool), allowed: make(map[string]bool)}
	list, err := s.Cluster.Kube.CoreV1().Nodes().List(s.Ctx, metav1.ListOptions{})
	s.NoError(err)
	for _, node := range list.Items {
		c.see(&node)
	}
	harness.Watch(s.Suite, s.Cluster.Kube.CoreV1().Nodes(), list.ResourceVersion, "", func(_ watch.EventType, node *corev1.Node) { c.see(node) })
	return c
}

func (c *lostNodes) see(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := harness.Verified(node)
	if c.verified[node.Name] && !now {
		if !c.allowed[node.Name] {
			c.lost = append(c.lost, node.Name)
		}
		delete(c.allowed, node.Name)
	}
	c.verified[node.Name] = now
}

// may expects the test to gate a node once.
func (c *lostNodes) may(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allowed[node] = true
}

// nodes are those that have become unverified and were not gated by the test.
func (c *lostNodes) nodes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}
