package checks

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The name of the kubernetes service has one address in a cluster. A resolver that answers any name is not the cluster's DNS.
func TestDNSOfTheCluster(t *testing.T) {
	t.Parallel()
	const full = "kubernetes.default.svc.cluster.local"
	service, foreign := script{a: []string{"10.96.0.1"}}, script{a: []string{"203.0.113.7"}}
	dual := script{a: []string{"10.96.0.1"}, aaaa: []string{"fd00::1"}}
	const differs = full + " is 203.0.113.7 and KUBERNETES_SERVICE_HOST is 10.96.0.1"
	for title, test := range map[string]struct {
		name    string // full, if empty
		service string // 10.96.0.1:443, if empty; -: outside a cluster
		says    script
		others  *script
		detail  string
		warning string
		err     string
		remedy  string
	}{
		"its address":                       {says: service, detail: full + " is 10.96.0.1"},
		"its address among others":          {says: script{a: []string{"203.0.113.7", "10.96.0.1"}}, detail: full + " is 203.0.113.7"},
		"its address, IPv6 is not answered": {says: script{a: service.a, noReply: typeAAAA}, detail: full + " is 10.96.0.1"},
		"its IPv6 address": {service: "[fd00::1]:443", says: script{a: dual.a, aaaa: dual.aaaa, codes: nil},
			detail: full + " is "},
		"its address, and a wildcard": {says: service, others: &foreign, detail: full + " is 10.96.0.1"},
		"any name": {says: foreign, others: &foreign, err: differs + ", but name server {server} answers any name, even a random one",
			remedy: "this is not the cluster's DNS: set clusterDNS in this node's kubelet configuration, or remove the wildcard record upstream"},
		"any name, over IPv6 only": {says: foreign, others: &script{aaaa: []string{"2001:db8::1"}},
			err: differs + ", but name server {server} answers any name, even a random one", remedy: "this is not the cluster's DNS"},
		"any name, the short one": {name: "kubernetes.default", says: foreign, others: &foreign, err: "answers any name", remedy: "clusterDNS"},
		"any name, as a host name": {service: "api.example.org:443", says: foreign, others: &foreign, err: "answers any name",
			remedy: "clusterDNS"},
		"an address that the platform has set": {says: foreign, detail: full + " is 203.0.113.7", warning: differs},
		"another address, and SERVFAIL for others": {says: foreign, others: &script{rcode: servFail},
			err: differs + ", and the name server does not deny a random name: kubernetes.", remedy: checkPodLogs},
		"another address, and a sinkhole for others": {says: foreign, others: &script{a: []string{"0.0.0.0"}}, err: "only the address of a sinkhole"},
		"another address, and NODATA for others":     {says: foreign, others: &script{}, detail: full + " is 203.0.113.7", warning: differs},
		"a host name that the platform has set":      {service: "api.example.org:443", says: foreign, detail: full + " is 203.0.113.7"},
		"outside a cluster":                          {service: "-", says: foreign, others: &foreign, detail: full + " is 203.0.113.7"},
		"another name": {name: "web.default.svc.cluster.local", says: foreign, others: &foreign,
			detail: "web.default.svc.cluster.local is 203.0.113.7"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			if test.name == "" {
				test.name = full
			}
			if test.service == "" {
				test.service = "10.96.0.1:443"
			}
			names := map[string]script{full + ".": test.says}
			if test.others != nil {
				names["*"] = *test.others
			}
			server := newNameServer(t, "127.0.0.1", tcpOpen, names)
			check := DNS{Names: []string{test.name}, Kubernetes: strings.TrimPrefix(test.service, "-"),
				Resolver: &Resolver{Servers: []string{server.address}}}

			report, err := check.Try(limited(t, enough))

			if test.err != "" {
				require.ErrorContains(t, err, strings.ReplaceAll(test.err, "{server}", server.address))
				assert.Contains(t, Remedy(err), test.remedy)
				return
			}
			require.NoError(t, err)
			assert.Contains(t, report.Detail, test.detail)
			var warnings []string
			if test.warning != "" {
				warnings = []string{test.warning}
			}
			assert.Equal(t, warnings, report.Warnings)
		})
	}
}

// The server that answered is asked again, not the one before it, which knows that the random name does not exist.
func TestDNSOfTheClusterAsksTheSameServer(t *testing.T) {
	t.Parallel()
	foreign := script{a: []string{"203.0.113.7"}}
	cluster := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"kubernetes.default.svc.cluster.local.": {rcode: servFail}})
	wildcard := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"*": foreign})
	check := DNS{Names: []string{"kubernetes.default.svc.cluster.local"}, Kubernetes: "10.96.0.1:443",
		Resolver: &Resolver{Servers: []string{cluster.address, wildcard.address}}}
	_, err := check.Try(limited(t, enough))
	require.ErrorContains(t, err, "name server "+wildcard.address+" answers any name")
}

// Some platforms set KUBERNETES_SERVICE_HOST to the API server's public name. The network check then connects to what DNS says, unless that
// may be another cluster's.
func TestClusterIPFromDNS(t *testing.T) {
	t.Parallel()
	const full = "kubernetes.default.svc.cluster.local"
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{full + ".": {a: []string{"127.0.0.9"}}})
	for title, test := range map[string]struct {
		service string
		search  []string
		dials   bool
	}{
		"a public name":    {"api.example.org:443", clusterSearch(), true},
		"another address":  {"192.0.2.1:443", clusterSearch(), true},
		"the same address": {"127.0.0.9:443", clusterSearch(), false},
		"unknown domain":   {"api.example.org:443", nil, false},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			found := new(atomic.Pointer[[]netip.Addr])
			resolver := &Resolver{Servers: []string{server.address}, Search: test.search}
			_, err := DNS{Names: []string{full}, Kubernetes: test.service, ClusterIPs: found, Resolver: resolver}.Try(limited(t, enough))
			require.NoError(t, err)
			report, err := Network{Targets: []Target{{Address: "kubernetes.default.svc:443", EachAddress: true, Addresses: found}}}.Try(limited(t, enough))
			if test.dials {
				require.EqualError(t, err, "kubernetes.default.svc:443: TCP 127.0.0.9:443: connection refused")
				return
			}
			require.NoError(t, err)
			assert.Empty(t, report)
		})
	}
}
