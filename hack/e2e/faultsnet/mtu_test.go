package faultsnet

import (
	"context"
	"testing"
)

// large is what a path drops whose MTU is smaller than the interface says. The kernel hands
// segments on in bundles, which are dropped too, and sends them one by one after that: those that are
// larger than this never arrive.
const large = "meta length > 1400 "

// What a healthy agent sends and is sent has to be large enough to find such a path.
func TestFaultNoneButLargePackets(t *testing.T) {
	fault(t, "none: packets above 1,400 bytes are counted", "verified; some each way, to the API server and to CoreDNS's pods", func(s *suite) {
		out, in := s.directions()
		s.breakForwarded(out+"tcp dport 6443 "+large+"counter", in+"tcp sport 6443 "+large+"counter",
			out+"tcp dport 53 "+large+"counter", in+"tcp sport 53 "+large+"counter")
		s.passes(nil, nil)
		counted, err := s.Counted(s.Ctx, node)
		s.NoError(err)
		s.Len(counted, 4)
		s.NotContains(counted, 0)
		s.Logf("packets above 1,400 bytes: to the API server %d, back %d; to CoreDNS %d, back %d", counted[0], counted[1], counted[2], counted[3])
	})
}

// noAPI is what fails without an answer from the API server: the service check lists by it, too.
func noAPI() map[string]string {
	return map[string]string{"api": "no answer from the API server in time", "service": "no answer from the API server in time"}
}

func TestFaultPathMTU(t *testing.T) {
	dns := map[string]string{"service": ":53 on node node1 connects, but a large query (2896 bytes) got no reply: timeout"}
	for _, c := range []struct {
		fault, outcome string
		port           string
		back           bool
		fails          map[string]string
	}{
		{"large packets to the API server are dropped", "not verified: api", "6443", false, noAPI()},
		{"large packets from the API server are dropped", "not verified: api", "6443", true, noAPI()},
		{"large packets to CoreDNS's pods are dropped", "not verified: service", "53", false, dns},
		{"large packets from CoreDNS's pods are dropped", "not verified: service", "53", true, dns},
	} {
		fault(t, c.fault, c.outcome, func(s *suite) {
			out, in := s.directions()
			rule := out + "tcp dport " + c.port
			if c.back {
				rule = in + "tcp sport " + c.port
			}
			s.broken(c.fails, rule+" "+large+"drop")
		})
	}
}

// A route with a smaller MTU than the pod's interface, as behind a tunnel: the node's own kernel
// says so with ICMP, which passes, or is dropped.
func TestFaultSmallerMTUOnTheWay(t *testing.T) {
	fault(t, "path MTU 1,280 to the API server, ICMP passes", "verified", func(s *suite) {
		s.smallRoute()
		s.rounds(func() { s.passes(quick(), nil) })
	})
	fault(t, "path MTU 1,280 to the API server, ICMP dropped", "not verified: api", func(s *suite) {
		s.smallRoute()
		s.rounds(func() {
			s.NoError(s.Filter(s.Ctx, node, "output priority filter", "icmp type destination-unreachable icmp code frag-needed drop"))
			s.onlyFails(s.agent(quick(), nil), noAPI())
			s.recovers(s.Repair)
		})
	})
}

func (s *suite) smallRoute() {
	s.Helper()
	server := s.Kube.CoreV1().RESTClient().Get().URL().Hostname()
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Script(ctx, "enter", node, "ip", "route", "flush", "exact", server+"/32")
		return err
	})
	s.Script("enter", node, "ip", "route", "replace", server+"/32", "dev", "eth0", "mtu", "1280")
}
