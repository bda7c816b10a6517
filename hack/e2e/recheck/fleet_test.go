package recheck

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	fleetLabel = "e2e-fleet"
	fleetSize  = 60 // with the real nodes, six failed ones withhold everything
	zones      = 3
	ofAZone    = fleetSize / zones
)

// inFleet names a node of a zone.
func inFleet(zone, i int) string { return fmt.Sprintf("fleet-%c%d", 'a'+zone, i) }

// addFleet makes nodes that are verified, and starts kwok, which plays their kubelet: their agents are ready, and do nothing. Each zone
// is a node group.
func addFleet(ctx context.Context, cluster *harness.Cluster) (remove func(context.Context) error, err error) {
	stages, err := filepath.Abs("testdata/stages.yaml")
	if err != nil {
		return nil, err
	}
	kwok, err := cluster.StartKwok(ctx, stages)
	if err != nil {
		return nil, err
	}
	deleteAll := func(ctx context.Context) error {
		return cluster.Kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: fleetLabel})
	}
	if err := deleteAll(ctx); err != nil { // left by a run that was killed
		return nil, err
	}
	var creators errgroup.Group
	creators.SetLimit(8)
	for i := range fleetSize {
		creators.Go(func() error {
			node := kwokNode(inFleet(i%zones, i/zones))
			node.Labels[fleetLabel] = ""
			node.Labels[corev1.LabelTopologyZone] = fmt.Sprintf("zone-%c", 'a'+i%zones)
			node.Labels[groupLabel] = fmt.Sprintf("group-%c", 'a'+i%zones)
			_, err := cluster.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			return err
		})
	}
	return func(ctx context.Context) error {
		defer kwok.Stop()
		return deleteAll(ctx)
	}, creators.Wait()
}

// kwokNode is a Node that was verified, and takes only pods that tolerate everything.
func kwokNode(name string) *corev1.Node {
	capacity := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelHostname: name, harness.Label: "true"},
			Annotations: map[string]string{"kwok.x-k8s.io/node": "fake",
				harness.Annotation: `{"time":"2026-01-01T00:00:00Z","duration":"1s","removed":["node-ready/unverified=true:NoSchedule"],"version":"dev"}`},
		},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: "e2e/kwok", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
}

// report writes the condition of nodes as their agents would.
func (s *suite) report(ctx context.Context, status corev1.ConditionStatus, reason string, names ...string) error {
	return s.setCondition(ctx, fmt.Sprintf(`"status":%q,"reason":%q,"message":"written by a test","lastTransitionTime":%q`,
		status, reason, time.Now().UTC().Format(time.RFC3339)), names...)
}

// setCondition sets fields of the condition of nodes, and its heartbeat.
func (s *suite) setCondition(ctx context.Context, fields string, names ...string) error {
	var writers errgroup.Group
	writers.SetLimit(8)
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"lastHeartbeatTime":%q,%s}]}}`,
		harness.ConditionType, time.Now().UTC().Format(time.RFC3339), fields)
	for _, name := range names {
		writers.Go(func() error {
			_, err := s.Cluster.Kube.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
			return err
		})
	}
	return writers.Wait()
}

// fail lets the agents of nodes in the fleet report a failure until repair is called, at the latest when the test ends. Those that
// the controller starts again write it again.
func (s *suite) fail(names ...string) (repair func()) {
	s.T.Helper()
	passed := func(ctx context.Context) error { return s.report(ctx, corev1.ConditionTrue, "Verified", names...) }
	s.Undo(passed)
	s.NoError(s.report(s.Ctx, corev1.ConditionFalse, networkFailed, names...))
	ctx, stop := context.WithCancel(s.Ctx)
	s.T.Cleanup(stop)
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		_ = s.setCondition(ctx, `"message":"written again by a test"`, names...)
	}, 10*time.Second)
	return func() { s.NoError(passed(s.Ctx)) }
}
