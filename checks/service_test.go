package checks

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	checkMTU     = `small packets pass and large ones do not: compare the MTU of the pods' interface with the MTU of the path (overlay, VPN, jumbo frames), and let ICMP "fragmentation needed" through`
	checkCNI     = "check the CNI on this node and on the nodes of these pods (tunnels, routes), network policies and firewalls between nodes"
	checkTCPPods = "check that the pods listen on TCP, and the CNI's routes to them"
	checkTaint   = "most likely the pods of kube-system/kube-dns are Pending because they do not tolerate the taint node-ready/unverified: " +
		"add the tolerations {key: node-ready/unverified, operator: Exists} and {key: node-ready/failed, operator: Exists} to them, " +
		"or run them on nodes that are never gated; " +
		"see: kubectl -n kube-system get pods -o wide"
)

// at makes an EndpointSlice of one endpoint.
func at(t *testing.T, address, node, portName string) EndpointSlice {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	number, err := strconv.ParseInt(port, 10, 32)
	require.NoError(t, err)
	family := "IPv4"
	if strings.Contains(host, ":") {
		family = "IPv6"
	}
	return EndpointSlice{
		AddressType: family,
		Ports:       []EndpointPort{{Name: &portName, Protocol: new("TCP"), Port: new(int32(number))}},
		Endpoints:   []Endpoint{{Addresses: []string{host}, NodeName: node}},
	}
}

// dnsPods is the check of kube-dns on node-1 with these EndpointSlices.
func dnsPods(found ...EndpointSlice) Service {
	return Service{
		Namespace: "kube-system", Service: "kube-dns", Node: "node-1", TaintKey: "node-ready/unverified", FailedTaintKey: "node-ready/failed",
		Domain: "cluster.local", MaxDials: 8, List: func(context.Context) ([]EndpointSlice, error) { return found, nil },
	}
}

// dnsPod is a DNS endpoint that answers over TCP.
func dnsPod(t *testing.T) string {
	t.Helper()
	return newNameServer(t, "127.0.0.1", tcpOpen, nil).address
}

// pod is an endpoint of the service on a node. Its port is one of DNS, if it has no other name.
type pod struct {
	listen func(*testing.T) (address string)
	node   string
	port   string
}

func TestServiceEndpoints(t *testing.T) {
	t.Parallel()
	const none = "service kube-system/kube-dns: none of its ready endpoints"
	const remote = none + " on other nodes answers: "
	const unready = "service kube-system/kube-dns has no ready endpoint "
	opens := func(t *testing.T) string { return accepting(t, "127.0.0.1") }
	other6 := func(*testing.T) string { return net.JoinHostPort(unreachable6, "53") }
	serves := func(serve func(net.Conn)) func(*testing.T) string {
		return func(t *testing.T) string { return servingEthernet(t, serve) }
	}
	loses := serves(func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	moving := dnsPod(t)
	isMoving := func(*testing.T) string { return moving }
	for _, test := range []struct {
		title       string
		pods        []pod // the addresses of the first ones are {0}, {1} and so on below
		edit        func(*EndpointSlice)
		anywhere    bool // without NODE_NAME
		within      time.Duration
		answer      string // so many of its ready endpoints
		warnings    []string
		err, remedy string
	}{
		{title: "without a readiness it counts as ready", pods: []pod{{opens, "node-2", "http"}}, answer: "1 of 1"},
		{title: "IPv6", pods: []pod{{func(t *testing.T) string { needIPv6(t); return accepting(t, "::1") }, "node-2", "http"}}, answer: "1 of 1"},
		{title: "not ready", pods: []pod{{opens, "node-2", "http"}, {opens, "node-3", "http"}},
			edit: func(s *EndpointSlice) { s.Endpoints[0].Conditions.Ready = new(false) }, err: unready + "(2 not ready)", remedy: checkTaint},
		{title: "not ready ones are not dialled", pods: []pod{{refusing, "node-2", "http"}, {opens, "node-3", "http"}},
			edit: func(s *EndpointSlice) { s.Endpoints[0].Conditions.Ready = new(s.Endpoints[0].NodeName == "node-3") }, answer: "1 of 1"},
		{title: "no slice at all", err: unready + "(0 not ready)", remedy: checkTaint},
		{title: "a slice for a service without pods", pods: []pod{{opens, "node-2", "http"}},
			edit: func(s *EndpointSlice) { *s = EndpointSlice{AddressType: "IPv4"} }, err: unready + "(0 not ready)", remedy: checkTaint},
		{title: "no TCP port", pods: []pod{{opens, "node-2", "dns"}}, edit: func(s *EndpointSlice) { s.Ports[0].Protocol = new("UDP") },
			err: "service kube-system/kube-dns has no TCP port", remedy: "set DNS_SERVICE to a service whose pods listen on TCP"},
		{title: "names in place of addresses", pods: []pod{{opens, "node-2", "http"}}, edit: func(s *EndpointSlice) { s.AddressType = "FQDN" },
			err: unready + "(0 not ready)", remedy: checkTaint},
		{title: "an endpoint without an address", pods: []pod{{opens, "node-2", "http"}}, edit: func(s *EndpointSlice) { s.Endpoints[0].Addresses = nil },
			err: unready + "(0 not ready)", remedy: checkTaint},
		{title: "the UDP port is not dialled", pods: []pod{{dnsPod, "node-2", ""}}, edit: func(s *EndpointSlice) {
			s.Ports = append([]EndpointPort{{Name: new("dns"), Protocol: new("UDP"), Port: new(int32(1))}}, s.Ports...)
		}, answer: "1 of 1"},
		{title: "one of three is dead", pods: []pod{{refusing, "node-3", ""}, {dnsPod, "node-2", ""}, {dnsPod, "node-4", ""}}, answer: "2 of 3",
			warnings: []string{"TCP {0} on node node-3: connection refused"}},
		{title: "one of three is silent", pods: []pod{{silent, "node-3", ""}, {dnsPod, "node-2", ""}, {dnsPod, "node-4", ""}}, answer: "2 of 3",
			warnings: []string{"TCP {0} on node node-3: no answer within 500ms after the first answer"}},
		{title: "one is dead, one loses large packets, none has a node name", pods: []pod{{refusing, "", ""}, {opens, "", ""}, {dnsPod, "", ""}},
			answer: "1 of 3", warnings: []string{"TCP {0}: connection refused", "TCP {1}: no answer within 500ms after the first answer"}},
		{title: "all are dead", pods: []pod{{refusing, "node-2", ""}}, err: remote + "TCP {0} on node node-2: connection refused", remedy: checkTCPPods},
		{title: "all are silent", pods: []pod{{silent, "node-2", ""}}, within: 300 * time.Millisecond,
			err: remote + "TCP {0} on node node-2: timeout", remedy: checkCNI},
		{title: "a DNS endpoint that accepts connections and loses large packets", pods: []pod{{loses, "node-2", ""}}, within: 300 * time.Millisecond,
			err: remote + "TCP {0} on node node-2 connects, but a large query (2896 bytes) got no reply: timeout", remedy: checkMTU},
		{title: "a DNS endpoint that closes the connection", pods: []pod{{serves(func(conn net.Conn) { _, _ = readStream(conn) }), "node-2", ""}},
			err: remote + "TCP {0} on node node-2 connects, but does not answer as a DNS server: connection closed", remedy: checkTCPPods},
		{title: "a DNS endpoint that closes the connection on a large query", pods: []pod{{serves(func(conn net.Conn) {
			if query, err := readStream(conn); err == nil && len(query) <= 2800 {
				writeStream(conn, script{}.reply(query, typeA, false))
			}
		}), "node-2", ""}}, answer: "1 of 1",
			warnings: []string{"TCP {0} on node node-2 connects, but closes on a large query (2896 bytes): connection closed; it answers a query of 2800 bytes: " +
				"this check does not prove that large packets come back from it"}},
		{title: "a DNS endpoint that closes the connection with most of a large query unread", pods: []pod{{serves(func(conn net.Conn) {
			var length [2]byte
			if _, err := io.ReadFull(conn, length[:]); err != nil || binary.BigEndian.Uint16(length[:]) > 2800 {
				return
			}
			query := make([]byte, binary.BigEndian.Uint16(length[:]))
			if _, err := io.ReadFull(conn, query); err == nil {
				writeStream(conn, script{}.reply(query, typeA, false))
			}
		}), "node-2", ""}}, answer: "1 of 1",
			warnings: []string{"TCP {0} on node node-2 connects, but closes on a large query (2896 bytes): connection reset; it answers a query of 2800 bytes: " +
				"this check does not prove that large packets come back from it"}},
		{title: "a DNS endpoint that answers a large query with FORMERR", pods: []pod{{serves(func(conn net.Conn) {
			if query, err := readStream(conn); err == nil {
				writeStream(conn, []byte{query[0], query[1], 0x80, formErr, 0, 0, 0, 0, 0, 0, 0, 0})
			}
		}), "node-2", ""}}, answer: "1 of 1"},
		{title: "a DNS endpoint that closes the connection on a large query and is silent on a smaller one", pods: []pod{{serves(func(conn net.Conn) {
			if query, err := readStream(conn); err == nil && len(query) <= 2800 {
				_, _ = io.Copy(io.Discard, conn)
			}
		}), "node-2", ""}}, within: 2 * time.Second,
			err: remote + "TCP {0} on node node-2 connects, but a large query (2800 bytes) got no reply: timeout", remedy: checkMTU},
		{title: "an endpoint with another protocol", pods: []pod{{serves(func(conn net.Conn) {
			_, _ = readStream(conn)
			_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, 12), "HTTP/1.1 400"...))
		}), "node-2", ""}},
			err: remote + "TCP {0} on node node-2 connects, but does not answer as a DNS server: not a DNS reply", remedy: checkTCPPods},
		{title: "own node only", pods: []pod{{dnsPod, "node-1", ""}}, answer: "1 of 1"},
		{title: "own node only, one of two is dead", pods: []pod{{refusing, "node-1", ""}, {dnsPod, "node-1", ""}}, answer: "1 of 2",
			warnings: []string{"TCP {0} on node node-1: connection refused"}},
		{title: "own node only, dead", pods: []pod{{refusing, "node-1", ""}},
			err: none + " answers: TCP {0} on node node-1: connection refused", remedy: checkTCPPods},
		{title: "a local one does not make up for a dead remote one", pods: []pod{{refusing, "node-2", ""}, {dnsPod, "node-1", ""}},
			err: remote + "TCP {0} on node node-2: connection refused", remedy: checkTCPPods},
		{title: "a local one does not make up for a remote one that loses large packets", pods: []pod{{loses, "node-2", ""}, {dnsPod, "node-1", ""}},
			within: 1500 * time.Millisecond,
			err:    remote + "TCP {0} on node node-2 connects, but a large query (2896 bytes) got no reply: timeout", remedy: checkMTU},
		{title: "a local one does not make up for one without a node name", pods: []pod{{refusing, "", ""}, {dnsPod, "node-1", ""}},
			err: remote + "TCP {0}: connection refused", remedy: checkTCPPods},
		{title: "a remote one makes up for a dead local one", pods: []pod{{refusing, "node-1", ""}, {dnsPod, "node-2", ""}}, answer: "1 of 2",
			warnings: []string{"TCP {0} on node node-1: connection refused"}},
		{title: "without NODE_NAME any one is enough", anywhere: true, pods: []pod{{refusing, "node-2", ""}, {dnsPod, "node-1", ""}}, answer: "1 of 2",
			warnings: []string{"TCP {0} on node node-2: connection refused"}},
		{title: "without NODE_NAME, and one without a node name", anywhere: true, pods: []pod{{refusing, "node-2", ""}, {dnsPod, "", ""}}, answer: "1 of 2",
			warnings: []string{"TCP {0} on node node-2: connection refused"}},
		{title: "without NODE_NAME, all dead", anywhere: true, pods: []pod{{refusing, "node-2", ""}},
			err: none + " answers: TCP {0} on node node-2: connection refused", remedy: checkTCPPods},
		{title: "a slice of a family that this node does not have", pods: []pod{{dnsPod, "node-2", ""}, {other6, "node-2", ""}}, answer: "1 of 2"},
		{title: "only a family that this node does not have", pods: []pod{{other6, "node-2", ""}},
			err: remote + "TCP {0} on node node-2: network is unreachable", remedy: checkTCPPods},
		{title: "an endpoint that is in two slices while it moves", pods: []pod{{isMoving, "node-2", ""}, {isMoving, "node-2", ""}}, answer: "1 of 1"},
	} {
		if test.within == 0 {
			test.within = enough
		}
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			var found []EndpointSlice
			var addresses []string
			for i, pod := range test.pods {
				address := pod.listen(t)
				slice := at(t, address, pod.node, cmp.Or(pod.port, "dns-tcp"))
				if test.edit != nil {
					test.edit(&slice)
				}
				found, addresses = append(found, slice), append(addresses, fmt.Sprintf("{%d}", i), address)
			}
			fill := strings.NewReplacer(addresses...)
			check := dnsPods(found...)
			if test.anywhere {
				check.Node = ""
			}

			report, err := check.Try(limited(t, test.within))

			if test.err != "" {
				require.EqualError(t, err, fill.Replace(test.err))
				assert.Equal(t, test.remedy, Remedy(err))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.answer+" ready endpoints of kube-system/kube-dns answer", report.Detail)
			var warnings []string
			for _, warning := range test.warnings {
				warnings = append(warnings, fill.Replace(warning))
			}
			assert.ElementsMatch(t, warnings, report.Warnings)
			assert.IsIncreasing(t, append([]string{""}, report.Warnings...), "in an order that does not change from attempt to attempt")
		})
	}
}

// A path whose MTU is smaller than the interface's, and that drops larger packets without ICMP.
func TestServicePathMTU(t *testing.T) {
	t.Parallel()
	answers := func(conn net.Conn) {
		if query, err := readStream(conn); err == nil {
			writeStream(conn, script{}.reply(query, typeA, false))
		}
	}
	// As CoreDNS does after two or three seconds.
	giveUp := func(conn net.Conn) {
		_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		answers(conn)
	}
	for _, test := range []struct {
		title        string
		segment, mtu int
		serve        func(net.Conn)
		within       time.Duration
		err          string
	}{
		{"1500 all the way", ethernet, 1500, answers, enough, ""},
		{"1500, then 1400", ethernet, 1400, answers, time.Second, "a large query (2896 bytes) got no reply: timeout"},
		{"9000 all the way", jumbo, 9000, answers, enough, ""},
		{"9000, then 8500", jumbo, 8500, answers, time.Second, "a large query (17896 bytes) got no reply: timeout"},
		{"9000, then 1500", jumbo, 1500, answers, time.Second, "a large query (17896 bytes) got no reply: timeout"},
		{"9000, then 8500, and the server gives up first", jumbo, 8500, giveUp, enough, "a large query (17896 bytes) got no reply: connection closed"},
		{"1300, then 1200, and the server gives up first", 1260, 1200, giveUp, enough, "a large query (2800 bytes) got no reply: connection closed"},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			address := servingPath(t, test.segment, test.mtu, test.serve)
			_, err := dnsPods(at(t, address, "node-2", "dns-tcp")).Try(limited(t, test.within))
			if test.err == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, "service kube-system/kube-dns: none of its ready endpoints on other nodes answers: "+
				"TCP "+address+" on node node-2 connects, but "+test.err)
			assert.Equal(t, checkMTU, Remedy(err))
		})
	}
}

// Twenty local endpoints cannot crowd out the two dead remote ones.
func TestServiceDialsRemoteEndpointsFirst(t *testing.T) {
	t.Parallel()
	dead, deadToo := refusing(t), refusing(t)
	found := []EndpointSlice{at(t, dead, "node-2", "http")}
	for range 20 {
		found = append(found, at(t, accepting(t, "127.0.0.1"), "node-1", "http"))
	}
	found = append(found, at(t, deadToo, "node-3", "http"))
	_, err := dnsPods(found...).Try(limited(t, enough))
	require.ErrorContains(t, err, "TCP "+dead+" on node node-2: connection refused")
	require.ErrorContains(t, err, "TCP "+deadToo+" on node node-3: connection refused")
}

func TestServiceChoosesRandomEndpoints(t *testing.T) {
	t.Parallel()
	all := func() []endpoint {
		var list []endpoint
		for i := range 30 {
			list = append(list, endpoint{address: fmt.Sprintf("local %d", i), node: "node-1"}, endpoint{address: fmt.Sprintf("remote %d", i), node: "node-2"})
		}
		return list
	}
	chosen := make(map[string]bool)
	for range 1000 {
		some := dnsPods().choose(all())
		require.Len(t, some, 8)
		for _, e := range some {
			require.Equal(t, "node-2", e.node)
			chosen[e.address] = true
		}
	}
	assert.Len(t, chosen, 30, "every remote one sooner or later")

	// With three remote ones the rest are local.
	few := append(all()[:0:0], endpoint{address: "a", node: "node-2"}, endpoint{address: "b"}, endpoint{address: "c", node: "node-3"})
	for i := range 30 {
		few = append(few, endpoint{address: fmt.Sprintf("local %d", i), node: "node-1"})
	}
	some := dnsPods().choose(few)
	require.Len(t, some, 8)
	var first []string
	for _, e := range some[:3] {
		first = append(first, e.address)
	}
	assert.ElementsMatch(t, []string{"a", "b", "c"}, first)
	assert.Len(t, dnsPods().choose(some[:8]), 8, "all of them up to eight")
	assert.Len(t, dnsPods().choose(some[:1]), 1)
}

// Two endpoints of three are on one node: another node is tried before the second one of that.
func TestServiceChoosesDifferentNodes(t *testing.T) {
	t.Parallel()
	check := dnsPods()
	check.MaxDials = 2
	for range 100 {
		some := check.choose([]endpoint{{address: "a", node: "node-2"}, {address: "b", node: "node-2"}, {address: "c", node: "node-3"}, {address: "d", node: "node-1"}})
		require.Len(t, some, 2)
		assert.ElementsMatch(t, []string{"node-2", "node-3"}, []string{some[0].node, some[1].node})
	}
}

// The DNS service is dual-stack and this node is not: an endpoint of each family is tried on each node, so that no round has those of the other
// family only.
func TestServiceOfTwoFamilies(t *testing.T) {
	t.Parallel()
	var found []EndpointSlice
	for _, node := range []string{"node-2", "node-3", "node-4"} {
		found = append(found, at(t, dnsPod(t), node, "dns-tcp"), at(t, net.JoinHostPort(unreachable6, "53"), node, "dns-tcp"))
	}
	check := dnsPods(found...)
	check.MaxDials, check.FewestNodes, check.SmallPackets = 2, 2, true
	for range 100 {
		report, err := check.Try(limited(t, enough))
		require.NoError(t, err)
		require.Equal(t, Report{Detail: "2 of 4 ready endpoints of kube-system/kube-dns answer"}, report)
	}
}

func TestServiceChoosesBothFamilies(t *testing.T) {
	t.Parallel()
	var all []endpoint
	for i := range 30 {
		node := fmt.Sprintf("node-%d", i%10)
		all = append(all, endpoint{address: fmt.Sprintf("10.0.0.%d:53", i), node: node}, endpoint{address: fmt.Sprintf("[fd00::%d]:53", i), node: node})
	}
	for dials, nodes := range map[int]int{8: 4, 2: 2} {
		check := dnsPods()
		check.MaxDials = dials
		met := make(map[string]bool)
		for range 200 {
			families := make(map[string][]bool)
			for _, e := range check.choose(slices.Clone(all)) {
				families[e.node] = append(families[e.node], strings.HasPrefix(e.address, "["))
				met[e.address] = true
			}
			require.Len(t, families, nodes)
			for node, both := range families {
				require.NotEqual(t, "node-1", node, "this one")
				require.ElementsMatch(t, []bool{true, false}, both)
			}
		}
		assert.Len(t, met, 54, "every remote one sooner or later")
	}
}

// With FewestNodes a single other node proves nothing: of two nodes with DNS pods, the broken one would fail the healthy one.
func TestServiceOnFewNodes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		local          string
		remote         []string // nodes
		loses, failure bool
	}{
		"a DNS pod here, one on a broken node":  {local: dnsPod(t), remote: []string{"node-2"}},
		"a broken DNS pod here, and there":      {local: refusing(t), remote: []string{"node-2"}},
		"a broken DNS pod here":                 {local: refusing(t)},
		"two DNS pods on a broken node":         {remote: []string{"node-2", "node-2"}},
		"two whose nodes are unknown":           {remote: []string{"", ""}},
		"two broken nodes":                      {local: dnsPod(t), remote: []string{"node-2", "node-3"}, failure: true},
		"two nodes that lose large packets":     {remote: []string{"node-2", "node-3"}, loses: true, failure: true},
		"one node that loses large packets":     {local: dnsPod(t), remote: []string{"node-2"}, loses: true},
		"a known node and one that is unknown ": {remote: []string{"node-2", ""}, failure: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var found []EndpointSlice
			var broken []string
			if test.local != "" {
				found = append(found, at(t, test.local, "node-1", "dns-tcp"))
			}
			for _, node := range test.remote {
				address := refusing(t)
				if test.loses {
					address = servingEthernet(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
				}
				found, broken = append(found, at(t, address, node, "dns-tcp")), append(broken, address)
			}
			check := dnsPods(found...)
			check.FewestNodes = 2
			report, err := check.Try(limited(t, time.Second))
			if test.failure {
				require.ErrorContains(t, err, "service kube-system/kube-dns: none of its ready endpoints on other nodes answers: TCP ")
				return
			}
			require.NoError(t, err)
			warnings := strings.Join(report.Warnings, "\n")
			for _, address := range broken {
				assert.Contains(t, warnings, "TCP "+address)
			}
		})
	}
}

// A family that the node does not have is named where nothing else answers.
func TestServiceNamesAMissingFamily(t *testing.T) {
	t.Parallel()
	check := dnsPods(at(t, net.JoinHostPort(unreachable6, "53"), "node-2", "dns-tcp"))
	check.FewestNodes = 2
	report, err := check.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, []string{"TCP [ff02::1]:53 on node node-2: network is unreachable"}, report.Warnings)
}

// To a port other than DNS it only connects.
func TestServiceSendsNothingToAnotherPort(t *testing.T) {
	t.Parallel()
	received := make(chan int, 1)
	address := serving(t, "127.0.0.1", func(conn net.Conn) {
		n, _ := conn.Read(make([]byte, 1))
		received <- n
	})
	_, err := dnsPods(at(t, address, "node-2", "https")).Try(limited(t, enough))
	require.NoError(t, err)
	assert.Zero(t, receive(t, received))
}

func TestServiceThatCannotBeListed(t *testing.T) {
	t.Parallel()
	check := dnsPods()
	const grant = "apply the Role and its binding from the chart in namespace kube-system: endpointslices, list"
	resource := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	check.List = func(context.Context) ([]EndpointSlice, error) {
		return nil, apierrors.NewForbidden(resource, "", errors.New("no such role"))
	}
	_, err := check.Try(limited(t, enough))
	require.EqualError(t, err, `EndpointSlices of kube-system/kube-dns: authorization: endpointslices.discovery.k8s.io is forbidden: no such role`)
	assert.Equal(t, grant, Remedy(err))
	check.MayBeUnknown = true
	report, err := check.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Len(t, report.Warnings, 1)

	check.List = func(ctx context.Context) ([]EndpointSlice, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_, err = check.Try(limited(t, 50*time.Millisecond))
	require.EqualError(t, err, "EndpointSlices of kube-system/kube-dns: no answer from the API server in time: context deadline exceeded")
}
