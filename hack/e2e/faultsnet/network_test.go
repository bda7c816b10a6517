package faultsnet

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/faults"
	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const apiService = "10.96.0.1"

func TestFaultClusterIP(t *testing.T) {
	for _, c := range []struct{ fault, rule, api, network string }{
		{"ClusterIP of the API dropped", "drop", "no answer from the API server in time", "TCP 10.96.0.1:443: timeout"},
		{"ClusterIP of the API refused", "reject with tcp reset", "connection refused", "TCP 10.96.0.1:443: connection refused"},
	} {
		fault(t, c.fault, "closed: api, network", func(s *suite) {
			out, _ := s.directions()
			s.rounds(func() {
				s.NoError(s.Break(s.ctx, node, out+"ip daddr "+apiService+" tcp dport 443 "+c.rule))
				s.onlyFails(s.agent(quick(), nil), map[string]string{"api": c.api, "network": c.network, "service": c.api})
				s.recovers(s.mend)
			})
		})
	}
}

// threeEndpoints makes CoreDNS three pods for the rest of the test, and returns their addresses.
func (s *suite) threeEndpoints() []string {
	s.Helper()
	s.cleanup(func(ctx context.Context) error { return s.ScaleCoreDNS(ctx, 2) })
	s.NoError(s.ScaleCoreDNS(s.ctx, 3))
	pods, err := s.Kube.CoreV1().Pods(harness.Namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	s.NoError(err)
	var addresses []string
	for _, pod := range pods.Items {
		addresses = append(addresses, pod.Status.PodIP)
	}
	return addresses
}

func TestFaultDeadEndpoints(t *testing.T) {
	fault(t, "one CoreDNS endpoint of three dead", "opened, with a warning that names it", func(s *suite) {
		endpoints := s.threeEndpoints()
		out, _ := s.directions()
		s.rounds(func() {
			s.NoError(s.BreakForwarded(s.ctx, node, out+"ip daddr "+endpoints[0]+" drop"))
			pod := s.agent(nil, nil)
			s.opened()
			s.row.Round()
			warnings := s.warnings(pod)
			s.Log(warnings)
			s.Contains(warnings, "service: TCP "+endpoints[0]+":53")
			s.NotContains(warnings, "TCP "+endpoints[1]+":")
			s.NotContains(warnings, "TCP "+endpoints[2]+":")
		})
	})
	fault(t, "all three CoreDNS endpoints dead", "closed: dns, service", func(s *suite) {
		endpoints := s.threeEndpoints()
		out, _ := s.directions()
		s.broken(map[string]string{"dns": "timeout", "service": "none of its ready endpoints answers: "},
			out+"ip daddr { "+strings.Join(endpoints, ", ")+" } drop")
	})
}

// flap lets the agents on and cuts them off, for as long each as the fault is named after, until the
// node is open or that many times are over. It tells whether the node is open.
func (s *suite) flap(times int) bool {
	s.Helper()
	const period = 2 * time.Second
	for range times {
		s.NoError(s.mend())
		s.last(period)
		s.unplug()
		s.last(period / 2) // what had reached the API server before that is done by now
		open := harness.Verified(s.node())
		s.last(period / 2)
		s.Equal(open, harness.Verified(s.node()), "the node was opened while its link was down")
		if open {
			return true
		}
	}
	return false
}

func (s *suite) unplug() {
	s.Helper()
	out, in := s.directions()
	s.NoError(s.BreakForwarded(s.ctx, node, out+"drop", in+"drop"))
}

// last lets a fault last: its length is what the test is about.
func (s *suite) last(period time.Duration) {
	s.Helper()
	select {
	case <-s.ctx.Done():
		s.Fatal(s.ctx.Err())
	case <-time.After(period):
	}
}

func TestFaultFlappingLink(t *testing.T) {
	fault(t, "link up 2 s, down 2 s", "opened, while it is up or once it is stable", func(s *suite) {
		s.rounds(func() {
			s.unplug()
			s.failedRound(s.agent(quick(), nil))
			began := time.Now()
			s.flap(faults.Pick(3, 10))
			s.NoError(s.mend())
			s.row.Recovered(s.opened().Sub(began))
		})
	})
	fault(t, "link up 2 s, down 2 s, SUCCESS_THRESHOLD=5", "opened once the link is stable", func(s *suite) {
		settings := quick()
		settings["SUCCESS_THRESHOLD"] = "5"
		s.rounds(func() {
			s.unplug()
			s.failedRound(s.agent(settings, nil))
			s.False(s.flap(faults.Pick(1, 5)), "opened")
			s.closed()
			s.recovers(s.mend)
		})
	})
}

// The time is from the creation of the agent's pod until the node is open.
func TestFaultPacketLoss(t *testing.T) {
	fault(t, "10 % of the agent's packets lost, each way", "opened", func(s *suite) {
		out, in := s.directions()
		s.lossy(faults.Pick(3, 20), out+"numgen random mod 100 < 10 drop", in+"numgen random mod 100 < 10 drop")
	})
	fault(t, "30 % of its DNS packets lost, each way", "opened", func(s *suite) {
		out, in := s.directions()
		s.lossy(faults.Pick(1, 20), out+"meta l4proto { tcp, udp } th dport 53 numgen random mod 100 < 30 drop",
			in+"meta l4proto { tcp, udp } th sport 53 numgen random mod 100 < 30 drop")
	})
}

func (s *suite) lossy(runs int, rules ...string) {
	s.Helper()
	for range runs {
		s.NoError(s.BreakForwarded(s.ctx, node, rules...))
		s.agent(nil, nil)
		began := time.Now()
		s.row.Recovered(s.opened().Sub(began))
		s.NoError(s.mend())
	}
}
