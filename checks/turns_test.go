package checks

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A lost packet to the first server does not cost the attempt, whatever is wrong with the second.
func TestTheFirstServerHasASecondTurn(t *testing.T) {
	t.Parallel()
	const name = "web.example.org."
	says := func(s script) string {
		return newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: s}).address
	}
	for second, address := range map[string]string{
		"is silent": says(script{silent: true}), "refuses": refusing(t), "fails": says(script{rcode: servFail}),
		"has no route": unreachable + ":53", "loses its first packet too": says(script{a: known.a, lost: 1}),
	} {
		t.Run("the second "+second, func(t *testing.T) {
			t.Parallel()
			first := says(script{a: known.a, lost: 1})
			r := Runner{Timeout: 3 * time.Second, NewBackOff: Exponential}
			check := DNS{Names: []string{name}, Resolver: &Resolver{Servers: []string{first, address}}}
			results, err := r.Round(t.Context(), []Check{check})
			require.NoError(t, err)
			require.NoError(t, results[0].Err)
		})
	}
}

// In a long outage every server still has a turn, and no more.
func TestTurnsInALongOutage(t *testing.T) {
	t.Parallel()
	const name = "web.example.org."
	silent := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {silent: true}})
	dead := new(atomic.Bool)
	dead.Store(true)
	second := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {a: known.a, dead: dead}})
	check := DNS{Names: []string{name}, Resolver: &Resolver{Servers: []string{silent.address, second.address}}}
	err := failureOf(t, check)
	r := Runner{Timeout: 900 * time.Millisecond, NewBackOff: Exponential}
	r.outages = map[string]outage{DNSName: {since: time.Now().Add(-time.Hour), err: err}}
	before := silent.queries(name, typeA)
	dead.Store(false)
	results, err := r.Round(t.Context(), []Check{check})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
	assert.Equal(t, before+1, silent.queries(name, typeA))
}
