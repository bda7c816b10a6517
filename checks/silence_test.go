package checks

import (
	"context"
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

// In a long outage no query follows one without an answer. One that is answered is followed as ever.
func TestOneQueryOfANameInALongOutage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		outage  time.Duration
		says    script
		a, aaaa bool // whether it is asked for
	}{
		"short, silent":          {outage: time.Second, says: script{silent: true}, a: true, aaaa: true},
		"long, silent":           {outage: 2 * time.Minute, says: script{silent: true}, a: true},
		"long, an answer":        {outage: 2 * time.Minute, says: script{a: []string{"192.0.2.7"}}, a: true},
		"long, an IPv6 address":  {outage: 2 * time.Minute, says: script{aaaa: []string{"2001:db8::7"}}, a: true, aaaa: true},
		"long, silence about A":  {outage: 2 * time.Minute, says: script{aaaa: []string{"2001:db8::7"}, noReply: typeA}, a: true},
		"long, NXDOMAIN, search": {outage: 2 * time.Minute, says: script{rcode: nxDomain}, a: true, aaaa: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": test.says})
			ctx := context.WithValue(limited(t, 900*time.Millisecond), flightKey{},
				flight{since: time.Now().Add(-test.outage), every: time.Second})
			_, err := DNS{Names: []string{"web.example.org."}, Resolver: &Resolver{Servers: []string{server.address}}}.Try(ctx)
			found := len(test.says.a)+len(test.says.aaaa) > 0 && test.says.noReply == 0
			assert.Equal(t, found, err == nil, "%v", err)
			assert.Equal(t, test.a, server.queries("web.example.org.", typeA) > 0)
			assert.Equal(t, test.aaaa, server.queries("web.example.org.", typeAAAA) > 0)
		})
	}
}
