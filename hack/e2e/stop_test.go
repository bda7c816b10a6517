package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func TestStoppedBeforeTheVerdict(t *testing.T) {
	s := start(t)
	pod := agentWithDeadTarget(s, "config.checkTimeout=1s")
	// Its retry is due four seconds later; it is stopped while it waits for that.
	waiting := s.AwaitLog(pod, func(line harness.LogLine) bool { return line.Check == "network" && line.Attempt == 3 })
	s.T.Log("waiting for", waiting.RetryIn)
	before := s.Node(node)
	sent := len(s.Requests(pod))

	untilDeleted := watchPods(s, metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
	s.NoError(s.Cluster.Kube.CoreV1().Pods(pod.Namespace).Delete(s.Ctx, pod.Name, metav1.DeleteOptions{}))
	var end *corev1.ContainerStateTerminated
	untilDeleted(func(now *corev1.Pod) {
		if len(now.Status.ContainerStatuses) > 0 && now.Status.ContainerStatuses[0].State.Terminated != nil {
			end = now.Status.ContainerStatuses[0].State.Terminated
		}
	})
	s.NotNil(end)
	s.Zero(end.ExitCode)
	s.T.Logf("ended %s after the wait began", end.FinishedAt.Sub(waiting.Time))
	s.Len(s.Requests(pod), sent, "requests after SIGTERM")
	after := s.Node(node)
	s.Equal(before.Spec.Taints, after.Spec.Taints)
	s.Equal(before.Labels, after.Labels)
	s.Equal(before.Annotations, after.Annotations)
}

// After the verdict the final metrics are served for as long as the linger, which a second signal ends. (That it ends by itself needs
// no cluster: TestLingerEnds.)
func TestFinalMetrics(t *testing.T) {
	s := start(t, "config.metricsLinger=30m") // this test's time is over long before
	s.Gate(node)
	pod := s.AgentPod(node)
	s.AwaitVerified(node)
	terminating := servedWhileTerminating(s, pod)
	s.Script("enter", node, "pkill", "-TERM", "-x", harness.Name) // the first one was kubelet's
	s.NotNil(s.AwaitGone(terminating).DeletionTimestamp)
}

func servedWhileTerminating(s *harness.Suite, pod corev1.Pod) (terminating corev1.Pod) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		now, err := s.Cluster.Kube.CoreV1().Pods(pod.Namespace).Get(s.Ctx, pod.Name, metav1.GetOptions{})
		if err == nil {
			terminating = *now
		}
		return terminating.DeletionTimestamp != nil, err
	})
	s.AwaitLog(pod, harness.Says(harness.MsgShuttingDown))
	s.Equal(1.0, s.Metric(pod, "node_check_status"))
	s.NotZero(s.Metric(pod, "node_check_verification_duration_seconds"))
	return terminating
}
