// Package e2e tests the agent as users get it: the image from the Dockerfile, deployed by the chart
// on a real API server and a real kubelet. `make e2e` starts the cluster and runs it.
package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const node = "node1"

// quick are values with which a failure is told apart from a success within seconds.
var quick = []string{"config.checkTimeout=1s", "config.maxRetries=0"}

// suite is one test's hold on the cluster. The tests share the one node, so they run one after another.
type suite struct {
	*testing.T
	*harness.Cluster
	ctx     context.Context
	require *require.Assertions
	began   time.Time
}

func TestMain(m *testing.M) {
	if _, err := harness.Open(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) // not skipped: who runs these tests wants to know
	}
	os.Exit(m.Run())
}

// start brings the cluster into the state in which every test begins: the node verified, no fault,
// DNS up, the agent deployed with values and not running.
func start(t *testing.T, values ...string) *suite {
	t.Helper()
	cluster, err := harness.Open()
	require.NoError(t, err)
	// Long enough for the slowest step on a noisy machine; nothing waits as long as that when all is well.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	s := &suite{T: t, Cluster: cluster, ctx: ctx, require: require.New(t)}
	s.require.NoError(s.Reset(ctx, node))
	s.require.NoError(s.Deploy(ctx, values...))
	t.Cleanup(func() {
		if t.Failed() {
			s.tell()
		}
	})
	s.began = time.Now()
	return s
}

// tell prints what a person would look at first after a failure.
func (s *suite) tell() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if now, err := s.Node(ctx, node); err == nil {
		s.Logf("node: taints %v labels %v", now.Spec.Taints, now.Labels)
	}
	pods, _ := s.AgentPods(ctx)
	for _, pod := range pods {
		text, _ := s.Kubectl(ctx, "", "logs", "-n", pod.Namespace, pod.Name)
		s.Logf("pod %s %s\n%s", pod.Name, pod.Status.Phase, text)
	}
	out, _ := s.Kubectl(ctx, "", "get", "pods", "-A", "-o", "wide")
	s.Log("\n" + out)
}

func (s *suite) gate() { s.require.NoError(s.Gate(s.ctx, node)) }

// cleanup undoes a fault even when the test's own time is over.
func (s *suite) cleanup(undo func(ctx context.Context) error) {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(s.T, undo(ctx))
	})
}

func (s *suite) agent() corev1.Pod {
	s.Helper()
	pod, err := s.AgentPod(s.ctx, node)
	s.require.NoError(err)
	return pod
}

func (s *suite) verified() (*corev1.Node, time.Time) {
	s.Helper()
	now, at, err := s.AwaitNode(s.ctx, node, harness.Verified)
	s.require.NoError(err)
	return now, at
}

// unverified asserts that the node is still gated.
func (s *suite) unverified() {
	s.Helper()
	now, err := s.Node(s.ctx, node)
	s.require.NoError(err)
	s.require.True(harness.HasTaint(now, harness.Taint), "the taint is off")
	s.require.NotContains(now.Labels, harness.Label)
}

func (s *suite) metric(pod corev1.Pod, series string) float64 {
	s.Helper()
	value, err := s.Metric(s.ctx, pod, series)
	s.require.NoError(err)
	return value
}

func (s *suite) awaitMetric(pod corev1.Pod, series string, above float64) {
	s.Helper()
	s.require.NoError(harness.Until(s.ctx, func() (bool, error) {
		value, err := s.Metric(s.ctx, pod, series)
		return err == nil && value > above, nil
	}), "%s stays at or below %v", series, above)
}

// failures returns how often each check has failed a round.
func (s *suite) failures(pod corev1.Pod) map[string]float64 {
	s.Helper()
	found := make(map[string]float64)
	for _, check := range []string{"dns", "api", "network", "service"} {
		if n := s.metric(pod, fmt.Sprintf(`node_check_failures_total{check=%q}`, check)); n > 0 {
			found[check] = n
		}
	}
	return found
}

// awaitLog waits for a line of the agent's log and returns it.
func (s *suite) awaitLog(pod corev1.Pod, read func(context.Context, corev1.Pod) ([]harness.LogLine, error), wanted func(harness.LogLine) bool) harness.LogLine {
	s.Helper()
	var found harness.LogLine
	s.require.NoError(harness.Until(s.ctx, func() (bool, error) {
		lines, err := read(s.ctx, pod)
		if err != nil {
			return false, nil
		}
		for _, line := range lines {
			if wanted(line) {
				found = line
				return true, nil
			}
		}
		return false, nil
	}), "no such line in the log")
	return found
}

func failed(check string) func(harness.LogLine) bool {
	return func(line harness.LogLine) bool { return line.Check == check && line.Error != "" }
}

// sameProcess asserts that pod still runs and its container was never started again.
func (s *suite) sameProcess(pod corev1.Pod) {
	s.Helper()
	now, err := s.Kube.CoreV1().Pods(pod.Namespace).Get(s.ctx, pod.Name, metav1.GetOptions{})
	s.require.NoError(err)
	s.require.Equal(pod.UID, now.UID)
	s.require.Zero(now.Status.ContainerStatuses[0].RestartCount)
}

// event waits for an Event of this test with a reason and a part of its message.
func (s *suite) event(reason, part string) corev1.Event {
	s.Helper()
	var found corev1.Event
	s.require.NoError(harness.Until(s.ctx, func() (bool, error) {
		events, err := s.Events(s.ctx, node, reason)
		for _, event := range events {
			// The times of an Event are whole seconds.
			if !event.CreationTimestamp.Time.Before(s.began.Truncate(time.Second)) && strings.Contains(event.Message, part) {
				found = event
				return true, nil
			}
		}
		return false, err
	}), "no Event %s with %q", reason, part)
	return found
}

// apply creates objects and deletes them at the end of the test.
func (s *suite) apply(manifests string) {
	s.Helper()
	remove, err := s.Apply(s.ctx, manifests)
	s.require.NoError(err)
	s.cleanup(remove)
}

// target makes a service with a pod that accepts connections, and returns its ClusterIP.
func (s *suite) target() string {
	s.Helper()
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: e2e-target, namespace: default, labels: {app: e2e-target}}
spec:
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 0
  containers: [{name: serve, image: "localhost/workload:1", imagePullPolicy: Never, args: [serve, ":8080"]}]
---
apiVersion: v1
kind: Service
metadata: {name: e2e-target, namespace: default}
spec: {selector: {app: e2e-target}, ports: [{port: 80, targetPort: 8080}]}
`)
	_, err := s.Kubectl(s.ctx, "", "wait", "-n", "default", "--for=condition=Ready", "pod/e2e-target", "--timeout=60s")
	s.require.NoError(err)
	service, err := s.Kube.CoreV1().Services("default").Get(s.ctx, "e2e-target", metav1.GetOptions{})
	s.require.NoError(err)
	return service.Spec.ClusterIP
}

// gone waits until a pod is deleted, and returns it as it was seen last.
func (s *suite) gone(pod corev1.Pod) corev1.Pod {
	s.Helper()
	last := pod
	s.require.NoError(harness.Until(s.ctx, func() (bool, error) {
		now, err := s.Kube.CoreV1().Pods(pod.Namespace).Get(s.ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || (err == nil && now.UID != pod.UID) {
			return true, nil
		}
		if err == nil {
			last = *now
		}
		return false, err
	}), "pod %s stays", pod.Name)
	return last
}

// requests returns what one pod asked the API server, once the audit log holds all of it.
func (s *suite) requests(pod corev1.Pod) []harness.Request {
	s.Helper()
	all, err := s.Audit(s.began, harness.User)
	s.require.NoError(err)
	var own []harness.Request
	for _, request := range all {
		if request.Pod() == pod.Name {
			own = append(own, request)
		}
	}
	return own
}

func (s *suite) patchCoreDNS(patch string) {
	s.Helper()
	_, err := s.Kube.AppsV1().Deployments(harness.Namespace).Patch(s.ctx, "coredns", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	s.require.NoError(err)
}
