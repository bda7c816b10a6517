package faultsnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
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
		counted, err := s.Cluster.Counted(s.Ctx, node)
		s.NoError(err)
		s.Len(counted, 4)
		s.NotContains(counted, 0)
		s.T.Logf("packets above 1,400 bytes: to the API server %d, back %d; to CoreDNS %d, back %d", counted[0], counted[1], counted[2], counted[3])
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
		s.smallRoute(1280)
		s.rounds(func() { s.passes(quick(), nil) })
	})
	fault(t, "path MTU 1,280 to the API server, ICMP dropped", "not verified: api", func(s *suite) {
		s.smallRoute(1280)
		s.rounds(func() {
			s.dropICMP()
			s.onlyFails(s.agent(quick(), nil), noAPI())
			s.recovers(s.Repair)
		})
	})
}

// Pods with jumbo frames, and a path that carries less, as behind a VPN or in another network. A packet between both sizes
// is lost, and only a request of more than two full packets has one.
func TestFaultJumboFrames(t *testing.T) {
	jumbo := &suite{Suite: harness.Start(t)}
	jumbo.jumboFrames()
	const fault9001, lost = "MTU 9,001 of the pods, path MTU %d to %s, ICMP dropped", ":53 on node node1 connects, but a large query (17898 bytes) got no reply: "
	fault(t, "MTU 9,001 of the pods and all the way", "verified", func(s *suite) {
		s.rounds(func() { s.passes(quick(), nil) })
	})
	mtus := []int{8500}
	if harness.Long() {
		mtus = append(mtus, 1500)
	}
	for _, mtu := range mtus {
		fault(t, fmt.Sprintf(fault9001, mtu, "CoreDNS's pods"), "not verified: service", func(s *suite) {
			s.smallRoutesToDNS(mtu)
			s.rounds(func() {
				s.dropICMP()
				s.onlyFails(s.agent(quick(), nil), map[string]string{"service": lost + "timeout"})
				// CoreDNS gives up after three seconds.
				s.onlyFails(s.agent(quick("CHECK_TIMEOUT", "10s"), nil), map[string]string{"service": lost + "connection closed"})
				s.recovers(s.Repair)
			})
		})
		fault(t, fmt.Sprintf(fault9001, mtu, "the API server"), "not verified: api", func(s *suite) {
			s.smallRoute(mtu)
			s.rounds(func() {
				s.dropICMP()
				// The service check passes on a connection of its own, where the TLS handshake fits the path.
				s.failedRound(s.agent(quick(), nil), fails("api", "no answer from the API server in time"))
				s.recovers(s.Repair)
			})
		})
	}
}

// jumboFrames sets the MTU of 9,001 for the rest of the test: on the way to the API server, for CoreDNS's pods and for those
// that start on the node.
func (s *suite) jumboFrames() {
	s.T.Helper()
	s.mtuToAPIServer(9001)
	file := filepath.Join(s.Cluster.Dir, "nodes", node, "net.d", "10-ptp.conflist")
	config, err := os.ReadFile(file)
	s.NoError(err)
	restart := func(ctx context.Context, config []byte) error {
		// containerd reads the folder again when a file in it is renamed.
		return errors.Join(os.WriteFile(file+".new", config, 0o600), os.Rename(file+".new", file),
			s.Cluster.ScaleCoreDNS(ctx, 0), s.Cluster.ScaleCoreDNS(ctx, 2))
	}
	s.Undo(func(ctx context.Context) error { return restart(ctx, config) })
	s.NoError(restart(s.Ctx, bytes.Replace(config, []byte(`"type": "ptp"`), []byte(`"type": "ptp", "mtu": 9001`), 1)))
	for _, pod := range s.CoreDNSPods() {
		s.Contains(s.Script("enter-pod", pod.Namespace, pod.Name, "ip", "link", "show", "eth0"), "mtu 9001")
	}
}

// mtuToAPIServer sets the MTU of the links between the node and the API server for the rest of the test.
func (s *suite) mtuToAPIServer(mtu int) {
	s.T.Helper()
	set := func(ctx context.Context, mtu int) error {
		var errs []error
		for _, link := range [][2]string{{"control", "veth1"}, {"control", "br0"}, {node, "eth0"}} {
			_, err := s.Cluster.Script(ctx, "enter", link[0], "ip", "link", "set", "dev", link[1], "mtu", strconv.Itoa(mtu))
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	s.Undo(func(ctx context.Context) error { return set(ctx, 1500) })
	s.NoError(set(s.Ctx, mtu))
}

// smallRoutesToDNS is smallRoute to CoreDNS's pods.
func (s *suite) smallRoutesToDNS(mtu int) {
	s.T.Helper()
	for _, pod := range s.CoreDNSPods() {
		route := append([]string{"enter", node, "ip", "route", "replace"}, strings.Fields(s.Script("enter", node, "ip", "route", "show", pod.Status.PodIP))...)
		s.Undo(func(ctx context.Context) error {
			_, err := s.Cluster.Script(ctx, route...)
			return err
		})
		s.Script(append(slices.Clip(route), "mtu", strconv.Itoa(mtu))...)
	}
}

// dropICMP keeps the node's kernel from naming the MTU of a route, until Repair.
func (s *suite) dropICMP() {
	s.T.Helper()
	s.NoError(s.Cluster.Filter(s.Ctx, node, "output priority filter", "icmp type destination-unreachable icmp code frag-needed drop"))
}

// smallRoute sets the MTU of the node's route to the API server for the rest of the test.
func (s *suite) smallRoute(mtu int) {
	s.T.Helper()
	server := s.Cluster.Kube.CoreV1().RESTClient().Get().URL().Hostname()
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Script(ctx, "enter", node, "ip", "route", "flush", "exact", server+"/32")
		return err
	})
	s.Script("enter", node, "ip", "route", "replace", server+"/32", "dev", "eth0", "mtu", strconv.Itoa(mtu))
}
