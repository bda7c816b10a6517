package checks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseResolvConf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, conf string
		want       Resolver
		domain     string
	}{
		{
			"as kubelet writes it",
			"search kube-system.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n",
			Resolver{Servers: []string{"10.96.0.10:53"}, Search: []string{"kube-system.svc.cluster.local", "svc.cluster.local", "cluster.local"}},
			"cluster.local",
		},
		{
			"IPv6, two servers, another domain with final dots",
			"nameserver fd00::a\nnameserver fe80::1%eth0\nsearch default.svc.corp.example. svc.corp.example.\n",
			Resolver{Servers: []string{"[fd00::a]:53", "[fe80::1%eth0]:53"}, Search: []string{"default.svc.corp.example", "svc.corp.example"}},
			"corp.example",
		},
		{
			"a desk: comments, tabs, the last list counts",
			"# nameserver 192.0.2.9\n; search old.example\nnameserver\t192.0.2.1 # office\ndomain home.example\n\nsearch office.example .\nnameserver\n",
			Resolver{Servers: []string{"192.0.2.1:53"}, Search: []string{"office.example"}},
			"",
		},
		{"domain after search", "search a.example b.example\ndomain c.example\nnameserver 192.0.2.1", Resolver{Servers: []string{"192.0.2.1:53"}, Search: []string{"c.example"}}, ""},
		{
			"options", "nameserver 192.0.2.1\noptions ndots:5 use-vc\noptions rotate\n",
			Resolver{Servers: []string{"192.0.2.1:53"}, Network: "tcp"}, "",
		},
		{"empty", "", Resolver{Servers: []string{"127.0.0.1:53"}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseResolvConf(strings.NewReader(test.conf))
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
			assert.Equal(t, test.domain, got.ClusterDomain())
		})
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("disk is gone") }

func TestParseResolvConfThatCannotBeRead(t *testing.T) {
	t.Parallel()
	_, err := ParseResolvConf(brokenReader{})
	require.EqualError(t, err, "disk is gone")
}

func TestSystemResolverReadsTheSystemsFile(t *testing.T) {
	t.Parallel()
	file, err := os.Open("/etc/resolv.conf")
	if err != nil {
		_, got := SystemResolver()
		require.EqualError(t, got, err.Error())
		return
	}
	defer func() { _ = file.Close() }()
	want, err := ParseResolvConf(file)
	require.NoError(t, err)
	got, err := SystemResolver()
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// clusterSearch is the search list that kubelet gives a pod of namespace kube-system.
func clusterSearch() []string {
	return []string{"kube-system.svc.cluster.local", "svc.cluster.local", "cluster.local"}
}

// known is the script for a name with an address.
var known = script{a: []string{"192.0.2.1"}}

// limited is a context for what must run into its end, and for nothing else.
func limited(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// enough is more than any answer on loopback takes, however busy the machine.
const enough = 30 * time.Second

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
			"a name with a dot is completed by the search list then", "kubernetes.default",
			map[string]script{"kubernetes.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"kubernetes.default.", "kubernetes.default.kube-system.svc.cluster.local.", "kubernetes.default.svc.cluster.local."}, "",
		},
		{
			"a name with a final dot is asked as written only", "kubernetes.default.",
			map[string]script{"kubernetes.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"kubernetes.default."}, "kubernetes.default: NXDOMAIN from name server {server}",
		},
		{
			"a name under svc is completed first: a way out that is a black hole does not hide it", "kubernetes.default.svc",
			map[string]script{"kubernetes.default.svc.": {silent: true}, "kubernetes.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"kubernetes.default.svc.kube-system.svc.cluster.local.", "kubernetes.default.svc.svc.cluster.local.", "kubernetes.default.svc.cluster.local."}, "",
		},
		{
			"a single label is completed first", "kube-dns",
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
			"a wrong search list does no harm to a full name", "kubernetes.default.svc.cluster.local",
			map[string]script{"kubernetes.default.svc.cluster.local.": known}, []string{"svc.wrong.example"},
			[]string{"kubernetes.default.svc.cluster.local."}, "",
		},
		{
			"with a wrong search list the error is about the name as written", "kubernetes.default",
			map[string]script{"kubernetes.default.svc.cluster.local.": known}, []string{"svc.wrong.example"},
			[]string{"kubernetes.default.", "kubernetes.default.svc.wrong.example."},
			"kubernetes.default: NXDOMAIN from name server {server}",
		},
		{
			"without a record of the name the search goes on", "kubernetes.default",
			map[string]script{"kubernetes.default.": {}, "kubernetes.default.svc.cluster.local.": known}, []string{"svc.cluster.local"},
			[]string{"kubernetes.default.", "kubernetes.default.svc.cluster.local."}, "",
		},
		{
			"an upstream that is out of reach does not hide the cluster's own name", "kubernetes.default",
			map[string]script{"kubernetes.default.": {rcode: servFail}, "kubernetes.default.svc.cluster.local.": known}, clusterSearch(),
			[]string{"kubernetes.default.", "kubernetes.default.kube-system.svc.cluster.local.", "kubernetes.default.svc.cluster.local."}, "",
		},
		{
			"what the server does not know of outweighs what it knows", "kubernetes.default",
			map[string]script{"kubernetes.default.svc.cluster.local.": {rcode: servFail}}, []string{"svc.cluster.local"},
			[]string{"kubernetes.default.", "kubernetes.default.svc.cluster.local."},
			"kubernetes.default.svc.cluster.local: SERVFAIL from name server {server}",
		},
		{
			"the first thing that the server does not know is named", "kubernetes.default",
			map[string]script{"kubernetes.default.": {rcode: servFail}, "kubernetes.default.svc.cluster.local.": {rcode: refused}}, []string{"svc.cluster.local"},
			[]string{"kubernetes.default.", "kubernetes.default.svc.cluster.local."},
			"kubernetes.default: SERVFAIL from name server {server}",
		},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			server := newNameServer(t, "127.0.0.1", tcpOpen, test.names)
			r := Resolver{Servers: []string{server.address}, Search: test.search}

			addrs, warnings, err := r.lookup(limited(t, enough), test.name, false)

			assert.Equal(t, test.asked, server.asked())
			assert.Empty(t, warnings)
			if test.err != "" {
				require.EqualError(t, err, strings.ReplaceAll(test.err, "{server}", server.address))
				assert.Empty(t, addrs)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, parseAddrs(known.a), addrs)
		})
	}
}

// A healthy name costs one question of each type, and not one for each domain of the search list.
func TestOneQuestionOfEachType(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {a: known.a, aaaa: []string{"2001:db8::1"}}})
	r := Resolver{Servers: []string{server.address}, Search: clusterSearch()}
	addrs, _, err := r.lookup(limited(t, enough), "web.example.org", true)
	require.NoError(t, err)
	assert.ElementsMatch(t, parseAddrs([]string{"192.0.2.1", "2001:db8::1"}), addrs, "both families where every address is wanted")
	assert.Equal(t, 1, server.questions("web.example.org.", typeA))
	assert.Equal(t, 1, server.questions("web.example.org.", typeAAAA))
}

// Two servers: what the check says when one of them or both do not work.
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
	mute := func(t *testing.T) string {
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
		{"the first one is silent", mute, healthy, 3 * time.Second, []string{"web.example.org: timeout from name server {one}"}, "", ""},
		{"the first one fails", says(servFail), healthy, enough, []string{"web.example.org: SERVFAIL from name server {one}"}, "", ""},
		{"the first one refers to nowhere", lame, healthy, enough, []string{"web.example.org: lame referral from name server {one}"}, "", ""},
		{"the first one knows better", says(nxDomain), healthy, enough, nil, "web.example.org: NXDOMAIN from name server {one}", checkName},
		{"one refuses, one knows better", refusing, says(nxDomain), enough, nil, "web.example.org: NXDOMAIN from name server {two}", checkName},
		{"both refuse", refusing, refusing, enough, nil, "web.example.org: {one}: connection refused, {two}: connection refused", checkNoPod},
		{"both fail, each in its way", says(servFail), says(refused), enough, nil, "web.example.org: {one}: SERVFAIL, {two}: REFUSED", checkUpstream},
		{"both are silent", mute, mute, 400 * time.Millisecond, nil, "web.example.org: {one}: timeout, {two}: timeout", checkPods},
		{"one refuses, one is silent", refusing, mute, 400 * time.Millisecond, nil, "web.example.org: {one}: connection refused, {two}: timeout", checkPods},
		{"one is silent, one refuses", mute, refusing, 400 * time.Millisecond, nil, "web.example.org: {one}: timeout, {two}: connection refused", checkPods},
		{"one truncates, one fails", truncates, says(servFail), enough, nil,
			"web.example.org: {one}: truncated answer over UDP, and over TCP connection refused, {two}: SERVFAIL", checkTCP},
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

// The server list is not written to: another name is asked with it at the same time.
func TestAServerThatKnewIsAskedFirstFromThenOn(t *testing.T) {
	t.Parallel()
	dead := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{
		"kubernetes.default.": {silent: true}, "kubernetes.default.kube-system.svc.cluster.local.": {silent: true},
		"kubernetes.default.svc.cluster.local.": {silent: true},
	})
	healthy := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"kubernetes.default.svc.cluster.local.": known})
	servers := []string{dead.address, healthy.address}
	check := DNS{Names: []string{"kubernetes.default"}, Resolver: &Resolver{Servers: servers, Search: clusterSearch()}}

	report, err := check.Try(limited(t, 3*time.Second))

	require.NoError(t, err)
	assert.Equal(t, []string{"kubernetes.default: timeout from name server " + dead.address}, report.Warnings)
	assert.Equal(t, []string{"kubernetes.default."}, dead.asked())
	assert.Equal(t, []string{dead.address, healthy.address}, servers)
}

// The first server fails, and falls silent as soon as the second one, which never says anything,
// has been asked.
func TestTheFirstWordsOfAServerAreKept(t *testing.T) {
	t.Parallel()
	var fallen atomic.Bool
	one := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {rcode: servFail, dead: &fallen}})
	two := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {silent: true, kills: &fallen}})
	r := Resolver{Servers: []string{one.address, two.address}}
	_, _, err := r.lookup(limited(t, 2400*time.Millisecond), "web.example.org", false)
	require.EqualError(t, err, fmt.Sprintf("web.example.org: %s: SERVFAIL, %s: timeout", one.address, two.address))
}

// What came after a lost packet is final: it is not asked for again, at full speed, until the time is over.
func TestAServerThatSpeaksAfterALostPacket(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"late.example.org.": {rcode: servFail, lost: 1}})
	r := Resolver{Servers: []string{server.address}}
	ctx := limited(t, 3*time.Second)
	_, _, err := r.lookup(ctx, "late.example.org", false)
	require.EqualError(t, err, "late.example.org: SERVFAIL from name server "+server.address)
	assert.Less(t, server.questions("late.example.org.", typeA), 10)
}

// The same server twice in resolv.conf: its verdict is final all the same.
func TestAServerListedTwice(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {rcode: servFail}})
	r := Resolver{Servers: []string{server.address, server.address}}
	ctx := limited(t, enough)
	_, _, err := r.lookup(ctx, "web.example.org", false)
	require.EqualError(t, err, "web.example.org: SERVFAIL from name server "+server.address)
	assert.NoError(t, ctx.Err(), "not asked until the time is over")
}
