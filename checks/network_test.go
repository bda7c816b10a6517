package checks

import (
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	checkDropped = "packets are dropped on the way: check the CNI's routes, kube-proxy, network policies and firewalls (security groups)"
	checkListens = "check that something listens on this port of the host, or that the service has a ready endpoint"
	checkRoute   = "this node has no route to it: check the CNI and the node's routing table"
	checkTarget  = "check the target's name, and the dns check"
)

func TestNetworkByAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		title       string
		at          func(*testing.T) string
		within      time.Duration
		err, remedy string // {at} is the address
	}{
		{"accepts", func(t *testing.T) string { return accepting(t, "127.0.0.1") }, enough, "", ""},
		{"accepts, IPv6", func(t *testing.T) string { needIPv6(t); return accepting(t, "::1") }, enough, "", ""},
		{"refuses", refusing, enough, "TCP {at}: connection refused", checkListens},
		{"drops", silent, 300 * time.Millisecond, "TCP {at}: timeout", checkDropped},
		{"is out of reach", func(*testing.T) string { return net.JoinHostPort(unreachable, "443") }, enough, "TCP {at}: network is unreachable", checkRoute},
		{"is out of reach, IPv6", func(*testing.T) string { return net.JoinHostPort(unreachable6, "443") }, enough, "TCP {at}: network is unreachable", checkRoute},
		{"has no port", func(*testing.T) string { return "127.0.0.1" }, enough, "{at}: address 127.0.0.1: missing port in address", ""},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			at := test.at(t)
			report, err := Network{Targets: []Target{{Address: at}}}.Try(limited(t, test.within))
			if test.err != "" {
				require.EqualError(t, err, strings.ReplaceAll(test.err, "{at}", at))
				assert.Equal(t, test.remedy, Remedy(err))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, Report{Detail: at + " accepts"}, report)
		})
	}
}

func TestNetworkProbesAllTargetsInParallel(t *testing.T) {
	t.Parallel()
	one, two, drops, refuses := accepting(t, "127.0.0.1"), accepting(t, "127.0.0.1"), silent(t), refusing(t)

	report, err := Network{Targets: []Target{{Address: one}, {Address: two}}}.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, one+" accepts, "+two+" accepts", report.Detail)

	// The first one uses up the attempt: the others had all of it too.
	_, err = Network{Targets: []Target{{Address: drops}, {Address: one}, {Address: refuses, Remedy: "start kube-proxy"}, {Address: two}}}.
		Try(limited(t, 500*time.Millisecond))
	require.EqualError(t, err, "TCP "+drops+": timeout; TCP "+refuses+": connection refused")
	assert.Equal(t, checkDropped+"; start kube-proxy", Remedy(err))
}

// Targets by name: 127.0.0.1 accepts, 127.0.0.2 refuses at the same port.
func TestNetworkByName(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		title       string
		says        script
		each        bool
		remedy      string // the target's own
		detail      string // {port} and {server} are filled in
		warnings    []string
		err, advice string
	}{
		{title: "one address", says: script{a: []string{"127.0.0.1"}}, detail: "api.example.org:{port} accepts at 127.0.0.1:{port}"},
		{title: "one address, each", says: script{a: []string{"127.0.0.1"}}, each: true, detail: "api.example.org:{port} accepts at 127.0.0.1:{port}"},
		{
			title: "one of two", says: script{a: []string{"127.0.0.2", "127.0.0.1"}},
			detail: "api.example.org:{port} accepts at 127.0.0.1:{port}", warnings: []string{"TCP 127.0.0.2:{port}: connection refused"},
		},
		{
			title: "one of two, each", says: script{a: []string{"127.0.0.1", "127.0.0.2"}}, each: true, remedy: "start kube-proxy",
			err: "api.example.org:{port}: TCP 127.0.0.2:{port}: connection refused", advice: "start kube-proxy",
		},
		{
			title: "none of two", says: script{a: []string{"127.0.0.2", "127.0.0.3"}},
			err:    "api.example.org:{port}: TCP 127.0.0.2:{port}: connection refused; TCP 127.0.0.3:{port}: connection refused",
			advice: checkListens,
		},
		{
			title: "none of two, each", says: script{a: []string{"127.0.0.2", "127.0.0.3"}}, each: true,
			err:    "api.example.org:{port}: TCP 127.0.0.2:{port}: connection refused; TCP 127.0.0.3:{port}: connection refused",
			advice: checkListens,
		},
		{
			title: "a family that this node does not have", says: script{a: []string{"127.0.0.1"}, aaaa: []string{unreachable6}},
			detail: "api.example.org:{port} accepts at 127.0.0.1:{port}",
		},
		{
			title: "a family that this node does not have, each", says: script{a: []string{"127.0.0.1"}, aaaa: []string{unreachable6}}, each: true,
			detail: "api.example.org:{port} accepts at 127.0.0.1:{port}",
		},
		{
			title: "the other family is answered first", says: script{a: []string{"127.0.0.1"}, aaaa: []string{unreachable6}, slowA: 200 * time.Millisecond},
			detail: "api.example.org:{port} accepts at 127.0.0.1:{port}",
		},
		{
			title: "no address within reach", says: script{aaaa: []string{unreachable6}}, each: true,
			err: "api.example.org:{port}: TCP [ff02::1]:{port}: network is unreachable", advice: checkRoute,
		},
		{
			title: "refused, and out of reach", says: script{a: []string{"127.0.0.2"}, aaaa: []string{unreachable6}},
			err: "api.example.org:{port}: TCP 127.0.0.2:{port}: connection refused", advice: checkListens,
		},
		{
			title: "not known", says: script{rcode: nxDomain},
			err: "api.example.org:{port}: api.example.org: NXDOMAIN from name server {server}", advice: checkTarget,
		},
		{
			title: "not known for now", says: script{rcode: servFail}, each: true,
			err: "api.example.org:{port}: api.example.org: SERVFAIL from name server {server}", advice: checkTarget,
		},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			_, port, err := net.SplitHostPort(accepting(t, "127.0.0.1"))
			require.NoError(t, err)
			server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"api.example.org.": test.says})
			fill := strings.NewReplacer("{port}", port, "{server}", server.address)
			check := Network{
				Resolver: &Resolver{Servers: []string{server.address}},
				Targets:  []Target{{Address: "api.example.org:" + port, EachAddress: test.each, Remedy: test.remedy}},
			}

			report, err := check.Try(limited(t, enough))

			if test.err != "" {
				require.EqualError(t, err, fill.Replace(test.err))
				assert.Equal(t, test.advice, Remedy(err))
				return
			}
			require.NoError(t, err)
			var warnings []string
			for _, warning := range test.warnings {
				warnings = append(warnings, fill.Replace(warning))
			}
			assert.Equal(t, Report{Detail: fill.Replace(test.detail), Warnings: warnings}, report)
		})
	}
}

// Whatever error the kernel has for a family that the node does not have, an address of the other one is enough.
func TestAddressOfAFamilyThatTheNodeDoesNotHave(t *testing.T) {
	t.Parallel()
	good := outcome{detail: "192.0.2.1:443 accepts"}
	for _, err := range []error{syscall.ENETUNREACH, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT} {
		v6 := outcome{err: fail(tcpRemedy(err), "TCP [2001:db8::1]:443: %w", short(err))}
		for _, each := range []bool{false, true} {
			target := Target{Address: "api.example.org:443", EachAddress: each}
			assert.Equal(t, outcome{detail: "api.example.org:443 accepts at 192.0.2.1:443"}, target.verdictOf([]outcome{v6, good}))
		}
		alone := Target{Address: "api.example.org:443"}.verdictOf([]outcome{v6})
		require.ErrorIs(t, alone.err, err)
		assert.Equal(t, checkRoute, Remedy(alone.err))
	}
}

func TestNetworkCompletesNamesByTheSearchList(t *testing.T) {
	t.Parallel()
	at := accepting(t, "127.0.0.1")
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.default.svc.cluster.local.": {a: []string{"127.0.0.1"}}})
	check := Network{
		Resolver: &Resolver{Servers: []string{server.address}, Search: clusterSearch()},
		Targets:  []Target{{Address: "web.default:" + port}},
	}
	report, err := check.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, "web.default:"+port+" accepts at "+at, report.Detail)
}

func TestNetworkNodeSearchDomains(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.lab.corp.example.": {a: []string{"127.0.0.1"}}})
	check := Network{Resolver: &Resolver{Servers: []string{server.address}, Search: append(clusterSearch(), "corp.example")}}
	for _, target := range []Target{{Address: "web.lab:443"}, {URL: "https://web.lab/"}} {
		check.Targets = []Target{target}
		_, err := check.Try(limited(t, enough))
		require.ErrorContains(t, err, "web.lab: NXDOMAIN from name server "+server.address)
		assert.Equal(t, `if you mean "web.lab.corp.example", configure this full name: the check ignores the node's own search domains, `+
			`because a wildcard there answers any name; else `+checkTarget, Remedy(err))
	}
}

// A name in /etc/hosts needs no name server, which a kubeconfig or the pod's hostAliases may rely on.
func TestNetworkReadsTheHostsFile(t *testing.T) {
	t.Parallel()
	if text, err := os.ReadFile("/etc/hosts"); err != nil || !regexp.MustCompile(`(?m)^127\.0\.0\.1\s.*\blocalhost\b`).Match(text) {
		t.Skip("no localhost in /etc/hosts")
	}
	at := accepting(t, "127.0.0.1")
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	check := Network{Resolver: &Resolver{Servers: []string{refusing(t)}}, Targets: []Target{{Address: "localhost:" + port}}}
	report, err := check.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, "localhost:"+port+" accepts at "+at, report.Detail)
}
