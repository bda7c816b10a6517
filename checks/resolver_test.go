package checks

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// clusterSearch is the search list that kubelet gives a pod of namespace kube-system.
func clusterSearch() []string {
	return []string{"kube-system.svc.cluster.local", "svc.cluster.local", "cluster.local"}
}

// known is the script for a name with an address.
var known = script{a: []string{"192.0.2.1"}}

// limited is a context with a timeout, for what must reach it.
func limited(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// enough is more than any reply on loopback takes, however busy the machine.
const enough = 30 * time.Second

// receive returns the next value of a channel.
func receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(enough):
		require.Fail(t, "nothing was received")
	}
	return value
}

func TestSearchOrder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		title, name string
		names       map[string]script
		search      []string
		asked       []string
		err         string // {server} is the server's address
	}{
		{
			"a name with a dot is asked as written first", "web.example.org",
			map[string]script{"web.example.org.": known}, clusterSearch(),
			[]string{"web.example.org."}, "",
		},
		{
			"then the search list completes it", "web.default",
			map[string]script{"web.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"web.default.", "web.default.kube-system.svc.cluster.local.", "web.default.svc.cluster.local."}, "",
		},
		{
			"a name with a final dot is asked as written", "kubernetes.default.",
			map[string]script{"kubernetes.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"kubernetes.default."}, "kubernetes.default: NXDOMAIN from name server {server}",
		},
		{
			"the search list completes a name under svc first: the internet may drop packets", "kubernetes.default.svc",
			map[string]script{"kubernetes.default.svc.": {silent: true}, "kubernetes.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"kubernetes.default.svc.kube-system.svc.cluster.local.", "kubernetes.default.svc.svc.cluster.local.", "kubernetes.default.svc.cluster.local."}, "",
		},
		{
			"and the API's own service: the same", "kubernetes.default",
			map[string]script{"kubernetes.default.": {silent: true}, "kubernetes.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"kubernetes.default.kube-system.svc.cluster.local.", "kubernetes.default.svc.cluster.local."}, "",
		},
		{
			"a full name of the cluster is asked as written first", "web.default.svc.cluster.local",
			map[string]script{"web.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"web.default.svc.cluster.local."}, "",
		},
		{
			"without a cluster domain there is nothing else to ask for", "kubernetes.default",
			map[string]script{"kubernetes.default.": known}, []string{"corp.example"},
			[]string{"kubernetes.default."}, "",
		},
		{
			"the search list completes a single label first", "kube-dns",
			map[string]script{"kube-dns.kube-system.svc.cluster.local.": known, "kube-dns.": known}, clusterSearch(),
			[]string{"kube-dns.kube-system.svc.cluster.local."}, "",
		},
		{
			"a single label is asked as written last", "intranet",
			map[string]script{"intranet.": known}, clusterSearch(),
			[]string{"intranet.kube-system.svc.cluster.local.", "intranet.svc.cluster.local.", "intranet.cluster.local.", "intranet."}, "",
		},
		{
			"a single label without a search list", "intranet", map[string]script{"intranet.": known}, nil,
			[]string{"intranet."}, "",
		},
		{
			"a single label with a final dot", "intranet.", map[string]script{"intranet.": known}, clusterSearch(),
			[]string{"intranet."}, "",
		},
		{
			"a full name needs no search list", "kubernetes.default.svc.cluster.local",
			map[string]script{"kubernetes.default.svc.cluster.local.": known}, []string{"svc.wrong.example"},
			[]string{"kubernetes.default.svc.cluster.local."}, "",
		},
		{
			"with a wrong search list the error names the name as written", "web.default",
			map[string]script{"web.default.svc.cluster.local.": known}, []string{"svc.wrong.example"},
			[]string{"web.default.", "web.default.svc.wrong.example."},
			"web.default: NXDOMAIN from name server {server}",
		},
		{
			"NODATA does not end the search", "web.default",
			map[string]script{"web.default.": {}, "web.default.svc.cluster.local.": known}, []string{"svc.cluster.local"},
			[]string{"web.default.", "web.default.svc.cluster.local."}, "",
		},
		{
			"an unreachable upstream does not hide the cluster's own name", "web.default",
			map[string]script{"web.default.": {rcode: servFail}, "web.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"web.default.", "web.default.kube-system.svc.cluster.local.", "web.default.svc.cluster.local."}, "",
		},
		{
			"another failure outweighs a negative answer", "web.default",
			map[string]script{"web.default.svc.cluster.local.": {rcode: servFail}}, []string{"svc.cluster.local"},
			[]string{"web.default.", "web.default.svc.cluster.local."},
			"web.default.svc.cluster.local: SERVFAIL from name server {server}",
		},
		{
			"the first of two such failures is named", "web.default",
			map[string]script{"web.default.": {rcode: servFail}, "web.default.svc.cluster.local.": {rcode: refused}}, []string{"svc.cluster.local"},
			[]string{"web.default.", "web.default.svc.cluster.local."},
			"web.default: SERVFAIL from name server {server}",
		},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			server := newNameServer(t, "127.0.0.1", tcpOpen, test.names)
			r := Resolver{Servers: []string{server.address}, Search: test.search}

			found, warnings, err := r.lookup(limited(t, enough), test.name, firstFamily)

			assert.Equal(t, test.asked, server.asked())
			assert.Empty(t, warnings)
			if test.err != "" {
				require.EqualError(t, err, strings.ReplaceAll(test.err, "{server}", server.address))
				assert.Empty(t, found)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, parseAddrs(known.a), found.addrs)
		})
	}
}

// A healthy name costs one query of each type, and none for the domains of the search list.
func TestOneQueryOfEachType(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {a: known.a, aaaa: []string{"2001:db8::1"}}})
	r := Resolver{Servers: []string{server.address}, Search: clusterSearch()}
	found, _, err := r.lookup(limited(t, enough), "web.example.org", func([]netip.Addr) bool { return false })
	require.NoError(t, err)
	assert.ElementsMatch(t, parseAddrs([]string{"192.0.2.1", "2001:db8::1"}), found.addrs, "both families")
	assert.Equal(t, 1, server.queries("web.example.org.", typeA))
	assert.Equal(t, 1, server.queries("web.example.org.", typeAAAA))
}

// Two servers: the verdict when one of them or both fail.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	const name = "web.example.org"
	knows := map[string]script{name + ".": known}
	says := func(rcode byte) func(*testing.T) string {
		return func(t *testing.T) string {
			return newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name + ".": {rcode: rcode}}).address
		}
	}
	healthy := func(t *testing.T) string { return newNameServer(t, "127.0.0.1", tcpOpen, knows).address }
	quiet := func(t *testing.T) string {
		return newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name + ".": {silent: true}}).address
	}
	truncates := func(t *testing.T) string {
		return newNameServer(t, "127.0.0.1", tcpClosed, map[string]script{name + ".": {truncated: true}}).address
	}
	lame := func(t *testing.T) string {
		return newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name + ".": {lame: true}}).address
	}
	for _, test := range []struct {
		title       string
		one, two    func(*testing.T) string
		within      time.Duration
		warnings    []string
		err, remedy string
	}{
		{"both work", healthy, healthy, enough, nil, "", ""},
		{"the second one refuses", healthy, refusing, enough, nil, "", ""},
		{"the first one refuses", refusing, healthy, enough, []string{"web.example.org: connection refused from name server {one}"}, "", ""},
		{"the first one is silent", quiet, healthy, 3 * time.Second, []string{"web.example.org: timeout from name server {one}"}, "", ""},
		{"the first one fails", says(servFail), healthy, enough, []string{"web.example.org: SERVFAIL from name server {one}"}, "", ""},
		{"the first one sends a lame referral", lame, healthy, enough, []string{"web.example.org: lame referral from name server {one}"}, "", ""},
		{"the first one has a negative answer", says(nxDomain), healthy, enough, nil, "web.example.org: NXDOMAIN from name server {one}", checkName},
		{"one refuses, one has a negative answer", refusing, says(nxDomain), enough, nil, "web.example.org: NXDOMAIN from name server {two}", checkName},
		{"both refuse", refusing, refusing, enough, nil, "web.example.org: {one}: connection refused, {two}: connection refused", checkNoPod},
		{"both fail, differently", says(servFail), says(refused), enough, nil, "web.example.org: {one}: SERVFAIL, {two}: REFUSED", checkUpstream},
		{"both are silent", quiet, quiet, 400 * time.Millisecond, nil, "web.example.org: {one}: timeout, {two}: timeout", checkPods},
		{"one refuses, one is silent", refusing, quiet, 400 * time.Millisecond, nil, "web.example.org: {one}: connection refused, {two}: timeout", checkPods},
		{"one is silent, one refuses", quiet, refusing, 400 * time.Millisecond, nil, "web.example.org: {one}: timeout, {two}: connection refused", checkPods},
		{"one truncates, one fails", truncates, says(servFail), enough, nil,
			"web.example.org: {one}: UDP answer truncated, TCP query failed: connection refused, {two}: SERVFAIL", checkTCP},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			one, two := test.one(t), test.two(t)
			fill := strings.NewReplacer("{one}", one, "{two}", two)
			check := DNS{Names: []string{name}, Resolver: &Resolver{Servers: []string{one, two}}}

			report, err := check.Try(limited(t, test.within))

			var warnings []string
			for _, warning := range test.warnings {
				warnings = append(warnings, fill.Replace(warning))
			}
			assert.Equal(t, warnings, report.Warnings)
			assert.Equal(t, fill.Replace(test.err), text(err))
			assert.Equal(t, test.remedy, Remedy(err))
			if test.err == "" {
				assert.Equal(t, "web.example.org is 192.0.2.1", report.Detail)
			}
		})
	}
}

// Lookups run in parallel with the same list of servers, so it must not change.
func TestTheServerThatAnsweredComesFirst(t *testing.T) {
	t.Parallel()
	dead := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{
		"web.default.": {silent: true}, "web.default.kube-system.svc.cluster.local.": {silent: true},
		"web.default.svc.cluster.local.": {silent: true},
	})
	healthy := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.default.svc.cluster.local.": known})
	servers := []string{dead.address, healthy.address}
	check := DNS{Names: []string{"web.default"}, Resolver: &Resolver{Servers: servers, Search: clusterSearch()}}

	report, err := check.Try(limited(t, 3*time.Second))

	require.NoError(t, err)
	assert.Equal(t, []string{"web.default: timeout from name server " + dead.address}, report.Warnings)
	assert.Equal(t, []string{"web.default."}, dead.asked())
	assert.Equal(t, []string{dead.address, healthy.address}, servers)
}

// The first server fails, and is silent as soon as the second one, which never replies, is asked.
func TestAReplyOutweighsALaterTimeout(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	one := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {rcode: servFail, dead: &down}})
	two := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {silent: true, kills: &down}})
	r := Resolver{Servers: []string{one.address, two.address}}
	_, _, err := r.lookup(limited(t, 2400*time.Millisecond), "web.example.org", firstFamily)
	require.EqualError(t, err, fmt.Sprintf("web.example.org: %s: SERVFAIL, %s: timeout", one.address, two.address))
}

// A reply after a lost packet is final: no queries at full speed until the deadline.
func TestAReplyAfterALostPacketIsFinal(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"late.example.org.": {rcode: servFail, lost: 1}})
	r := Resolver{Servers: []string{server.address}}
	ctx := limited(t, 3*time.Second)
	_, _, err := r.lookup(ctx, "late.example.org", firstFamily)
	require.EqualError(t, err, "late.example.org: SERVFAIL from name server "+server.address)
	assert.Less(t, server.queries("late.example.org.", typeA), 10)
}

// The same server twice in resolv.conf: its reply is final all the same.
func TestAServerListedTwice(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {rcode: servFail}})
	r := Resolver{Servers: []string{server.address, server.address}}
	ctx := limited(t, enough)
	_, _, err := r.lookup(ctx, "web.example.org", firstFamily)
	require.EqualError(t, err, fmt.Sprintf("web.example.org: %[1]s: SERVFAIL, %[1]s: SERVFAIL", server.address))
	assert.NoError(t, ctx.Err(), "not asked until the deadline")
}

func firstFamily([]netip.Addr) bool { return true }
