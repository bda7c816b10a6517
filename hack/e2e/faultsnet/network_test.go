package faultsnet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const apiService = "10.96.0.1"

func TestFaultClusterIP(t *testing.T) {
	for _, c := range []struct{ fault, rule, api, network string }{
		{"ClusterIP of the API dropped", "drop", "no answer from the API server in time", "TCP 10.96.0.1:443: timeout"},
		{"ClusterIP of the API refused", "reject with tcp reset", "connection refused", "TCP 10.96.0.1:443: connection refused"},
	} {
		fault(t, c.fault, "not verified: api, network; its Event comes when the path is back", func(s *suite) {
			out, _ := s.directions()
			s.rounds(func() {
				s.Break(out + "ip daddr " + apiService + " tcp dport 443 " + c.rule)
				s.onlyFailsAndCounts(s.agent(quick(), nil), map[string]string{"api": c.api, "network": c.network, "service": c.api})
				s.recovers(s.Repair)
				s.Contains(s.Event("NodeNotVerified", "network: "+c.network).Message, "api: ") // not the Event of the other fault
			})
		})
	}
}

func TestFaultNetworkTarget(t *testing.T) {
	fault(t, "network target dropped", "not verified: network", func(s *suite) {
		address := s.Target()
		s.rounds(func() {
			s.Break("ip daddr " + address + " drop")
			s.onlyFailsAndCounts(s.agent(quick("NETWORK_TARGETS", address+":80"), nil), map[string]string{"network": "TCP " + address + ":80: timeout"})
			s.recovers(s.Repair)
		})
	})
	// The API server refuses clients without a token: so its certificate was trusted, by the cluster's CA
	// (it is under no other), and its answer was read.
	fault(t, "https target answers 401", "not verified: network", func(s *suite) {
		const address = "kubernetes.default.svc.cluster.local"
		s.rounds(func() {
			s.onlyFailsAndCounts(s.agent(quick("NETWORK_TARGETS", "https://"+address+"/livez"), nil), map[string]string{"network": "GET https://" + address + "/livez: 401 Unauthorized"})
			s.passes(quick("NETWORK_TARGETS", "tcp://"+address+":443"), nil)
		})
	})
}

func TestFaultAPIServerStopped(t *testing.T) {
	fault(t, "API server stopped (SIGSTOP) in the middle of the rounds", "not verified: api; verified without a restart", func(s *suite) {
		address := s.Target()
		s.rounds(func() {
			s.Break("ip daddr " + address + " drop")
			pod := s.agent(quick("NETWORK_TARGETS", address+":80"), nil)
			s.AwaitLog(pod, harness.FailedCheck("network"))

			resume := s.Pause("kube-apiserver")
			line, err := harness.AwaitLine(s.Ctx, func() ([]harness.LogLine, error) { return s.Cluster.LogsOnNode(s.Ctx, pod) }, harness.FailedCheck("api"))
			s.NoError(err)
			s.T.Logf("after %s with a time limit of 1s: %s", line.Took, line.Error)
			s.Contains(line.Error, "no answer from the API server in time")
			took, err := time.ParseDuration(line.Took)
			s.NoError(err)
			s.GreaterOrEqual(took, time.Second)
			resume()
			s.recovers(s.Repair)
			s.SameProcess(pod)
		})
	})
}

// threeEndpoints makes CoreDNS three pods for the rest of the test, and returns their addresses.
func (s *suite) threeEndpoints() (addresses []string) {
	s.T.Helper()
	s.ScaleCoreDNS(3)
	for _, pod := range s.CoreDNSPods() {
		addresses = append(addresses, pod.Status.PodIP)
	}
	return addresses
}

func TestFaultDeadEndpoints(t *testing.T) {
	fault(t, "one CoreDNS endpoint of three dead", "verified, with a warning that names it", func(s *suite) {
		endpoints := s.threeEndpoints()
		out, _ := s.directions()
		s.rounds(func() {
			s.breakForwarded(out + "ip daddr " + endpoints[0] + " drop")
			warnings, _ := s.passes(nil, nil)
			s.T.Log(warnings)
			s.Contains(warnings, "service: TCP "+endpoints[0]+":53")
			s.NotContains(warnings, "TCP "+endpoints[1]+":")
			s.NotContains(warnings, "TCP "+endpoints[2]+":")
		})
	})
	fault(t, "all three CoreDNS endpoints dead", "not verified: dns, service", func(s *suite) {
		endpoints := s.threeEndpoints()
		out, _ := s.directions()
		s.broken(map[string]string{"dns": "timeout", "service": "none of its ready endpoints answers: "},
			out+"ip daddr { "+strings.Join(endpoints, ", ")+" } drop")
	})
	fault(t, "TCP to CoreDNS dropped", "not verified: service, which names both pods", func(s *suite) {
		pods := s.CoreDNSPods()
		s.Len(pods, 2)
		s.rounds(func() {
			s.Break("tcp dport 53 drop")
			pod := s.agent(quick(), nil)
			s.onlyFailsAndCounts(pod, map[string]string{"service": "TCP " + pods[0].Status.PodIP + ":53 on node node1: timeout"})
			s.AwaitLog(pod, func(line harness.LogLine) bool {
				return strings.Contains(line.Error, "TCP "+pods[1].Status.PodIP+":53 on node node1: timeout")
			})
			s.recovers(s.Repair)
		})
	})
	// A local endpoint answers, the remote one does not.
	fault(t, "remote endpoint dead, a local one answers", "not verified: service; verified once a remote one answers", func(s *suite) {
		pods := s.CoreDNSPods()
		slice := func(local, remote string) {
			s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: e2e-remote, namespace: kube-system}
spec: {ports: [{port: 53}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: e2e-remote, namespace: kube-system, labels: {kubernetes.io/service-name: e2e-remote}}
addressType: IPv4
ports: [{port: 53, name: "", protocol: TCP}]
endpoints:
- {addresses: ["%s"], nodeName: node1, conditions: {ready: true}}
- {addresses: ["%s"], nodeName: node2, conditions: {ready: true}}
`, local, remote))
		}
		s.rounds(func() {
			slice(pods[0].Status.PodIP, "10.244.99.99")
			s.onlyFailsAndCounts(s.agent(quick("DNS_SERVICE", "kube-system/e2e-remote"), nil),
				map[string]string{"service": "none of its ready endpoints on other nodes answers: TCP 10.244.99.99:53 on node node2: "})
			s.recovers(func() { slice("10.244.99.99", pods[1].Status.PodIP) })
		})
	})
}

// flap lets the agents on and cuts them off, for as long each as the fault is named after, until the
// node is verified or that many times are over.
func (s *suite) flap(times int) {
	s.T.Helper()
	const period = 2 * time.Second
	for range times {
		s.Repair()
		s.last(period)
		s.unplug()
		s.last(period)
		if harness.Verified(s.Node(node)) {
			return
		}
	}
}

func (s *suite) unplug() {
	s.T.Helper()
	out, in := s.directions()
	s.breakForwarded(out+"drop", in+"drop")
}

// last lets a fault last: its length is what the test is about.
func (s *suite) last(period time.Duration) {
	s.T.Helper()
	select {
	case <-s.Ctx.Done():
		s.T.Fatal(s.Ctx.Err())
	case <-time.After(period):
	}
}

func TestFaultFlappingLink(t *testing.T) {
	fault(t, "link up 2 s, down 2 s", "verified, while it is up or once it is stable", func(s *suite) {
		s.rounds(func() {
			s.unplug()
			s.failedRound(s.agent(quick(), nil), func(failed map[string]string) bool { return len(failed) > 0 })
			began := time.Now()
			s.flap(harness.Pick(3, 10))
			s.Repair()
			s.row.Recovered(s.verified().Sub(began))
		})
	})
}

// The time is from the creation of the agent's pod until the node is verified.
func TestFaultPacketLoss(t *testing.T) {
	fault(t, "10 % of the agent's packets lost, each way", "verified", func(s *suite) {
		out, in := s.directions()
		s.lossy(harness.Pick(3, 20), out+"numgen random mod 100 < 10 drop", in+"numgen random mod 100 < 10 drop")
	})
	fault(t, "30 % of its DNS packets lost, each way", "verified", func(s *suite) {
		out, in := s.directions()
		s.lossy(harness.Pick(1, 20), out+"meta l4proto { tcp, udp } th dport 53 numgen random mod 100 < 30 drop",
			in+"meta l4proto { tcp, udp } th sport 53 numgen random mod 100 < 30 drop")
	})
}

func (s *suite) lossy(runs int, rules ...string) {
	s.T.Helper()
	for range runs {
		s.breakForwarded(rules...)
		s.agent(nil, nil)
		began := time.Now()
		s.row.Recovered(s.verified().Sub(began))
		s.Repair()
	}
}
