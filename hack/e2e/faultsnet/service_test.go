package faultsnet

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// patchCoreDNS patches its deployment, and waits for nothing.
func (s *suite) patchCoreDNS(ctx context.Context, patch string) error {
	_, err := s.Cluster.Kube.AppsV1().Deployments(harness.Namespace).Patch(ctx, "coredns", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

const twoReplicas = `{"spec":{"replicas":2}}`

// The cluster that locks itself: its only node is gated, and the DNS pods do not tolerate that.
func TestFaultDNSPodsDoNotTolerateTheTaint(t *testing.T) {
	tolerations := func(further string) string {
		return fmt.Sprintf(`{"spec":{"template":{"spec":{"tolerations":[{"key":"CriticalAddonsOnly","operator":"Exists"}%s]}}}}`, further)
	}
	own := tolerations(fmt.Sprintf(`,{"key":%q,"operator":"Exists"}`, harness.Taint))
	fault(t, "DNS pods do not tolerate the startup taint", "not verified: service, with the toleration in log and Event", func(s *suite) {
		s.ScaleCoreDNS(0)
		s.Undo(func(ctx context.Context) error { return s.patchCoreDNS(ctx, own) }) // before it is scaled up again
		s.NoError(s.patchCoreDNS(s.Ctx, tolerations("")))
		s.gate()
		s.NoError(s.patchCoreDNS(s.Ctx, twoReplicas))
		s.Until(func() (bool, error) { return len(s.CoreDNSPods()) == 2, nil })
		pod := s.agent(quick(), nil)

		event := s.Event("NodeNotVerified", "service: ")
		s.T.Log(event.Message)
		for _, part := range []string{"pods of kube-system/kube-dns are Pending", "{key: node-ready/unverified, operator: Exists}"} {
			s.Contains(event.Message, part)
			s.AwaitLog(pod, func(line harness.LogLine) bool { return strings.Contains(line.Remedy, part) })
		}
		s.unverified()

		s.recovers(func() { s.NoError(s.patchCoreDNS(s.Ctx, own)) })
		s.NoError(s.Cluster.AwaitCoreDNS(s.Ctx, 2))
	})
}

func TestFaultNoDNSPods(t *testing.T) {
	fault(t, "CoreDNS scaled to zero", "not verified: dns, service; verified without a restart", func(s *suite) {
		s.ScaleCoreDNS(0)
		pod := s.agent(quick(), nil)
		const series = `node_check_failures_total{check="dns"}`
		s.AwaitMetric(pod, series, 0)
		s.AwaitMetric(pod, series, s.Metric(pod, series)) // it grows
		_, status, err := s.Cluster.Get(s.Ctx, pod, "readyz")
		s.NoError(err)
		s.Equal(503, status)
		s.Zero(s.Metric(pod, "node_check_status"))
		s.unverified()
		s.SameProcess(pod)
		s.T.Log(s.Event("NodeNotVerified", "dns: ").Message)

		s.recovers(func() { s.NoError(s.patchCoreDNS(s.Ctx, twoReplicas)) })
		s.SameProcess(pod)
	})
}

func TestFaultNoReadyEndpoint(t *testing.T) {
	fault(t, "DNS service without a ready endpoint", "not verified: service", func(s *suite) {
		s.Apply(`
apiVersion: v1
kind: Service
metadata: {name: e2e-empty, namespace: kube-system}
spec: {selector: {app: e2e-nobody}, ports: [{port: 53}]}
`)
		s.rounds(func() {
			s.onlyFailsAndCounts(s.agent(quick("DNS_SERVICE", "kube-system/e2e-empty"), nil),
				map[string]string{"service": "service kube-system/e2e-empty has no ready endpoint"})
			s.row.Round()
		})
	})
}
