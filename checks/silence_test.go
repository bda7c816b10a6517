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
