package checks

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// dnsPort is the name of a port for DNS over TCP.
const dnsPort = "dns-tcp"

// EndpointSlice is the part of that of discovery.k8s.io/v1 that is read. Package k8s.io/api is a fifth of a binary.
type EndpointSlice struct {
	AddressType string         `json:"addressType"`
	Ports       []EndpointPort `json:"ports"`
	Endpoints   []Endpoint     `json:"endpoints"`
}

// EndpointPort is a port of every endpoint in a slice.
type EndpointPort struct {
	Name     *string `json:"name"`
	Protocol *string `json:"protocol"`
	Port     *int32  `json:"port"`
}

// Endpoint is one backend of a service.
type Endpoint struct {
	Addresses  []string `json:"addresses"`
	Conditions struct {
		Ready       *bool `json:"ready"` // always true with publishNotReadyAddresses
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	NodeName string `json:"nodeName"` // "" if the slice does not name it
	Zone     string `json:"zone"`     // likewise
}

// endpoint is one address of a ready endpoint.
type endpoint struct {
	address string // host:port
	node    string // "" if the slice does not name it
	isDNS   bool
}

func (e endpoint) String() string {
	if e.node == "" {
		return "TCP " + e.address
	}
	return "TCP " + e.address + " on node " + e.node
}

func (e endpoint) isIPv6() bool { return strings.HasPrefix(e.address, "[") }

// endpoints lists the ready endpoints, and counts those that are not ready and those without a TCP port.
func endpoints(found []EndpointSlice) (ready []endpoint, unready, portless int) {
	for _, slice := range found {
		if slice.AddressType == "FQDN" {
			continue
		}
		port, isDNS, ok := tcpPort(slice.Ports)
		if !ok {
			portless += len(slice.Endpoints)
			continue
		}
		for _, e := range slice.Endpoints {
			switch {
			case e.Conditions.Ready != nil && !*e.Conditions.Ready: // "nil should be interpreted as ready" (EndpointConditions)
				unready++
			case len(e.Addresses) > 0: // they are interchangeable: take the first
				one := endpoint{address: net.JoinHostPort(e.Addresses[0], port), node: e.NodeName, isDNS: isDNS}
				if !slices.Contains(ready, one) { // an endpoint may be in two slices while it moves
					ready = append(ready, one)
				}
			}
		}
	}
	return ready, unready, portless
}

// FormatEndpoints returns the ready endpoints of a service's slices for ParseEndpoints.
func FormatEndpoints(found []EndpointSlice) []string {
	ready, _, _ := endpoints(found)
	texts := make([]string, len(ready))
	for i, e := range ready {
		texts[i] = e.address + "/" + e.node
		if e.isDNS && !strings.HasSuffix(e.address, ":53") {
			texts[i] += "/" + dnsPort
		}
	}
	return texts
}

// SampleEndpoints returns a random few of what FormatEndpoints has returned, in a random order, those on other nodes first.
func SampleEndpoints(texts []string, node string, most int) []string {
	var others, local []string
	for _, i := range rand.Perm(len(texts)) {
		if _, rest, _ := strings.Cut(texts[i], "/"); strings.HasPrefix(rest+"/", node+"/") {
			local = append(local, texts[i])
		} else {
			others = append(others, texts[i])
		}
	}
	sample := append(others, local...)
	return sample[:min(len(sample), most)]
}

// ParseEndpoints reads ready endpoints, each as address:port/node, with /dns-tcp behind it for DNS at another port than 53.
// It is for a check that may not list the slices.
func ParseEndpoints(texts []string) ([]EndpointSlice, error) {
	found := make([]EndpointSlice, len(texts))
	for i, text := range texts {
		address, rest, _ := strings.Cut(text, "/")
		node, name, _ := strings.Cut(rest, "/")
		addr, err := netip.ParseAddrPort(address)
		if err != nil || addr.Port() == 0 {
			return nil, fmt.Errorf("%q has no address and port", text)
		}
		found[i].Ports = []EndpointPort{{Name: &name, Port: new(int32(addr.Port()))}}
		found[i].Endpoints = []Endpoint{{Addresses: []string{addr.Addr().String()}, NodeName: node}}
	}
	return found, nil
}

// tcpPort returns the port to connect to: DNS over TCP if there is one, else the first TCP port.
func tcpPort(ports []EndpointPort) (port string, isDNS, ok bool) {
	for _, p := range ports {
		if p.Port == nil || (p.Protocol != nil && *p.Protocol != "TCP") {
			continue
		}
		dns := *p.Port == 53 || (p.Name != nil && *p.Name == dnsPort)
		if !ok || (dns && !isDNS) {
			port, isDNS, ok = strconv.Itoa(int(*p.Port)), dns, true
		}
	}
	return port, isDNS, ok
}
