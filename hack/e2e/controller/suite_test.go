// Package controller tests what the controller reports about nodes whose agent cannot: the chart with both images, on nodes with a
// real kubelet. `make e2e` runs it.
package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// values deploy a controller that reports within seconds.
var values = append(harness.ControllerValues(), "controller.notStartedAfter=5s",
	"config.initialTimeout=3s", "config.checkTimeout=1s", "config.maxRetries=0",
	excluding+".key=pool", excluding+".operator=NotIn", excluding+".values={excluded}",
)

const excluding = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]"

// nodes have a real kubelet, and faults.
var nodes = []string{"node2", "node3", "node4"}

func TestMain(m *testing.M) { os.Exit(harness.Main(m, prepare)) }

// prepare deploys agent and controller for all tests, and adds the nodes, which the agent verifies.
func prepare(ctx context.Context, cluster *harness.Cluster) (cleanUp func(context.Context) error, err error) {
	return cluster.DeployController(ctx, nodes, values)
}

// suite is one test's access to the cluster.
type suite struct{ *harness.Suite }

func start(t *testing.T) *suite {
	t.Helper()
	return &suite{harness.Start(t)}
}

// redeploy makes the release what it was at the start.
func (s *suite) redeploy(ctx context.Context) error { return s.Cluster.Deploy(ctx, values...) }

// bare makes a Node without kubelet, which registers gated, changed as wanted, and deletes it when the test ends.
func (s *suite) bare(name string, change func(*corev1.Node)) string {
	s.T.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
	}
	if change != nil {
		change(node)
	}
	_, err := s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, node, metav1.CreateOptions{})
	s.NoError(err)
	s.Undo(func(ctx context.Context) error {
		err := s.Cluster.Kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return name
}

// drop adds nftables rules for a node's pods until the test ends.
func (s *suite) drop(node string, rules ...string) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error { return s.Cluster.Repair(ctx, node) })
	s.NoError(s.Cluster.Break(s.Ctx, node, rules...))
}

// repair takes the rules away that were added on a node.
func (s *suite) repair(node string) {
	s.T.Helper()
	s.NoError(s.Cluster.Repair(s.Ctx, node))
}

// withoutCNI takes the configuration of the pod network off a node until the function that it returns is called, at the latest when
// the test ends.
func (s *suite) withoutCNI(node string) (restore func()) {
	s.T.Helper()
	return s.changeCNI(node, os.Remove)
}

// withoutRoute lets pods on a node have an address and no route, likewise.
func (s *suite) withoutRoute(node string) (restore func()) {
	s.T.Helper()
	return s.changeCNI(node, func(path string) error {
		text, err := os.ReadFile(path)
		changed := regexp.MustCompile(`"routes": *\[[^]]*\]`).ReplaceAll(text, []byte(`"routes": []`))
		s.NotEqual(string(text), string(changed))
		return errors.Join(err, os.WriteFile(path, changed, 0o600))
	})
}

func (s *suite) changeCNI(node string, change func(path string) error) (restore func()) {
	s.T.Helper()
	path := filepath.Join(s.Cluster.Dir, "nodes", node, "net.d", "10-ptp.conflist")
	text, err := os.ReadFile(path)
	s.NoError(err)
	write := func(context.Context) error { return os.WriteFile(path, text, 0o600) }
	s.Undo(write)
	s.NoError(change(path))
	return func() { s.NoError(write(s.Ctx)) }
}

// awaitFailed waits until the condition of a node is False for a reason, with part in its message. Before it may be False for another
// one: where everything takes long, an agent's pod is late as well.
func (s *suite) awaitFailed(node, reason, part string) *corev1.NodeCondition {
	s.T.Helper()
	now, _ := s.AwaitNode(node, func(n *corev1.Node) bool {
		return isFalse(n) && slices.Contains(strings.Split(harness.Condition(n, harness.ConditionType).Reason, ","), reason) &&
			strings.Contains(harness.Condition(n, harness.ConditionType).Message, part)
	})
	found := harness.Condition(now, harness.ConditionType)
	s.True(harness.HasTaint(now, harness.Taint))
	return found
}

func isFalse(node *corev1.Node) bool {
	found := harness.Condition(node, harness.ConditionType)
	return found != nil && found.Status == corev1.ConditionFalse
}

// awaitRecovered waits until a node that had failed is verified, and its condition is True.
func (s *suite) awaitRecovered(node string) {
	s.T.Helper()
	s.AwaitVerified(node)
	s.AwaitNode(node, func(n *corev1.Node) bool {
		return harness.Condition(n, harness.ConditionType).Status == corev1.ConditionTrue
	})
}

// awaitNoAgent waits until kubelet has ended the agent's pod on a node.
func (s *suite) awaitNoAgent(node string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		pods, err := s.Cluster.AgentPods(s.Ctx)
		return err == nil && !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName == node }), err
	}, "the agent's pod stays on %s", node)
}

// awaitEvent waits for the Event of a node's failure, and asserts that it is the only one that begins with this text.
func (s *suite) awaitEvent(node, text string) {
	s.T.Helper()
	s.Until(func() (bool, error) { return len(s.events(node, text)) > 0, nil }, "no Event about %s: %s", node, text)
	found := s.events(node, text)
	s.Len(found, 1)
	s.Nil(found[0].Series, "counted again")
	s.Equal(corev1.EventTypeWarning, found[0].Type)
}

// events returns the Events of this test about a node that begin with a text, such as a reason.
func (s *suite) events(node, text string) (found []corev1.Event) {
	s.T.Helper()
	all, err := s.Cluster.Events(s.Ctx, node, "NodeNotStarted")
	s.NoError(err)
	for _, event := range all {
		if strings.HasPrefix(event.Message, text) && !event.CreationTimestamp.Time.Before(s.Began.Truncate(time.Second)) {
			found = append(found, event)
		}
	}
	return found
}

// nothing asserts that nothing was said about a node: no condition, no Event.
func (s *suite) nothing(node string) {
	s.T.Helper()
	s.Nil(harness.Condition(s.Node(node), harness.ConditionType), node)
	s.Empty(s.events(node, ""), node)
}

// conditionsOf returns what the controller has changed of a node in this test.
func (s *suite) conditionsOf(node string) (found []harness.Request) {
	s.T.Helper()
	requests, err := s.Cluster.Audit(s.Began, harness.ControllerUser)
	s.NoError(err)
	for _, request := range requests {
		if request.ObjectRef.Resource == "nodes" && request.ObjectRef.Name == node && request.Write() && request.Response.Code < 400 {
			found = append(found, request)
		}
	}
	return found
}

// changeAgent applies a strategic merge patch to the agent's container in the DaemonSet, and waits until it is there for new pods.
func (s *suite) changeAgent(patch string) {
	s.T.Helper()
	s.Kubectl("", "patch", "-n", harness.Namespace, "daemonset/"+harness.Name, "-p",
		fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"agent",%s}]}}}}`, patch))
	s.Kubectl("", "wait", "-n", harness.Namespace, "daemonset/"+harness.Name, harness.Wait, "--for=jsonpath={.status.observedGeneration}="+
		s.Kubectl("", "get", "-n", harness.Namespace, "daemonset/"+harness.Name, "-o", "jsonpath={.metadata.generation}"))
}
