package workers

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The controller decides what the Node itself must show: a condition that a client writes, and a DaemonSet whose pod comes late. The
// worker of a node that nothing is required of is not told apart.
func TestRequirements(t *testing.T) {
	s := start(t)
	required, other := nodes[0], nodes[1]
	on := func(i int, text string) []string {
		return []string{fmt.Sprintf("config.require[%d].%s", i, text), fmt.Sprintf(`config.require[%d].on.kubernetes\.io/hostname=%s`, i, required)}
	}
	all := slices.Concat(values, on(0, "condition=e2e/Disk=False"), on(1, "daemonSet=default/e2e-required"))
	s.Undo(func(ctx context.Context) error {
		if err := s.Cluster.Undeploy(ctx, all...); err != nil {
			return err
		}
		if err := s.Cluster.Deploy(ctx, values...); err != nil {
			return err
		}
		return s.Cluster.AwaitController(ctx)
	})
	s.Deploy(all...)
	s.NoError(s.Cluster.AwaitController(s.Ctx))
	s.Leader() // one that knows of the requirements: a pod that ends may lead for a moment
	workers := s.record()
	s.Gate(other)
	s.AwaitVerified(other)

	s.Gate(required)
	failed, _ := s.AwaitNode(required, func(n *corev1.Node) bool {
		found := harness.Condition(n, harness.ConditionType)
		return found != nil && found.Status == corev1.ConditionFalse && found.Reason == "NodeFailed"
	})
	s.Contains(harness.Condition(failed, harness.ConditionType).Message, "node: condition e2e/Disk=False on kubernetes.io/hostname="+required+": the node has none")
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Kube.CoreV1().Nodes().Patch(ctx, required, types.StrategicMergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"e2e/Disk","$patch":"delete"}]}}`), metav1.PatchOptions{}, "status")
		return err
	})
	_, err := s.Cluster.Kube.CoreV1().Nodes().Patch(s.Ctx, required, types.StrategicMergePatchType,
		[]byte(`{"status":{"conditions":[{"type":"e2e/Disk","status":"False","reason":"Test"}]}}`), metav1.PatchOptions{}, "status")
	s.NoError(err)
	s.AwaitNode(required, func(n *corev1.Node) bool {
		return harness.Condition(n, "e2e/Disk") != nil && !harness.Verified(n)
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
      containers: [{name: workload, image: "localhost/workload:1", imagePullPolicy: Never, args: [serve, ":8080"]}]
`)
	began := time.Now()
	_, at := s.AwaitVerified(required)
	t.Logf("released %s after the DaemonSet was made, by the verdict of worker %d", at.Sub(began).Round(10*time.Millisecond), len(workers.of(required)))
	for _, worker := range append(workers.of(required), workers.of(other)...) {
		for _, variable := range worker.Spec.Containers[0].Env {
			s.NotEqual("REQUIRE", variable.Name)
		}
	}
}
