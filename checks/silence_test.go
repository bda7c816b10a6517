package checks

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Some servers and firewalls drop queries for AAAA (RFC 4074, 4.1). What comes after the name still has time in the attempt.
func TestSilenceAboutAAAALeavesTime(t *testing.T) {
	t.Parallel()
	target := accepting(t, "127.0.0.1")
	_, port, err := net.SplitHostPort(target)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		says  map[string]script
		check func(*Resolver) Check
		err   string
	}{
		"a target by its name": {
			says: map[string]script{"web.example.org.": {a: []string{"127.0.0.1"}, noReply: typeAAAA}},
			check: func(r *Resolver) Check {
				return Network{Targets: []Target{{Address: "web.example.org:" + port}}, Resolver: r}
			}},
		"a server that answers any name": {
			says: map[string]script{"*": {a: []string{"192.0.2.7"}, noReply: typeAAAA}},
			check: func(r *Resolver) Check {
				return DNS{Names: []string{"kubernetes.default.svc.cluster.local"}, Kubernetes: "10.96.0.1:443", Resolver: r}
			},
			err: "any name"},
		"a short name": {
			says: map[string]script{"*": {rcode: nxDomain, noReply: typeAAAA}, "kubernetes.default.svc.cluster.local.": {a: known.a}},
			check: func(r *Resolver) Check {
				r.Search = clusterSearch()
				return DNS{Names: []string{"kubernetes.default"}, Resolver: r}
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newNameServer(t, "127.0.0.1", tcpOpen, test.says)
			_, err := test.check(&Resolver{Servers: []string{server.address}}).Try(limited(t, 6*time.Second))
			if test.err == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, test.err)
			}
		})
	}
}

// In a long outage no query follows one without an answer. One that is answered is followed, and either family may come first.
func TestOneQueryOfANameInALongOutage(t *testing.T) {
	t.Parallel()
	const name = "web.example.org."
	try := func(t *testing.T, server *nameServer, outage time.Duration) error {
		ctx := attemptOf(limited(t, 500*time.Millisecond), outage, time.Second)
		_, err := DNS{Names: []string{name}, Resolver: &Resolver{Servers: []string{server.address}}}.Try(ctx)
		return err
	}
	for title, test := range map[string]struct {
		outage  time.Duration
		says    script
		queries int // without an answer
	}{
		"short, silent":      {outage: time.Second, says: script{silent: true}, queries: 2},
		"long, silent":       {outage: 2 * time.Minute, says: script{silent: true}, queries: 1},
		"long, IPv4":         {outage: 2 * time.Minute, says: script{a: []string{"192.0.2.7"}}},
		"long, IPv6":         {outage: 2 * time.Minute, says: script{aaaa: []string{"2001:db8::7"}}},
		"long, only no A":    {outage: 2 * time.Minute, says: script{aaaa: []string{"2001:db8::7"}, noReply: typeA}},
		"long, only no AAAA": {outage: 2 * time.Minute, says: script{a: []string{"192.0.2.7"}, noReply: typeAAAA}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: test.says})
			err := try(t, server, test.outage)
			if test.queries > 0 {
				require.Error(t, err)
				assert.Equal(t, test.queries, server.queries(name, typeA)+server.queries(name, typeAAAA))
				return
			}
			for tries := 1; err != nil && tries < 30; tries++ {
				err = try(t, server, test.outage)
			}
			assert.NoError(t, err)
		})
	}
}
