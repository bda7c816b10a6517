package faultsnet

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// renewing deploys the chart with renewSandbox, onto no node as before.
func (s *suite) renewing(values ...string) {
	s.Helper()
	s.Undo(func(ctx context.Context) error { return s.Cluster.Deploy(ctx, "nodeSelector.faultsnet=none") })
	s.Deploy(append(values, "nodeSelector.faultsnet=none", "config.renewSandbox=true")...)
}

// unreachable waits until an agent has no route.
func (s *suite) unreachable(pod corev1.Pod) {
	s.Helper()
	s.AwaitLog(pod, func(line harness.LogLine) bool { return strings.Contains(line.Error, "network is unreachable") })
}

// restarts waits until the container of a pod was started so often.
func (s *suite) restarts(pod corev1.Pod, n int32) {
	s.Helper()
	s.Until(func() (bool, error) {
		now, err := s.Kube.CoreV1().Pods(pod.Namespace).Get(s.Ctx, pod.Name, metav1.GetOptions{})
		return err == nil && len(now.Status.ContainerStatuses) == 1 && now.Status.ContainerStatuses[0].RestartCount == n, err
	}, "%s was not started %d times again", pod.Name, n)
}

func TestFaultSandboxWithoutRoute(t *testing.T) {
	fault(t, "no route in the agent's sandbox, CNI repaired", "verified after one renewal (renewSandbox)", func(s *suite) {
		s.renewing()
		s.rounds(func() {
			repair := s.WithoutRoute(node)
			pod := s.agent(quick("INITIAL_TIMEOUT", "5s"), nil)
			s.unreachable(pod)
			s.recovers(repair)
			s.restarts(pod, 1)
		})
	})
}

func TestFaultKubeletStoppedDuringRenewal(t *testing.T) {
	fault(t, "the same, kubelet stopped during the renewal", "verified when kubelet is back", func(s *suite) {
		s.renewing()
		repair := s.WithoutRoute(node)
		pod := s.agent(quick("INITIAL_TIMEOUT", "30s"), nil)
		s.unreachable(pod)
		repair()
		resume := s.Pause("kubelet", node)
		s.Until(func() (bool, error) { // kubelet serves no log now
			text, err := s.Cluster.Script(s.Ctx, "enter", node, "sh", "-c", "cat /var/log/pods/*_"+pod.Name+"_*/agent/0.log")
			return strings.Contains(text, harness.MsgRenewing), err
		})
		s.unverified()
		s.recovers(resume)
		s.restarts(pod, 1)
	})
}

func TestFaultOutageRenewsNothing(t *testing.T) {
	fault(t, "only DNS answers, with renewSandbox", "not verified: api, network, service; the sandbox stays", func(s *suite) {
		s.renewing()
		s.Break("ip daddr 10.96.0.1 drop")
		pod := s.agent(quick("INITIAL_TIMEOUT", "2s"), nil)
		s.onlyFails(pod, map[string]string{"api": "", "network": "timeout", "service": ""})
		s.AwaitLog(pod, harness.Says(harness.MsgTimedOut))
		s.AwaitMetric(pod, `node_check_attempts_total{check="dns"}`, 4)
		s.SameProcess(pod)
		s.recovers(s.Repair)
		s.SameProcess(pod)
	})
}

func TestFaultRefusedRenewal(t *testing.T) {
	fault(t, "the pause process has another user than the agent", "no renewal, one error in the log; verified by the same process", func(s *suite) {
		s.renewing("securityContext.runAsUser=2000")
		s.Break("ip daddr 10.96.0.0/16 drop")
		pod := s.agent(quick("INITIAL_TIMEOUT", "2s"), nil)
		refused := func(line harness.LogLine) bool { return strings.Contains(line.Error, "operation not permitted") }
		s.AwaitLog(pod, refused)
		s.AwaitMetric(pod, `node_check_failures_total{check="sandbox"}`, 0)
		s.AwaitMetric(pod, `node_check_failures_total{check="dns"}`, s.Metric(pod, `node_check_failures_total{check="dns"}`)+1)
		lines, err := s.Logs(s.Ctx, pod)
		s.NoError(err)
		s.Len(slices.DeleteFunc(lines, func(line harness.LogLine) bool { return !refused(line) }), 1)
		s.recovers(s.Repair)
		s.SameProcess(pod)
	})
}
