package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// startUnmet starts a test with something that the node must show, gates the node, and waits until the agent says what is missing.
func startUnmet(t *testing.T, unmet string, values ...string) *harness.Suite {
	t.Helper()
	s := start(t, values...)
	s.Gate(node)
	event := s.Event("NodeNotVerified", "node: "+unmet)
	s.Contains(event.Message, "check what provides it")
	s.Unverified(node)
	return s
}

// awaitRelease waits for the release after meet, which the machine may delay: the bar is 3 s in the first 10 s, 10 s later.
func awaitRelease(s *harness.Suite, meet func()) {
	s.T.Helper()
	s.Unverified(node)
	meet()
	met := time.Now()
	_, at := s.AwaitVerified(node)
	s.T.Logf("released %s after the requirement was met", at.Sub(met).Round(10*time.Millisecond))
	s.LessOrEqual(at.Sub(met), 30*time.Second)
}

// writeCondition writes the condition e2e/Disk, as node-problem-detector does, and removes it when the test ends.
func writeCondition(s *harness.Suite) (write func(status string)) {
	patch := func(ctx context.Context, patch string) error {
		_, err := s.Cluster.Kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	}
	s.Undo(func(ctx context.Context) error {
		return patch(ctx, `{"status":{"conditions":[{"type":"e2e/Disk","$patch":"delete"}]}}`)
	})
	return func(status string) {
		s.T.Helper()
		s.NoError(patch(s.Ctx, conditionPatch(status)))
	}
}

// conditionPatch is a strategic merge patch of a node's status.
func conditionPatch(status string) string {
	return fmt.Sprintf(`{"status":{"conditions":[{"type":"e2e/Disk","status":%q,"reason":"Test","message":"by a test",`+
		`"lastHeartbeatTime":%[2]q,"lastTransitionTime":%[2]q}]}}`, status, time.Now().UTC().Format(time.RFC3339))
}

func TestRequiredCondition(t *testing.T) {
	s := startUnmet(t, "condition e2e/Disk=False: the node has none", "config.require[0].condition=e2e/Disk=False")
	write := writeCondition(s)
	write("True")
	awaitRelease(s, func() { write("False") })
}

// Rechecks find that a released node has lost what was required, and that it is back.
func TestRequiredConditionThatIsLost(t *testing.T) {
	values := []string{"config.require[0].condition=e2e/Disk=False", "config.recheckInterval=10s", "config.failureThreshold=1",
		"config.recoveryThreshold=1"}
	s := start(t)
	s.Undo(func(ctx context.Context) error { return s.Cluster.Undeploy(ctx, values...) })
	write := writeCondition(s)
	write("False")
	s.Gate(node)
	s.AwaitVerified(node)
	s.Deploy(values...)
	shows := func(status corev1.ConditionStatus, reason string) {
		s.AwaitNode(node, func(n *corev1.Node) bool {
			found := harness.Condition(n, harness.ConditionType)
			return found != nil && found.Status == status && found.Reason == reason
		})
	}
	shows(corev1.ConditionTrue, "Verified")
	write("True")
	shows(corev1.ConditionFalse, "NodeFailed")
	s.True(harness.Verified(s.Node(node)), "a loss adds no taint")
	// The patch of the status has changed the annotation too, past the policy.
	s.Contains(s.Node(node).Annotations[harness.Annotation], `"required":["condition e2e/Disk=False"]`)
	write("False")
	shows(corev1.ConditionTrue, "Verified")
	s.NoError(s.Cluster.Undeploy(s.Ctx, values...))
	s.DeleteCondition(node)
}

// A real device plugin, registered with kubelet.
func TestRequiredResource(t *testing.T) {
	s := startUnmet(t, "allocatable knr.example.com/gpu>=2: the node has", "config.require[0].allocatable=knr.example.com/gpu>=2")
	set := startDevicePlugin(s, "knr.example.com/gpu")
	set(1)
	s.AwaitNode(node, func(n *corev1.Node) bool { return n.Status.Allocatable.Name("knr.example.com/gpu", "").Value() == 1 })
	awaitRelease(s, func() {
		set(2)
		s.AwaitNode(node, func(n *corev1.Node) bool { return n.Status.Allocatable.Name("knr.example.com/gpu", "").Value() == 2 })
	})
	set(0)
}

// A real registration with kubelet's plugin watcher.
func TestRequiredCSIDriver(t *testing.T) {
	const driver = "csi.knr.example.com"
	s := startUnmet(t, "csiDriver "+driver+": the node has none", "config.require[0].csiDriver="+driver)
	awaitRelease(s, func() {
		startCSIDriver(s, driver)
		s.AwaitNode(node, func(n *corev1.Node) bool {
			return strings.Contains(n.Annotations["csi.volume.kubernetes.io/nodeid"], driver)
		})
	})
}

// A DaemonSet whose pod runs on the gated node, and becomes ready late.
func TestRequiredDaemonSet(t *testing.T) {
	set := "config.require[0].daemonSet=default/e2e-required"
	s := startUnmet(t, "daemonSet default/e2e-required: the node has none", set)
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "-n", "default", "delete", "role,rolebinding", harness.Name+"-pods", "--ignore-not-found")
		return err
	})
	s.Apply(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: e2e-required, namespace: default}
spec:
  selector: {matchLabels: {app: e2e-required}}
  template:
    metadata: {labels: {app: e2e-required}}
    spec:
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 0
      readinessGates: [{conditionType: e2e/ready}]
      containers: [{name: workload, image: "localhost/workload:1", imagePullPolicy: Never, args: [serve, ":8080"]}]
`)
	var pod corev1.Pod
	s.Until(func() (bool, error) {
		pods, err := s.Cluster.Kube.CoreV1().Pods("default").List(s.Ctx, metav1.ListOptions{LabelSelector: "app=e2e-required", FieldSelector: "spec.nodeName=" + node})
		if err != nil || len(pods.Items) == 0 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return false, err
		}
		pod = pods.Items[0]
		return true, nil
	}, "the DaemonSet has no pod")
	awaitRelease(s, func() {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []map[string]any{{"type": "e2e/ready", "status": "True"}}}})
		s.NoError(err)
		_, err = s.Cluster.Kube.CoreV1().Pods("default").Patch(s.Ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		s.NoError(err)
		s.AwaitReady("default", pod.Name)
	})
}

// What is required of other nodes does not delay this one, and costs no request and no right.
func TestRequiredOfOtherNodes(t *testing.T) {
	s := start(t, "config.require[0].allocatable=knr.example.com/gpu", `config.require[0].on.knr\.example\.com/gpu=nvidia`,
		"config.require[1].label=kubernetes.io/os", "config.require[2].condition=Ready=True")
	s.Gate(node)
	pod := s.AgentPod(node)
	s.AwaitVerified(node)
	s.AwaitGone(pod)
	for _, request := range s.Requests(pod) {
		s.NotEqual("pods", request.ObjectRef.Resource)
	}
}
