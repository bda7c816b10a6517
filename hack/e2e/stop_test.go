package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func TestStoppedBeforeTheVerdict(t *testing.T) {
	s := start(t)
	address := s.target()
	s.require.NoError(s.Deploy(s.ctx, "config.checkTimeout=1s", "config.networkTargets[0]="+address+":80"))
	s.broken(fmt.Sprintf("ip daddr %s drop", address))
	s.gate()
	pod := s.agent()
	// Its retry is due four seconds later; it is stopped while it waits for that.
	waiting := s.awaitLog(pod, s.Logs, func(line harness.LogLine) bool { return line.Check == "network" && line.Attempt == 3 })
	s.Log("waiting for", waiting.RetryIn)
	before, err := s.Node(s.ctx, node)
	s.require.NoError(err)
	sent := len(s.requests(pod))

	watch, err := s.Kube.CoreV1().Pods(pod.Namespace).Watch(s.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
	s.require.NoError(err)
	defer watch.Stop()
	s.require.NoError(s.Kube.CoreV1().Pods(pod.Namespace).Delete(s.ctx, pod.Name, metav1.DeleteOptions{}))
	var end *corev1.ContainerStateTerminated
	for event := range watch.ResultChan() {
		now, ok := event.Object.(*corev1.Pod)
		s.require.True(ok)
		if len(now.Status.ContainerStatuses) > 0 && now.Status.ContainerStatuses[0].State.Terminated != nil {
			end = now.Status.ContainerStatuses[0].State.Terminated
		}
		if event.Type == "DELETED" {
			break
		}
	}
	s.require.NotNil(end)
	s.require.Zero(end.ExitCode)
	lasted := end.FinishedAt.Sub(waiting.Time)
	s.Logf("ended %s after the wait began", lasted)
	s.require.Len(s.requests(pod), sent, "requests after SIGTERM")
	after, err := s.Node(s.ctx, node)
	s.require.NoError(err)
	s.require.Equal(before.Spec.Taints, after.Spec.Taints)
	s.require.Equal(before.Labels, after.Labels)
	s.require.Equal(before.Annotations, after.Annotations)
}

// After the verdict the final metrics are served for as long as the linger.
func TestLingers(t *testing.T) {
	s := start(t, "config.metricsLinger=8s", "terminationGracePeriodSeconds=30")
	s.gate()
	pod := s.agent()
	s.verified()
	s.servedWhileTerminating(pod)
	last := s.gone(pod)
	s.require.NotNil(last.DeletionTimestamp)
}

func TestSecondSignalEndsTheLinger(t *testing.T) {
	s := start(t, "config.metricsLinger=30m", "terminationGracePeriodSeconds=1900")
	s.gate()
	pod := s.agent()
	s.verified()
	s.servedWhileTerminating(pod)
	// The first one was kubelet's. This test's time is over long before half an hour is.
	_, err := s.Script(s.ctx, "enter", node, "pkill", "-TERM", "-x", harness.Name)
	s.require.NoError(err)
	s.gone(pod)
}

func (s *suite) servedWhileTerminating(pod corev1.Pod) {
	s.Helper()
	s.require.NoError(harness.Until(s.ctx, func() (bool, error) {
		now, err := s.Kube.CoreV1().Pods(pod.Namespace).Get(s.ctx, pod.Name, metav1.GetOptions{})
		return err == nil && now.DeletionTimestamp != nil, err
	}))
	s.awaitLog(pod, s.Logs, func(line harness.LogLine) bool { return line.Msg == "told to stop: serving the final metrics first" })
	s.require.Equal(1.0, s.metric(pod, "node_check_status"))
	s.require.NotZero(s.metric(pod, "node_check_verification_duration_seconds"))
}

// The label is taken off again between the patch and the eviction: nobody else would notice.
func TestHoldingAgentVerifiesAgain(t *testing.T) {
	s := start(t)
	address := s.target()
	s.require.NoError(s.Deploy(s.ctx, append(quick, "config.networkTargets[0]="+address+":80")...))
	s.broken(fmt.Sprintf("ip daddr %s drop", address))
	s.gate()
	pod := s.agent()
	s.awaitLog(pod, s.Logs, failed("network"))

	s.cleanup(func(ctx context.Context) error { return s.Signal(ctx, "CONT", "kube-controller-manager") })
	s.require.NoError(s.Signal(s.ctx, "STOP", "kube-controller-manager"))
	s.require.NoError(s.Mend(s.ctx, node))
	s.verified()
	s.require.NoError(s.Patch(s.ctx, node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, harness.Label)))
	s.verified() // within a minute
	s.sameProcess(pod)
	s.require.NoError(s.Signal(s.ctx, "CONT", "kube-controller-manager"))
	s.gone(pod)
}
