package checks

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
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
	silent := map[string]script{name: {silent: true}}
	one, two := newNameServer(t, "127.0.0.1", tcpOpen, silent), newNameServer(t, "127.0.0.1", tcpOpen, silent)
	r := Runner{Timeout: 900 * time.Millisecond, NewBackOff: Exponential}
	r.outageOf(DNSName).failed(time.Now().Add(-time.Hour), errors.New("timeout"))
	check := DNS{Names: []string{name}, Resolver: &Resolver{Servers: []string{one.address, two.address}}}
	results, err := r.Round(t.Context(), []Check{check})
	require.NoError(t, err)
	require.Error(t, results[0].Err)
	for _, server := range []*nameServer{one, two} {
		assert.Equal(t, 1, server.queries(name, typeA)+server.queries(name, typeAAAA))
	}
}

// After a sign, and where signs are wrong, no sign would come soon: an attempt repeats its packets as in the first minute.
func TestALostPacketAfterASign(t *testing.T) {
	t.Parallel()
	for _, isWrong := range []bool{false, true} {
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {a: known.a, lost: 1}})
		r := Runner{Timeout: 3 * time.Second, NewBackOff: Exponential}
		failing := r.outageOf(DNSName)
		failing.failed(time.Now().Add(-2*time.Minute), errors.New("timeout"))
		failing.signCame, failing.ignoresSigns = !isWrong, isWrong
		results, err := r.Round(t.Context(), []Check{DNS{Names: []string{"web.example.org."}, Resolver: &Resolver{Servers: []string{server.address}}}})
		require.NoError(t, err)
		require.NoError(t, results[0].Err, "wrong: %v", isWrong)
	}
}

// A truncated reply proves the path to the server. A lost packet before it changes nothing.
func TestTruncatedAfterALostPacket(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{0, 1} {
		sc := script{a: known.a, truncated: true, lost: lost}
		server := newNameServer(t, "127.0.0.1", tcpSilent, map[string]script{"web.example.org.": sc, ".": sc})
		resolver := &Resolver{Servers: []string{server.address}}
		host, port, _ := net.SplitHostPort(server.address)
		ctx := attemptOf(limited(t, 900*time.Millisecond), 0, 300*time.Millisecond)
		start := time.Now()
		_, err := DNS{Names: []string{host}, Port: port, Resolver: resolver}.Try(ctx)
		require.NoError(t, err)
		require.NoError(t, ctx.Err(), "at once: %s", time.Since(start))
		_, err = DNS{Names: []string{"web.example.org."}, Resolver: resolver}.Try(ctx)
		require.ErrorIs(t, err, errTruncated)
	}
}

// A packet of the same server that is lost later, or the family that it never answers, does not hide that TCP port 53 is blocked.
func TestTimeoutsDoNotHideThatTCPIsBlocked(t *testing.T) {
	t.Parallel()
	const name = "web.example.org."
	try := func(servers ...string) error {
		ctx := attemptOf(limited(t, 1500*time.Millisecond), 0, 300*time.Millisecond)
		_, err := DNS{Names: []string{name}, Resolver: &Resolver{Servers: servers}}.Try(ctx)
		return err
	}
	t.Run("in a later turn", func(t *testing.T) {
		t.Parallel()
		var isDead atomic.Bool // once the second server is asked
		first := newNameServer(t, "127.0.0.1", tcpSilent, map[string]script{name: {a: known.a, truncated: true, dead: &isDead}})
		second := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {silent: true, kills: &isDead}})
		err := try(first.address, second.address)
		require.ErrorContains(t, err, first.address+": UDP answer truncated, TCP query failed: timeout, "+second.address+": timeout")
		assert.Equal(t, checkTCP, Remedy(err))
		assert.Greater(t, first.queries(name, typeA), 1, "it has had another turn")
	})
	t.Run("in the same turn", func(t *testing.T) {
		t.Parallel()
		server := newNameServer(t, "127.0.0.1", tcpSilent, map[string]script{name: {a: known.a, truncated: true, noReply: typeAAAA}})
		for _, err := range inParallel(make([]int, 16), func(int) error { return try(server.address) }) { // either family may end first
			require.ErrorIs(t, err, errTruncated)
		}
	})
}

// Each connection ends before a long attempt does, and the error says it.
func TestAConnectionThatEndsBeforeTheAttempt(t *testing.T) {
	t.Parallel()
	address := silent(t)
	transport := &http.Transport{DialContext: Dial}
	r := Runner{Timeout: 10 * time.Second, NewBackOff: Exponential}
	results, err := r.Round(t.Context(), []Check{API{Get: func(ctx context.Context) (Report, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, nil)
		require.NoError(t, err)
		_, err = transport.RoundTrip(request) //nolint:bodyclose // it fails
		return Report{}, err
	}}})
	require.NoError(t, err)
	require.ErrorContains(t, results[0].Err, "no answer from the API server in time: TCP connection not accepted")
	hidden := &url.Error{Err: &Failure{Cause: os.NewSyscallError("connect", syscall.ETIMEDOUT)}}
	require.True(t, isTimeout(hidden), "the kernel has ended it")
}

// However many endpoints a service has, an attempt repeats the connection to a few of them only.
func TestFewConnectionsAreRepeated(t *testing.T) {
	t.Parallel()
	address := silent(t)
	ctx := attemptOf(limited(t, 900*time.Millisecond), 0, 300*time.Millisecond)
	var started atomic.Int32
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectStart: func(string, string) { started.Add(1) }})
	_, err := service(slices.Repeat([]string{address}, 8)...).Try(ctx)
	require.Error(t, err)
	assert.EqualValues(t, 8+2*4, started.Load())
}

func TestSignsOfWhatAnAttemptAsks(t *testing.T) {
	t.Parallel()
	const name = "web.example.org."
	over := func(t *testing.T, err error) bool { return signOf(err)(limited(t, enough)) }
	dns := func(resolver Resolver, names ...string) DNS { return DNS{Names: names, Resolver: &resolver} }
	t.Run("one of two servers", func(t *testing.T) {
		t.Parallel()
		for works := range 2 {
			dead := new(atomic.Bool)
			dead.Store(true)
			servers := []string{
				newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {silent: true}}).address,
				newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {silent: true}}).address,
			}
			servers[works] = newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {a: known.a, dead: dead}}).address
			err := failureOf(t, dns(Resolver{Servers: servers}, name))
			assert.False(t, over(t, err))
			dead.Store(false)
			assert.True(t, over(t, err), "server %d", works)
		}
	})
	t.Run("slow names", func(t *testing.T) {
		t.Parallel()
		dead := new(atomic.Bool)
		dead.Store(true)
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"*": {a: known.a, dead: dead, slowA: 400 * time.Millisecond}})
		err := failureOf(t, dns(Resolver{Servers: []string{server.address}}, "a.example.", "b.example.", "c.example.", "d.example.", "e.example.", "f.example."))
		assert.False(t, over(t, err))
		dead.Store(false)
		assert.True(t, over(t, err))
	})
	t.Run("a name with an IPv6 address only", func(t *testing.T) {
		t.Parallel()
		recovered := new(atomic.Bool)
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {aaaa: []string{"2001:db8::1"}, rcode: nxDomain, recovered: recovered}})
		err := failureOf(t, dns(Resolver{Servers: []string{server.address}}, name))
		assert.False(t, over(t, err))
		recovered.Store(true)
		assert.True(t, over(t, err))
	})
	t.Run("a name with an IPv6 address only, which fails", func(t *testing.T) {
		t.Parallel()
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {codes: map[uint16]byte{typeAAAA: servFail}}})
		assert.False(t, over(t, failureOf(t, dns(Resolver{Servers: []string{server.address}}, name))), "no address of IPv4 is no sign")
	})
	t.Run("a candidate of the search list", func(t *testing.T) {
		t.Parallel()
		recovered := new(atomic.Bool)
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{
			"kubernetes.default.svc.cluster.local.": {a: known.a, rcode: nxDomain, recovered: recovered}})
		err := failureOf(t, dns(Resolver{Servers: []string{server.address}, Search: clusterSearch()}, "kubernetes.default"))
		assert.False(t, over(t, err))
		recovered.Store(true)
		assert.True(t, over(t, err))
	})
	t.Run("a URL whose host has two addresses", func(t *testing.T) {
		t.Parallel()
		address, open := closedPort(t)
		_, port, _ := net.SplitHostPort(address)
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"many.example.": {a: []string{"127.0.0.1", "127.0.0.2"}}})
		err := failureOf(t, Network{Targets: []Target{{URL: "https://many.example.:" + port}}, Resolver: &Resolver{Servers: []string{server.address}}})
		assert.False(t, over(t, err))
		open()
		assert.True(t, over(t, err))
	})
	t.Run("an endpoint on this node proves nothing", func(t *testing.T) {
		t.Parallel()
		remote, openRemote := closedPort(t)
		local, openLocal := closedPort(t)
		check := service()
		check.Node = "me"
		check.List = func(context.Context) ([]EndpointSlice, error) {
			return ParseEndpoints([]string{remote + "/other", local + "/me"})
		}
		err := failureOf(t, check)
		openLocal()
		assert.False(t, over(t, err))
		openRemote()
		assert.True(t, over(t, err))
	})
}

// The sign of the check that has failed counts, not that of the first one.
func TestSignOfALaterCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &outageOf{until: time.Now().Add(7500 * time.Millisecond), probes: 1}
		r := Runner{Timeout: 3 * time.Second, MaxRetries: 5, NewBackOff: Exponential}
		results, err := r.Round(t.Context(), []Check{Skip(APIName, "a test"), o})
		require.NoError(t, err)
		require.NoError(t, results[1].Err)
		assert.True(t, results[1].AfterSign)
	})
}
