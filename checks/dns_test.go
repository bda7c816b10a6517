package checks

import (
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	checkPods     = "check that the DNS pods are running and that this node reaches them over UDP 53 (kube-proxy, CNI, network policies)"
	checkNoPod    = "check that a DNS pod is ready, and that kube-proxy (or its replacement) has programmed the service address on this node"
	checkUpstream = "check the upstream servers of the cluster's DNS; without access to the internet, remove the name from DNS_TEST_DOMAINS"
	checkPodLogs  = "check the logs of the cluster's DNS pods"
	checkTCP      = "allow TCP port 53 to the name server, and check the path to it"
	checkName     = "check the name in DNS_TEST_DOMAINS; without access to the internet, list only names that the cluster's DNS knows"
	checkService  = "check that the service exists and that the cluster DNS serves this domain"
	checkServer   = "check that the server is up and accepts queries from this node"
)

// One server and one name: every kind of reply, over IPv4 and IPv6.
func TestDNSAnswers(t *testing.T) {
	t.Parallel()
	const soon, later = 300 * time.Millisecond, 50 * time.Millisecond
	for _, test := range []struct {
		title       string
		says        script
		tcp         overTCP
		within      time.Duration
		detail      string
		err, remedy string
	}{
		{title: "A and AAAA", says: script{a: []string{"192.0.2.1"}, aaaa: []string{"::ffff:192.0.2.1"}}, detail: "web.example.org is 192.0.2.1"},
		{title: "A only", says: script{a: []string{"192.0.2.1"}}, detail: "web.example.org is 192.0.2.1"},
		{title: "AAAA only", says: script{aaaa: []string{"2001:db8::1"}}, detail: "web.example.org is 2001:db8::1"},
		{title: "A, and silence about AAAA", says: script{a: []string{"192.0.2.1"}, noReply: typeAAAA}, detail: "web.example.org is 192.0.2.1"},
		{title: "AAAA, and silence about A", says: script{aaaa: []string{"2001:db8::1"}, noReply: typeA}, detail: "web.example.org is 2001:db8::1"},
		{title: "NXDOMAIN", says: script{rcode: nxDomain}, err: "NXDOMAIN", remedy: checkName},
		{title: "NODATA", err: "no A or AAAA record", remedy: checkName},
		{title: "NODATA, and silence about AAAA", says: script{noReply: typeAAAA}, within: soon, err: "timeout", remedy: checkPods},
		{title: "NODATA, and silence about A", says: script{noReply: typeA}, within: soon, err: "timeout", remedy: checkPods},
		// The replies for the two families differ, and either may come first.
		{title: "A, and SERVFAIL about AAAA first", says: script{a: []string{"192.0.2.1"}, codes: map[uint16]byte{typeAAAA: servFail}, slowA: later}, detail: "web.example.org is 192.0.2.1"},
		{title: "NXDOMAIN, and SERVFAIL about AAAA", says: script{codes: map[uint16]byte{typeA: nxDomain, typeAAAA: servFail}}, err: "NXDOMAIN", remedy: checkName},
		{title: "NXDOMAIN, and SERVFAIL about AAAA first", says: script{codes: map[uint16]byte{typeA: nxDomain, typeAAAA: servFail}, slowA: later}, err: "NXDOMAIN", remedy: checkName},
		{title: "NXDOMAIN about AAAA first, and SERVFAIL", says: script{codes: map[uint16]byte{typeA: servFail, typeAAAA: nxDomain}, slowA: later}, err: "NXDOMAIN", remedy: checkName},
		{title: "NODATA, and SERVFAIL about AAAA first", says: script{codes: map[uint16]byte{typeAAAA: servFail}, slowA: later}, err: "SERVFAIL", remedy: checkUpstream},
		{title: "NODATA about AAAA first, and SERVFAIL", says: script{codes: map[uint16]byte{typeA: servFail}, slowA: later}, err: "SERVFAIL", remedy: checkUpstream},
		{title: "FORMERR", says: script{rcode: formErr}, err: "FORMERR", remedy: checkUpstream},
		{title: "SERVFAIL", says: script{rcode: servFail}, err: "SERVFAIL", remedy: checkUpstream},
		{title: "NOTIMP", says: script{rcode: notImp}, err: "NOTIMP", remedy: checkUpstream},
		{title: "REFUSED", says: script{rcode: refused}, err: "REFUSED", remedy: checkUpstream},
		{title: "NOTAUTH", says: script{rcode: 9}, err: "response code 9", remedy: checkUpstream},
		{title: "silence", says: script{silent: true}, within: soon, err: "timeout", remedy: checkPods},
		{title: "one lost packet", says: script{a: []string{"192.0.2.1"}, lost: 1}, within: 3 * time.Second, detail: "web.example.org is 192.0.2.1"},
		{title: "truncated, TCP open", says: script{a: []string{"192.0.2.1"}, truncated: true}, detail: "web.example.org is 192.0.2.1"},
		{title: "truncated, and NXDOMAIN over TCP", says: script{rcode: nxDomain, truncated: true}, err: "NXDOMAIN", remedy: checkName},
		{title: "truncated, and SERVFAIL over TCP", says: script{rcode: servFail, truncated: true}, err: "SERVFAIL", remedy: checkUpstream},
		{title: "truncated, TCP silent", says: script{a: []string{"192.0.2.1"}, truncated: true}, tcp: tcpSilent, within: 1500 * time.Millisecond,
			err: "UDP answer truncated, TCP query failed: timeout", remedy: checkTCP},
		{title: "truncated, TCP closed", says: script{a: []string{"192.0.2.1"}, truncated: true}, tcp: tcpClosed,
			err: "UDP answer truncated, TCP query failed: connection refused", remedy: checkTCP},
		{title: "a lame referral", says: script{lame: true}, err: "lame referral", remedy: checkUpstream},
		{title: "a message cut short", says: script{cutShort: true}, err: "malformed reply", remedy: checkUpstream},
		{title: "another query's reply", says: script{a: []string{"192.0.2.1"}, foreignID: true}, within: soon, err: "timeout", remedy: checkPods},
		{title: "another query's NXDOMAIN", says: script{rcode: nxDomain, foreignID: true}, within: soon, err: "timeout", remedy: checkPods},
		{title: "noise", says: script{noise: []byte(strings.Repeat("\xffnoise", 20))}, within: soon, err: "timeout", remedy: checkPods},
		{title: "an empty packet", says: script{noise: []byte{}}, within: soon, err: "timeout", remedy: checkPods},
	} {
		if test.within == 0 {
			test.within = enough
		}
		for _, host := range []string{"127.0.0.1", "::1"} {
			t.Run(test.title+" from "+host, func(t *testing.T) {
				t.Parallel()
				if host == "::1" {
					needIPv6(t)
				}
				server := newNameServer(t, host, test.tcp, map[string]script{"web.example.org.": test.says})
				check := DNS{Names: []string{"web.example.org"}, Resolver: &Resolver{Servers: []string{server.address}}}

				report, err := check.Try(limited(t, test.within))

				if test.err != "" {
					require.EqualError(t, err, "web.example.org: "+test.err+" from name server "+server.address)
					assert.Equal(t, test.remedy, Remedy(err))
					return
				}
				require.NoError(t, err)
				assert.Equal(t, Report{Detail: test.detail}, report)
			})
		}
	}
}

// A lost packet costs a third of an attempt.
func TestDNSAsksAgainAfterALostPacket(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {a: known.a, lost: 2}})
	check := DNS{Names: []string{"web.example.org"}, Resolver: &Resolver{Servers: []string{server.address}}}
	_, err := check.Try(limited(t, 4500*time.Millisecond))
	require.NoError(t, err)
	assert.Equal(t, 3, server.queries("web.example.org.", typeA))
}

func TestDNSResolvesEveryName(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{
		"one.example.org.": known, "two.example.org.": {rcode: servFail}, "four.example.org.": {aaaa: []string{"2001:db8::4"}},
	})
	resolver := &Resolver{Servers: []string{server.address}}

	report, err := DNS{Names: []string{"one.example.org", "four.example.org"}, Resolver: resolver}.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, "one.example.org is 192.0.2.1, four.example.org is 2001:db8::4", report.Detail)

	_, err = DNS{Names: []string{"one.example.org", "two.example.org", "three.example.org", "four.example.org"}, Resolver: resolver}.Try(limited(t, enough))
	require.EqualError(t, err, "two.example.org: SERVFAIL from name server "+server.address+
		"; three.example.org: NXDOMAIN from name server "+server.address)
	assert.Equal(t, checkUpstream+"; "+checkName, Remedy(err))
}

// A name that only warns may fail in any way. Nobody asks a server for it that must answer.
func TestDNSNamesThatOnlyWarn(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"one.example.org.": known, "two.example.org.": {rcode: servFail}, ".": {}})
	ip, port, _ := net.SplitHostPort(server.address)
	check := DNS{Resolver: &Resolver{Servers: []string{server.address}}, Port: port, Names: []string{"warn+two.example.org", "one.example.org"}}
	report, err := check.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, "one.example.org is 192.0.2.1", report.Detail)
	assert.Equal(t, []string{"two.example.org: SERVFAIL from name server " + server.address}, report.Warnings)

	check.Names = []string{"two.example.org", "warn+three.example.org"}
	_, err = check.Try(limited(t, enough))
	require.EqualError(t, err, "two.example.org: SERVFAIL from name server "+server.address)

	check.Names = []string{"warn+two.example.org", ip, "warn+" + ip}
	report, err = check.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, "name server "+server.address+" answers, name server "+server.address+" answers", report.Detail)

	check.Names, check.Outside = []string{"warn+kubernetes.default.svc.cluster.local", "one.example.org"}, "not inside a cluster"
	report, err = check.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, Report{Detail: "one.example.org is 192.0.2.1; skipped: kubernetes.default.svc.cluster.local (not inside a cluster)"}, report)
}

// The names are resolved in parallel: each of them has the whole attempt.
func TestDNSASilentNameDoesNotDelayTheOthers(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"one.example.org.": {silent: true}, "two.example.org.": known})
	check := DNS{Names: []string{"one.example.org", "two.example.org"}, Resolver: &Resolver{Servers: []string{server.address}}}
	_, err := check.Try(limited(t, 500*time.Millisecond))
	require.EqualError(t, err, "one.example.org: timeout from name server "+server.address)
}

func TestDNSRemedies(t *testing.T) {
	t.Parallel()
	hint := `the cluster domain of this node is "corp.example", so the name should be "kubernetes.default.svc.corp.example": correct DNS_TEST_DOMAINS`
	search := []string{"kube-system.svc.corp.example", "svc.corp.example", "corp.example"}
	for _, test := range []struct {
		title, name string
		search      []string
		says        script
		err, remedy string
	}{
		{"under another cluster domain", "kubernetes.default.svc.cluster.local", search, script{rcode: nxDomain}, "NXDOMAIN", hint},
		{"under another cluster domain, without a record", "kubernetes.default.svc.cluster.local", search, script{}, "no A or AAAA record", hint},
		{"under another cluster domain, with a final dot", "kubernetes.default.svc.cluster.local.", search, script{rcode: nxDomain}, "NXDOMAIN", hint},
		{"under another cluster domain, without the internet", "kubernetes.default.svc.cluster.local", search, script{rcode: servFail}, "SERVFAIL", hint + "; else " + checkPodLogs},
		{"a service that does not exist", "web.default.svc.corp.example", search, script{rcode: nxDomain}, "NXDOMAIN", checkService},
		{"a host of the cluster domain", "host.corp.example", search, script{rcode: nxDomain}, "NXDOMAIN", checkService},
		{"a service, and DNS pods that fail", "web.default.svc.corp.example", search, script{rcode: servFail}, "SERVFAIL", checkPodLogs},
		{"no cluster domain to compare with", "kubernetes.default.svc.cluster.local", nil, script{rcode: nxDomain}, "NXDOMAIN", checkService},
		{"an outside name", "web.example.org", search, script{rcode: nxDomain}, "NXDOMAIN", checkName},
		{"an outside name, and an upstream that fails", "web.example.org", search, script{rcode: servFail}, "SERVFAIL", checkUpstream},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			absolute := strings.TrimSuffix(test.name, ".") + "."
			server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{absolute: test.says})
			_, err := DNS{Names: []string{test.name}, Resolver: &Resolver{Servers: []string{server.address}, Search: test.search}}.Try(limited(t, enough))
			require.EqualError(t, err, strings.TrimSuffix(test.name, ".")+": "+test.err+" from name server "+server.address)
			assert.Equal(t, test.remedy, Remedy(err))
		})
	}
}

// The node's own search domains never complete a name: here "corp.example" has a wildcard.
func TestDNSNodeSearchDomains(t *testing.T) {
	t.Parallel()
	inCluster, outside := append(clusterSearch(), "lab.example", "corp.example"), []string{"lab.example", "corp.example"}
	fullName := func(name string) string {
		return `if you mean "` + name + `", configure this full name: the check ignores the node's own search domains, ` +
			`because a wildcard there answers any name; else `
	}
	for _, test := range []struct {
		title, name string
		search      []string
		says        map[string]script // besides the wildcard's names
		detail      string
		err, remedy string
	}{
		{
			title: "NXDOMAIN", name: "google.com", search: inCluster,
			err: "google.com: NXDOMAIN", remedy: fullName("google.com.corp.example") + checkName,
		},
		{
			title: "SERVFAIL", name: "google.com", search: inCluster, says: map[string]script{"google.com.": {rcode: servFail}},
			err: "google.com: SERVFAIL", remedy: fullName("google.com.corp.example") + checkUpstream,
		},
		{
			title: "another cluster domain", name: "kubernetes.default.svc.other.example", search: inCluster,
			err:    "kubernetes.default.svc.other.example: NXDOMAIN",
			remedy: `the cluster domain of this node is "cluster.local", so the name should be "kubernetes.default.svc.cluster.local": correct DNS_TEST_DOMAINS`,
		},
		{
			title: "a single label", name: "intranet", search: inCluster,
			err: "intranet.kube-system.svc.cluster.local: NXDOMAIN", remedy: fullName("intranet.corp.example") + checkName,
		},
		{
			title: "without a search domain of the cluster", name: "google.com", search: outside,
			err: "google.com: NXDOMAIN", remedy: fullName("google.com.corp.example") + checkName,
		},
		{
			title: "a single label without a search domain of the cluster", name: "intranet", search: outside,
			err: "intranet: NXDOMAIN", remedy: fullName("intranet.corp.example") + checkName,
		},
		{
			title: "a name with a final dot", name: "google.com.", search: inCluster,
			err: "google.com: NXDOMAIN", remedy: checkName,
		},
		{
			title: "a name that nothing completes", name: "web.example.org", search: inCluster,
			err: "web.example.org: NXDOMAIN", remedy: checkName,
		},
		{
			title: "a search domain of the cluster completes the name", name: "vault.infra", search: inCluster,
			says:   map[string]script{"vault.infra.svc.cluster.local.": known},
			detail: "vault.infra is 192.0.2.1",
		},
		{
			title: "a single label that resolves as written", name: "intranet", search: outside, says: map[string]script{"intranet.": known},
			detail: "intranet is 192.0.2.1",
		},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			names := map[string]script{
				"google.com.corp.example.": known, "intranet.corp.example.": known, "vault.infra.corp.example.": {a: []string{"192.0.2.9"}},
				"kubernetes.default.svc.other.example.corp.example.": known,
			}
			maps.Copy(names, test.says)
			server := newNameServer(t, "127.0.0.1", tcpOpen, names)

			report, err := DNS{Names: []string{test.name}, Resolver: &Resolver{Servers: []string{server.address}, Search: test.search}}.Try(limited(t, enough))

			if test.err != "" {
				require.EqualError(t, err, test.err+" from name server "+server.address)
				assert.Equal(t, test.remedy, Remedy(err))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, Report{Detail: test.detail}, report)
		})
	}
}

// The name of the right cluster domain stands in the very first failure, while the retries go on.
func TestDNSNamesTheClusterDomainAtTheFirstAttempt(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, nil)
	search := []string{"kube-system.svc.corp.example", "svc.corp.example", "corp.example", "lab.example"}
	check := DNS{Names: []string{"kubernetes.default.svc.cluster.local"}, Resolver: &Resolver{Servers: []string{server.address}, Search: search}}
	var seen watcher
	runner := Runner{Timeout: enough, MaxRetries: 1, NewBackOff: func() backoff.BackOff { return &backoff.ZeroBackOff{} }, Observe: seen.attempted}

	_, err := runner.Round(t.Context(), []Check{check})

	require.NoError(t, err)
	require.Len(t, seen.seen, 2)
	assert.Equal(t, 1, seen.seen[0].Number)
	for _, attempt := range seen.seen {
		require.EqualError(t, attempt.Err, "kubernetes.default.svc.cluster.local: NXDOMAIN from name server "+server.address)
		assert.Equal(t, `the cluster domain of this node is "corp.example", so the name should be "kubernetes.default.svc.corp.example": correct DNS_TEST_DOMAINS`,
			Remedy(attempt.Err))
	}
}

// An IP address in the list is a server to ask directly.
func TestDNSServersInTheList(t *testing.T) {
	t.Parallel()
	const service = "kubernetes.default.svc.cluster.local"
	root := func(s script) map[string]script { return map[string]script{".": s} }
	for _, test := range []struct {
		title       string
		names       []string // {ip} is the address of the server to ask directly
		says        map[string]script
		tcp         overTCP
		within      time.Duration
		asked       []string
		detail      string // {server} is that server's address with its port
		err, remedy string // {system} is the server of resolv.conf
	}{
		{
			title: "with an outside name", names: []string{"{ip}", "web.example.org"}, says: map[string]script{"web.example.org.": {a: []string{"192.0.2.7"}}},
			asked: []string{"web.example.org."}, detail: "by {ip}: web.example.org. is 192.0.2.7, web.example.org is 192.0.2.1",
		},
		{
			title: "with the first outside name of several", names: []string{service, "kubernetes", "web.example.org.", "{ip}", "other.example.org"},
			says:  map[string]script{"web.example.org.": {a: []string{"192.0.2.7"}}},
			asked: []string{"web.example.org."},
			detail: service + " is 192.0.2.1, kubernetes is 192.0.2.1, web.example.org. is 192.0.2.1, " +
				"by {ip}: web.example.org. is 192.0.2.7, other.example.org is 192.0.2.1",
		},
		{
			title: "without an outside name", names: []string{service, "{ip}"}, says: root(script{}),
			asked: []string{"."}, detail: service + " is 192.0.2.1, name server {server} answers",
		},
		{
			title: "with a name that only a search list completes", names: []string{"kubernetes.default", "{ip}"}, says: root(script{}),
			asked: []string{"."}, detail: "kubernetes.default is 192.0.2.1, name server {server} answers",
		},
		{
			title: "alone", names: []string{"{ip}"}, says: root(script{rcode: refused}),
			asked: []string{"."}, detail: "name server {server} answers",
		},
		{
			title: "that fails to answer about the root", names: []string{"{ip}"}, says: root(script{rcode: servFail}),
			asked: []string{"."}, detail: "name server {server} answers",
		},
		{
			title: "that loses the first packet about the root", names: []string{"{ip}"}, says: root(script{lost: 1}), within: 3 * time.Second,
			asked: []string{"."}, detail: "name server {server} answers",
		},
		{
			title: "that truncates its reply about the root, without TCP", names: []string{"{ip}"}, says: root(script{truncated: true}), tcp: tcpSilent, within: 900 * time.Millisecond,
			asked: []string{"."}, detail: "name server {server} answers",
		},
		{
			title: "silent about the root", names: []string{"{ip}"}, says: root(script{silent: true}), within: 300 * time.Millisecond,
			asked: []string{"."}, err: "name server {server}: timeout", remedy: checkServer,
		},
		{
			title: "that sends another query's reply", names: []string{"{ip}"}, says: root(script{foreignID: true}), within: 300 * time.Millisecond,
			asked: []string{"."}, err: "name server {server}: timeout", remedy: checkServer,
		},
		{
			title: "silent about an outside name", names: []string{"{ip}", "web.example.org"}, says: map[string]script{"web.example.org.": {silent: true}},
			within: 300 * time.Millisecond, asked: []string{"web.example.org."},
			err: "web.example.org: timeout from name server {server}", remedy: checkServer,
		},
		{
			title: "that refuses an outside name", names: []string{"web.example.org", "{ip}"}, says: map[string]script{"web.example.org.": {rcode: refused}},
			asked: []string{"web.example.org."},
			err:   "web.example.org: REFUSED from name server {server}", remedy: checkServer,
		},
		{
			title: "that does not know an outside name", names: []string{"web.example.org", "{ip}"},
			asked: []string{"web.example.org."}, // and not with the search list
			err:   "web.example.org: NXDOMAIN from name server {server}", remedy: "check the name in DNS_TEST_DOMAINS, and whether this server should know it",
		},
	} {
		if test.within == 0 {
			test.within = enough
		}
		for _, ip := range []string{"127.0.0.1", "::1"} {
			t.Run(test.title+" "+ip, func(t *testing.T) {
				t.Parallel()
				if ip == "::1" {
					needIPv6(t)
				}
				system := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{
					service + ".": known, "web.example.org.": known, "other.example.org.": known,
					"kubernetes.kube-system.svc.cluster.local.": known,
				})
				direct := newNameServer(t, ip, test.tcp, test.says)
				_, port, err := net.SplitHostPort(direct.address)
				require.NoError(t, err)
				fill := strings.NewReplacer("{ip}", ip, "{server}", direct.address, "{system}", system.address)
				var names []string
				for _, name := range test.names {
					names = append(names, fill.Replace(name))
				}
				check := DNS{Names: names, Port: port, Resolver: &Resolver{Servers: []string{system.address}, Search: clusterSearch()}}

				report, err := check.Try(limited(t, test.within))

				assert.Equal(t, test.asked, direct.asked())
				if test.err != "" {
					require.EqualError(t, err, fill.Replace(test.err))
					assert.Equal(t, test.remedy, Remedy(err))
					return
				}
				require.NoError(t, err)
				assert.Equal(t, Report{Detail: fill.Replace(test.detail)}, report)
				assert.NotContains(t, system.asked(), ".")
			})
		}
	}
}

func TestDNSServerInTheListThatRefusesConnections(t *testing.T) {
	t.Parallel()
	server := refusing(t)
	_, port, err := net.SplitHostPort(server)
	require.NoError(t, err)
	_, err = DNS{Names: []string{"127.0.0.1"}, Port: port, Resolver: &Resolver{Servers: []string{server}}}.Try(limited(t, enough))
	require.EqualError(t, err, "name server "+server+": connection refused")
	assert.Equal(t, checkServer, Remedy(err))
}

func TestDNSPortOfServersInTheList(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "192.0.2.1:53", DNS{}.server("192.0.2.1"))
	assert.Equal(t, "[2001:db8::1]:53", DNS{}.server("2001:db8::1"))
	assert.Equal(t, "192.0.2.1:5353", DNS{Port: "5353"}.server("192.0.2.1"))
}

func TestDNSOutsideACluster(t *testing.T) {
	t.Parallel()
	const why = "not inside a cluster"
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": known})
	resolver := &Resolver{Servers: []string{server.address}, Search: []string{"office.example"}}

	report, err := DNS{Names: []string{"kubernetes.default.svc.cluster.local", "web.example.org", "db.prod.svc"}, Resolver: resolver, Outside: why}.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, Report{Detail: "web.example.org is 192.0.2.1; skipped: kubernetes.default.svc.cluster.local, db.prod.svc (not inside a cluster)"}, report)

	report, err = DNS{Names: []string{"kubernetes.default.svc.cluster.local", "kubernetes.default.svc."}, Resolver: resolver, Outside: why}.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, Report{Skipped: "kubernetes.default.svc.cluster.local, kubernetes.default.svc.: not inside a cluster"}, report)

	assert.Equal(t, []string{"web.example.org."}, server.asked())

	_, err = DNS{Names: []string{"kubernetes.default.svc.cluster.local", "other.example.org"}, Resolver: resolver, Outside: why}.Try(limited(t, enough))
	require.EqualError(t, err, "other.example.org: NXDOMAIN from name server "+server.address)
}

// Without a Resolver it uses the system's. Here every name is skipped.
func TestDNSWithTheSystemsResolver(t *testing.T) {
	t.Parallel()
	report, err := DNS{Names: []string{"kubernetes.default.svc"}, Outside: "not inside a cluster"}.Try(t.Context())
	if _, missing := SystemResolver(); missing != nil {
		require.EqualError(t, err, "name servers: "+missing.Error())
		assert.Equal(t, "mount or repair /etc/resolv.conf", Remedy(err))
		return
	}
	require.NoError(t, err)
	assert.Equal(t, "kubernetes.default.svc: not inside a cluster", report.Skipped)
}

func TestIsClusterName(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, domain string
		want         bool
	}{
		{"kubernetes.default.svc.cluster.local", "", true},
		{"kubernetes.default.svc.cluster.local.", "", true},
		{"10-0-0-1.default.pod.cluster.local", "", true},
		{"kubernetes.default.svc", "", true},
		{"kubernetes.default.svc.corp.example", "", true},
		{"host.corp.example", "corp.example", true},
		{"host.corp.example.", "corp.example", true},
		{"host.corp.example", "", false},
		{"hostcorp.example", "corp.example", false},
		{"web.example.org", "cluster.local", false},
		{"svc.example.org", "cluster.local", false},
		{"api.svc.example.org", "cluster.local", false},
		{"api.svc.cluster.local", "cluster.local", true},
		{"kubernetes", "cluster.local", false},
	} {
		assert.Equal(t, test.want, IsClusterName(test.name, test.domain), "%s under %q", test.name, test.domain)
	}
}

// A wildcard in a search domain of the node answers for most names that libc looks up (kubernetes#127702): one A query for each of
// these domains, and none in those of the cluster. A sinkhole is an answer, too.
func TestWildcards(t *testing.T) {
	t.Parallel()
	const label = "kube-node-ready-wildcard-test."
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{
		label + "any.example.":       {a: []string{"127.0.0.1"}},
		label + "sink.example.":      {a: []string{"0.0.0.0"}},
		label + "v6.example.":        {aaaa: []string{"::1"}},
		label + "lost.example.":      {silent: true},
		label + "svc.cluster.local.": known,
	})
	resolver := &Resolver{Servers: []string{server.address},
		Search: append(clusterSearch(), "any.example", "none.example", "sink.example", "v6.example", "lost.example")}
	assert.Equal(t, "kube-node-ready-wildcard-test.any.example, kube-node-ready-wildcard-test.sink.example", DNS{Resolver: resolver}.Wildcards(t.Context()))
	for _, domain := range []string{"any.example.", "none.example.", "sink.example.", "v6.example.", "lost.example."} {
		assert.Equal(t, 1, server.queries(label+domain, typeA), domain)
		assert.Zero(t, server.queries(label+domain, typeAAAA), domain)
	}
	assert.Len(t, server.asked(), 5)

	assert.Empty(t, DNS{Resolver: &Resolver{Servers: []string{server.address}, Search: clusterSearch()}}.Wildcards(t.Context()))
	assert.Empty(t, DNS{Resolver: resolver, Outside: "not in a pod"}.Wildcards(t.Context()), "its resolv.conf is no pod's")
	assert.Len(t, server.asked(), 5)
}
