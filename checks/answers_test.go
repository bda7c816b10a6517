package checks

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A trace in the context of an attempt is told of each thing that answers, also where the error of the attempt is only a timeout: the
// agent does not renew its sandbox then.
func TestAnswers(t *testing.T) {
	t.Parallel()
	mute := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"*": {silent: true}}).address
	half := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"*": {rcode: nxDomain, noReply: typeA}}).address
	holding := accepting(t, "127.0.0.1")
	dns := func(server string) Check {
		return DNS{Names: []string{"example.com"}, Resolver: &Resolver{Servers: []string{server}, Search: []string{"a.svc.cluster.local", "cluster.local"}}}
	}
	network := func(targets ...Target) Check { return Network{Targets: targets} }
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	get := func(ctx context.Context) (Report, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, web.URL, nil)
		require.NoError(t, err)
		response, err := web.Client().Do(request)
		if err == nil {
			err = response.Body.Close()
		}
		return Report{}, err
	}
	_, err := get(t.Context())
	require.NoError(t, err, "the next request has a connection already")

	for name, test := range map[string]struct {
		check Check
		want  bool
	}{
		"no DNS reply":                       {dns(mute), false},
		"no route to the name server":        {dns(net.JoinHostPort(unreachable, "53")), false},
		"no accept":                          {network(Target{Address: silent(t)}), false},
		"no route":                           {network(Target{Address: net.JoinHostPort(unreachable, "443")}), false},
		"nothing is sent":                    {Skip(DNSName, "a test"), false},
		"a DNS reply":                        {dns(newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"*": {rcode: servFail}}).address), true},
		"a reply for one record type":        {dns(half), true},
		"the name server's port is closed":   {dns(refusing(t)), true},
		"a truncated reply":                  {dns(newNameServer(t, "127.0.0.1", tcpClosed, map[string]script{"*": {a: []string{"192.0.2.1"}, truncated: true}}).address), true},
		"an accept":                          {network(Target{Address: holding}), true},
		"an accept beside a target without":  {network(Target{Address: holding}, Target{Address: net.JoinHostPort(unreachable, "443")}), true},
		"an accept before a silent TLS":      {network(Target{URL: "https://" + holding}), true},
		"a reset":                            {network(Target{Address: refusing(t)}), true},
		"a response over an open connection": {API{Get: get}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var answered atomic.Bool
			_, _ = test.check.Try(httptrace.WithClientTrace(limited(t, time.Second), &httptrace.ClientTrace{
				GotFirstResponseByte: func() { answered.Store(true) },
				ConnectDone: func(network, _ string, err error) {
					if network != "udp" && (err == nil || errors.Is(err, syscall.ECONNREFUSED)) {
						answered.Store(true)
					}
				},
			}))
			assert.Equal(t, test.want, answered.Load())
		})
	}
}
