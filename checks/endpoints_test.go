package checks

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestTCPPort(t *testing.T) {
	t.Parallel()
	port := func(name string, protocol *string, number int32) EndpointPort {
		return EndpointPort{Name: &name, Protocol: protocol, Port: &number}
	}
	tcp, udp, sctp := new("TCP"), new("UDP"), new("SCTP")
	for _, test := range []struct {
		title   string
		ports   []EndpointPort
		port    string
		dns, ok bool
	}{
		{"CoreDNS", []EndpointPort{port("dns", udp, 53), port("dns-tcp", tcp, 53), port("metrics", tcp, 9153)}, "53", true, true},
		{"CoreDNS, metrics first", []EndpointPort{port("metrics", tcp, 9153), port("dns", udp, 53), port("dns-tcp", tcp, 53)}, "53", true, true},
		{"OpenShift", []EndpointPort{port("dns", udp, 5353), port("metrics", tcp, 9154), port("dns-tcp", tcp, 5353)}, "5353", true, true},
		{"port 53 by any name", []EndpointPort{port("metrics", tcp, 9153), port("tcp-53", tcp, 53)}, "53", true, true},
		{"without a protocol it is TCP", []EndpointPort{port("http", nil, 80)}, "80", false, true},
		{"the first of several", []EndpointPort{port("http", tcp, 80), port("https", tcp, 443)}, "80", false, true},
		{"the first DNS port of several", []EndpointPort{port("dns-tcp", tcp, 5353), port("dns", tcp, 53)}, "5353", true, true},
		{"UDP and SCTP", []EndpointPort{port("dns", udp, 53), port("dns-tcp", sctp, 53)}, "", false, false},
		{"a port without a number", []EndpointPort{{Name: new("any"), Protocol: tcp}}, "", false, false},
		{"a port without a name", []EndpointPort{{Protocol: tcp, Port: new(int32(8080))}}, "8080", false, true},
		{"none", nil, "", false, false},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			number, dns, ok := tcpPort(test.ports)
			assert.Equal(t, test.port, number)
			assert.Equal(t, test.dns, dns)
			assert.Equal(t, test.ok, ok)
		})
	}
}

// This package's types read what the API sends.
func TestEndpointSliceFromTheAPI(t *testing.T) {
	text, err := json.Marshal(discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv6,
		Ports:       []discoveryv1.EndpointPort{{Name: new("dns-tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(53))}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"2001:db8::1"}, NodeName: new("node-2"),
			Conditions: discoveryv1.EndpointConditions{Ready: new(false)},
		}},
	})
	require.NoError(t, err)
	var got EndpointSlice
	require.NoError(t, json.Unmarshal(text, &got))
	want := EndpointSlice{
		AddressType: "IPv6",
		Ports:       []EndpointPort{{Name: new("dns-tcp"), Protocol: new("TCP"), Port: new(int32(53))}},
		Endpoints:   []Endpoint{{Addresses: []string{"2001:db8::1"}, NodeName: "node-2"}},
	}
	want.Endpoints[0].Conditions.Ready = new(false)
	assert.Equal(t, want, got)
}

// What the controller lists, a worker connects to.
func TestEndpointsByName(t *testing.T) {
	t.Parallel()
	slice := func(name string, port int32, endpoints ...Endpoint) EndpointSlice {
		return EndpointSlice{Ports: []EndpointPort{{Name: &name, Port: &port}}, Endpoints: endpoints}
	}
	unready := Endpoint{Addresses: []string{"10.0.0.9"}, NodeName: "node9"}
	unready.Conditions.Ready = new(false)
	found := []EndpointSlice{
		slice("dns-tcp", 53, Endpoint{Addresses: []string{"10.0.0.1"}, NodeName: "node1"}, unready),
		slice("dns-tcp", 5353, Endpoint{Addresses: []string{"fd00::1"}, NodeName: "node2.example"}),
		slice("metrics", 9153, Endpoint{Addresses: []string{"10.0.0.2"}}),
		{Ports: []EndpointPort{{Protocol: new("UDP"), Port: new(int32(53))}}, Endpoints: []Endpoint{{Addresses: []string{"10.0.0.3"}}}},
	}
	texts := FormatEndpoints(found)
	assert.Equal(t, []string{"10.0.0.1:53/node1", "[fd00::1]:5353/node2.example/dns-tcp", "10.0.0.2:9153/"}, texts)

	parsed, err := ParseEndpoints(append(texts, "10.0.0.4:53"))
	require.NoError(t, err)
	ready, unreadyCount, portless := endpoints(parsed)
	assert.Equal(t, []endpoint{
		{"10.0.0.1:53", "node1", true}, {"[fd00::1]:5353", "node2.example", true}, {"10.0.0.2:9153", "", false}, {"10.0.0.4:53", "", true},
	}, ready)
	assert.Zero(t, unreadyCount+portless)

	none, err := ParseEndpoints(nil)
	require.NoError(t, err)
	assert.Empty(t, none)
	for _, text := range []string{"10.0.0.1/node1", "10.0.0.1:dns/node1"} {
		_, err := ParseEndpoints([]string{text})
		assert.Error(t, err)
	}
}

func TestSampleEndpoints(t *testing.T) {
	many := []string{"10.0.0.1:53/here", "10.0.0.2:53/here", "10.0.0.3:53/"}
	for i := range 4 {
		many = append(many, fmt.Sprintf("10.0.1.%d:5353/there/dns-tcp", i))
	}
	before := slices.Clone(many)
	for range 20 {
		sample := SampleEndpoints(many, "here", 6)
		assert.Len(t, sample, 6)
		assert.NotContains(t, strings.Join(sample[:5], " "), "/here", "those on other nodes come first")
		assert.Contains(t, sample[5], "/here")
		assert.Len(t, slices.Compact(slices.Sorted(slices.Values(sample))), 6, "none twice")
	}
	assert.Equal(t, before, many)
	assert.ElementsMatch(t, many, SampleEndpoints(many, "here", 100))
	assert.Empty(t, SampleEndpoints(nil, "here", 8))
	seen := make(map[string]bool)
	for range 200 {
		seen[SampleEndpoints(many, "here", 1)[0]] = true
	}
	assert.Len(t, seen, 5, "each of those on other nodes in turn")
}
