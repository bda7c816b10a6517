package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The cluster that locks itself: its only node is gated, and the DNS pods do not tolerate that.
func TestDNSPodsBehindTheGate(t *testing.T) {
	s := start(t, quick...)
	toleration := `{"spec":{"template":{"spec":{"tolerations":[{"key":"CriticalAddonsOnly","operator":"Exists"}%s]}}}}`
	ours := fmt.Sprintf(`,{"key":%q,"operator":"Exists"}`, harness.Taint)
	s.cleanup(func(ctx context.Context) error {
		s.ctx = ctx
		s.patchCoreDNS(fmt.Sprintf(toleration, ours))
		return s.ScaleCoreDNS(ctx, 2)
	})
	s.require.NoError(s.ScaleCoreDNS(s.ctx, 0))
	s.patchCoreDNS(fmt.Sprintf(toleration, ""))
	s.gate()
	s.patchCoreDNS(`{"spec":{"replicas":2}}`)

	pod := s.agent()
	event := s.event("NodeNotVerified", "service: ")
	s.Log(event.Message)
	for _, part := range []string{"pods of kube-system/kube-dns are Pending", "{key: node-ready/unverified, operator: Exists}"} {
		s.require.Contains(event.Message, part)
		s.awaitLog(pod, s.Logs, func(line harness.LogLine) bool { return strings.Contains(line.Remedy, part) })
	}
	s.unverified()

	s.patchCoreDNS(fmt.Sprintf(toleration, ours))
	s.verified()
	s.require.NoError(s.AwaitCoreDNS(s.ctx, 2))
}

func TestNoDNS(t *testing.T) {
	s := start(t, quick...)
	s.cleanup(func(ctx context.Context) error { return s.ScaleCoreDNS(ctx, 2) })
	s.require.NoError(s.ScaleCoreDNS(s.ctx, 0))
	s.gate()
	pod := s.agent()
	const series = `node_check_failures_total{check="dns"}`
	s.awaitMetric(pod, series, 0)
	s.awaitMetric(pod, series, s.metric(pod, series)) // it grows
	_, status, err := s.Get(s.ctx, pod, "readyz")
	s.require.NoError(err)
	s.require.Equal(503, status)
	s.require.Zero(s.metric(pod, "node_check_status"))
	s.unverified()
	s.sameProcess(pod)
	s.Log(s.event("NodeNotVerified", "dns: ").Message)

	s.patchCoreDNS(`{"spec":{"replicas":2}}`)
	s.verified()
	s.require.Zero(s.gone(pod).Status.ContainerStatuses[0].RestartCount)
}

func TestAPIServerStopped(t *testing.T) {
	s := start(t)
	address := s.target()
	s.require.NoError(s.Deploy(s.ctx, append(quick, "config.networkTargets[0]="+address+":80")...))
	s.broken(fmt.Sprintf("ip daddr %s drop", address))
	s.gate()
	pod := s.agent()
	s.awaitLog(pod, s.Logs, failed("network")) // in the middle of its rounds

	s.cleanup(func(ctx context.Context) error { return s.Signal(ctx, "CONT", "kube-apiserver") })
	s.require.NoError(s.Signal(s.ctx, "STOP", "kube-apiserver"))
	line := s.awaitLog(pod, s.LogsOnNode, failed("api"))
	s.Logf("after %s with a time limit of 1s: %s", line.Took, line.Error)
	s.require.Contains(line.Error, "no answer from the API server in time")
	took, err := time.ParseDuration(line.Took)
	s.require.NoError(err)
	s.require.GreaterOrEqual(took, time.Second)
	s.require.NoError(s.Signal(s.ctx, "CONT", "kube-apiserver"))
	s.require.NoError(s.Mend(s.ctx, node))
	s.verified()
	s.require.Zero(s.gone(pod).Status.ContainerStatuses[0].RestartCount)
}

// broken makes a network fault for the rest of the test.
func (s *suite) broken(rules ...string) {
	s.Helper()
	s.cleanup(func(ctx context.Context) error { return s.Mend(ctx, node) })
	s.require.NoError(s.Break(s.ctx, node, rules...))
}

func TestServiceWithoutReadyEndpoint(t *testing.T) {
	s := start(t, append(quick, "config.dnsService=default/e2e-empty")...)
	s.apply(`
apiVersion: v1
kind: Service
metadata: {name: e2e-empty, namespace: default}
spec: {selector: {app: e2e-nobody}, ports: [{port: 53}]}
`)
	s.gate()
	s.onlyFails("service", "service default/e2e-empty has no ready endpoint")
}

// onlyFails asserts that one check fails, with a text in its error, and no other does.
func (s *suite) onlyFails(check, text string) corev1.Pod {
	s.Helper()
	pod := s.agent()
	line := s.awaitLog(pod, s.Logs, failed(check))
	s.Log(line.Error, "- to try:", line.Remedy)
	s.require.Contains(line.Error, text)
	s.require.NotEmpty(line.Remedy)
	s.awaitMetric(pod, fmt.Sprintf(`node_check_failures_total{check=%q}`, check), 0)
	failures := s.failures(pod)
	s.require.Len(failures, 1, "%v", failures)
	s.require.Contains(failures, check)
	s.unverified()
	return pod
}

func TestDNSOverTCPDropped(t *testing.T) {
	s := start(t, quick...)
	s.broken("tcp dport 53 drop")
	s.gate()
	pods, err := s.Kube.CoreV1().Pods(harness.Namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	s.require.NoError(err)
	s.require.Len(pods.Items, 2)
	pod := s.onlyFails("service", "TCP "+pods.Items[0].Status.PodIP+":53 on node node1: timeout")
	s.awaitLog(pod, s.Logs, func(line harness.LogLine) bool {
		return strings.Contains(line.Error, "TCP "+pods.Items[1].Status.PodIP+":53 on node node1: timeout")
	})
	s.require.NoError(s.Mend(s.ctx, node))
	s.verified()
}

// An endpoint on the own node answers, those on other nodes do not.
func TestEndpointHereDoesNotMakeUpForDeadOnesElsewhere(t *testing.T) {
	s := start(t, append(quick, "config.dnsService=default/e2e-elsewhere")...)
	pods, err := s.Kube.CoreV1().Pods(harness.Namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	s.require.NoError(err)
	here := pods.Items[0].Status.PodIP
	slice := `
apiVersion: v1
kind: Service
metadata: {name: e2e-elsewhere, namespace: default}
spec: {ports: [{port: 53}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: e2e-elsewhere, namespace: default, labels: {kubernetes.io/service-name: e2e-elsewhere}}
addressType: IPv4
ports: [{port: 53, name: "", protocol: TCP}]
endpoints:
- {addresses: ["%s"], nodeName: node1, conditions: {ready: true}}
- {addresses: ["%s"], nodeName: node2, conditions: {ready: true}}
`
	s.apply(fmt.Sprintf(slice, here, "10.244.99.99"))
	s.gate()
	s.onlyFails("service", "none of its ready endpoints on other nodes answers: TCP 10.244.99.99:53 on node node2: ")

	// Once one elsewhere answers the node is opened.
	s.apply(fmt.Sprintf(slice, "10.244.99.99", pods.Items[1].Status.PodIP))
	s.verified()
}

func TestNetworkTargetDropped(t *testing.T) {
	s := start(t)
	address := s.target()
	s.require.NoError(s.Deploy(s.ctx, append(quick, "config.networkTargets[0]="+address+":80")...))
	s.broken(fmt.Sprintf("ip daddr %s drop", address))
	s.gate()
	s.onlyFails("network", "TCP "+address+":80: timeout")
	s.require.NoError(s.Mend(s.ctx, node))
	s.verified()
}

// The API server lets nobody in without a token: so its certificate was trusted, by the cluster's CA
// (it is under no other), and its answer was read.
func TestHTTPSTargetThatAnswersBadly(t *testing.T) {
	const url = "https://kubernetes.default.svc.cluster.local/livez"
	s := start(t, append(quick, "config.networkTargets[0]="+url)...)
	s.gate()
	s.onlyFails("network", "GET "+url+": 401 Unauthorized")
	s.require.NoError(s.Deploy(s.ctx, append(quick, "config.networkTargets[0]=tcp://kubernetes.default.svc.cluster.local:443")...))
	s.verified()
}

func TestAPIClusterIPDropped(t *testing.T) {
	s := start(t, quick...)
	s.broken("ip daddr 10.96.0.1 drop")
	s.gate()
	pod := s.agent()
	line := s.awaitLog(pod, s.Logs, failed("network"))
	s.Log(line.Error, "- to try:", line.Remedy)
	s.require.Contains(line.Error, "TCP 10.96.0.1:443: timeout")
	// The failures are counted when the round is over: after the diagnosis by the last check.
	s.awaitMetric(pod, `node_check_failures_total{check="api"}`, 0)
	s.require.NotContains(s.failures(pod), "dns")
	s.unverified()

	// The Event could not be sent: it comes when the path is back.
	s.require.NoError(s.Mend(s.ctx, node))
	s.verified()
	event := s.event("NodeNotVerified", "api: ")
	s.require.Contains(event.Message, "network: TCP 10.96.0.1:443: timeout")
}
