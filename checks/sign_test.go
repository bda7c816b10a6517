package checks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// outageOf is a network that does not work until a time. Its check makes so many probes, each of which a lost packet costs the
// whole attempt, and its sign is one packet.
type outageOf struct {
	until   time.Time
	lies    bool // the sign
	probes  int
	packets atomic.Int32
	mu      sync.Mutex
	signs   []time.Time
	tries   []time.Time
}

func (o *outageOf) Name() string { return DNSName }

func (o *outageOf) Try(ctx context.Context) (Report, error) {
	o.tries = append(o.tries, time.Now())
	return combine(inParallel(make([]struct{}, o.probes), func(struct{}) outcome {
		_, err := hedge(ctx, pacingOf(ctx).between(hedgeParts), func(ctx context.Context) (int, error) {
			if o.packets.Add(1); !time.Now().Before(o.until) {
				return 0, nil
			}
			<-ctx.Done()
			return 0, ctx.Err()
		})
		if err == nil {
			return outcome{}
		}
		return outcome{err: &Failure{Cause: err, sign: func(context.Context) bool {
			o.packets.Add(1)
			o.mu.Lock()
			defer o.mu.Unlock()
			o.signs = append(o.signs, time.Now())
			return o.lies || !time.Now().Before(o.until)
		}}}
	}))
}

// rounds makes rounds as the agent does, until one passes, or until the time.
func (o *outageOf) rounds(ctx context.Context, observe func(Attempt), until time.Time) {
	r := Runner{Timeout: 3 * time.Second, MaxRetries: 5, NewBackOff: Exponential, Observe: observe}
	for pauses := Exponential(); time.Now().Before(until); {
		results, _ := r.Round(ctx, []Check{o})
		if results[0].Err == nil {
			return
		}
		r.Pause(ctx, []string{DNSName}, pauses.NextBackOff())
	}
}

// The bar of make bench -only recovery, less what the later checks take.
func TestPassesSoonAfterAnOutage(t *testing.T) {
	t.Parallel()
	for x := range 200 {
		synctest.Test(t, func(t *testing.T) {
			outage := time.Duration(x) * 377 * time.Millisecond // up to 75 s
			o := &outageOf{until: time.Now().Add(outage), probes: 4}
			o.rounds(t.Context(), nil, time.Now().Add(time.Hour))
			assert.LessOrEqual(t, time.Since(o.until), 1300*time.Millisecond+outage/40, "after %s", outage)
		})
	}
}

// Signs are no attempts: as many as without them, at most one packet a second, and a pace that slows down.
func TestTenMinutesWithoutNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		o := &outageOf{until: start.Add(time.Hour), probes: 4}
		var seen watcher
		o.rounds(t.Context(), seen.attempted, start.Add(10*time.Minute))
		assert.LessOrEqual(t, o.packets.Load(), int32(600))
		assert.Len(t, seen.seen, len(o.tries))
		for i, attempt := range seen.seen {
			assert.Equal(t, i%6+1, attempt.Number)
			assert.InDelta(t, []float64{1, 2, 4, 8, 16, 0}[i%6], attempt.RetryIn.Seconds(), 1.7)
			assert.False(t, attempt.AfterSign)
			if i%6 > 0 {
				assert.Equal(t, seen.seen[i-1].RetryIn, o.tries[i].Sub(o.tries[i-1])-3*time.Second, "no pause is shorter")
			}
		}
		var early, late bool
		for i, at := range o.signs[1:] {
			pace := min(max(at.Sub(start)/60, time.Second), 15*time.Second)
			parts := float64(at.Sub(o.signs[i])) / float64(pace)
			assert.GreaterOrEqual(t, parts, 0.78, "%s", at.Sub(start)) // the pace has slowed down since the pause began
			early, late = early || parts < 0.9, late || parts > 1.1 && parts < 1.21
		}
		assert.True(t, early && late, "nodes do not stay in step")
	})
}

// As behind an MTU black hole: a connection is accepted, and the attempt fails.
func TestAWrongSignIsNotTrusted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		o := &outageOf{until: start.Add(5 * time.Minute), probes: 1, lies: true}
		var seen watcher
		o.rounds(t.Context(), seen.attempted, start.Add(time.Hour))
		assert.Len(t, o.signs, 1, "the first one was wrong")
		assert.Equal(t, 3*time.Second, o.tries[1].Sub(o.tries[0]), "the pause ended at once")
		for i, attempt := range seen.seen {
			assert.Equal(t, i == 1, attempt.AfterSign, "attempt %d", i)
			if attempt.RetryIn > 0 && i > 0 {
				assert.Equal(t, attempt.RetryIn, o.tries[i+1].Sub(o.tries[i])-3*time.Second, "attempt %d", i)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := Runner{Timeout: 3 * time.Second, MaxRetries: 2, NewBackOff: Exponential}
		for range 2 {
			o := &outageOf{until: time.Now().Add(6500 * time.Millisecond), probes: 1, lies: true}
			results, err := r.Round(t.Context(), []Check{o})
			require.NoError(t, err)
			require.NoError(t, results[0].Err)
			assert.Len(t, o.signs, 1, "trusted again once the check has passed")
		}
	})
}

func TestPauseEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		start := time.Now()
		assert.False(t, new(Runner).Pause(ctx, nil, time.Hour))
		assert.Equal(t, 700*time.Millisecond, time.Since(start))
		assert.True(t, new(Runner).Pause(t.Context(), nil, 100*time.Millisecond))
		assert.Equal(t, 800*time.Millisecond, time.Since(start))
	})
}

// closedPort returns an address that refuses connections until open.
func closedPort(t *testing.T) (address string, open func()) {
	t.Helper()
	fd, address := boundTCP(t)
	return address, func() { require.NoError(t, syscall.Listen(fd, 16)) }
}

func failureOf(t *testing.T, check Check) error {
	t.Helper()
	_, err := check.Try(limited(t, 2*time.Second))
	require.Error(t, err)
	return err
}

func TestSigns(t *testing.T) {
	t.Parallel()
	over := func(t *testing.T, err error) bool { return signOf(err)(limited(t, enough)) }
	const name = "web.example.org."
	t.Run("dns: no reply", func(t *testing.T) {
		t.Parallel()
		dead := new(atomic.Bool)
		dead.Store(true)
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {a: known.a, dead: dead}})
		err := failureOf(t, DNS{Names: []string{name, "other.example.org."}, Resolver: &Resolver{Servers: []string{server.address}}})
		assert.False(t, over(t, err))
		dead.Store(false)
		assert.False(t, over(t, err), "the other name does not exist: both must resolve")
		err = failureOf(t, DNS{Names: []string{"other.example.org."}, Resolver: &Resolver{Servers: []string{server.address}}})
		assert.False(t, over(t, err), "NXDOMAIN")
	})
	t.Run("dns: a negative answer, and an error", func(t *testing.T) {
		t.Parallel()
		for _, rcode := range []byte{nxDomain, servFail} {
			recovered := new(atomic.Bool)
			server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{name: {a: known.a, rcode: rcode, recovered: recovered}})
			err := failureOf(t, DNS{Names: []string{name}, Resolver: &Resolver{Servers: []string{server.address}}})
			asked := server.queries(name, typeA)
			assert.False(t, over(t, err))
			assert.Equal(t, asked+1, server.queries(name, typeA), "one query")
			recovered.Store(true)
			assert.True(t, over(t, err))
		}
	})
	t.Run("dns: a name that the search list completes", func(t *testing.T) {
		t.Parallel()
		dead := new(atomic.Bool)
		dead.Store(true)
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{
			"web.kube-system.svc.cluster.local.": {rcode: nxDomain, dead: dead}, "web.svc.cluster.local.": known})
		err := failureOf(t, DNS{Names: []string{"web"}, Resolver: &Resolver{Servers: []string{server.address}, Search: clusterSearch()}})
		assert.False(t, over(t, err))
		dead.Store(false)
		assert.True(t, over(t, err), "the first one does not exist, and never did: the server answers")
	})
	t.Run("dns: a server given by address", func(t *testing.T) {
		t.Parallel()
		dead := new(atomic.Bool)
		dead.Store(true)
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{".": {rcode: servFail, dead: dead}})
		host, port, _ := net.SplitHostPort(server.address)
		err := failureOf(t, DNS{Names: []string{host}, Port: port, Resolver: &Resolver{Servers: []string{server.address}}})
		assert.False(t, over(t, err))
		dead.Store(false)
		assert.True(t, over(t, err), "any reply")
	})
	t.Run("network: all targets", func(t *testing.T) {
		t.Parallel()
		one, openOne := closedPort(t)
		two, openTwo := closedPort(t)
		err := failureOf(t, Network{Targets: []Target{{Address: one}, {URL: "https://" + two}}})
		assert.False(t, over(t, err))
		openTwo()
		assert.False(t, over(t, err))
		openOne()
		assert.True(t, over(t, err))
	})
	t.Run("network: one address of a name", func(t *testing.T) {
		t.Parallel()
		address, open := closedPort(t)
		_, port, _ := net.SplitHostPort(address)
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"many.example.": {a: []string{"127.0.0.1", "127.0.0.2"}}})
		resolver := &Resolver{Servers: []string{server.address}}
		each := failureOf(t, Network{Targets: []Target{{Address: "many.example.:" + port, EachAddress: true}}, Resolver: resolver})
		one := failureOf(t, Network{Targets: []Target{{Address: "many.example.:" + port}}, Resolver: resolver})
		assert.False(t, over(t, one))
		open()
		assert.True(t, over(t, one))
		assert.False(t, over(t, each))
	})
	t.Run("service: one endpoint", func(t *testing.T) {
		t.Parallel()
		one, _ := closedPort(t)
		two, open := closedPort(t)
		err := failureOf(t, service(one, two))
		assert.False(t, over(t, err))
		open()
		assert.True(t, over(t, err))
	})
	t.Run("no packet cures a refusal", func(t *testing.T) {
		t.Parallel()
		var connections atomic.Int32
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections.Add(1)
			}
		}
		server.Config.ErrorLog = nil
		server.StartTLS()
		t.Cleanup(server.Close)
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "node1", errors.New("no role"))
		lost := servingPath(t, ethernet, 1000, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		for says, check := range map[string]Check{
			"TLS":               Network{Targets: []Target{{URL: server.URL}}},
			"authorization":     API{Get: func(context.Context) (Report, error) { return Report{}, forbidden }},
			"no ready endpoint": service(),
			"a large query":     dnsService(lost),
		} {
			err := failureOf(t, check)
			require.ErrorContains(t, err, says)
			before := connections.Load()
			assert.False(t, over(t, err), says)
			assert.Equal(t, before, connections.Load(), says)
		}
	})
}

// service returns the check of a service with these endpoints.
func service(addresses ...string) Service {
	var texts []string
	for i, address := range addresses {
		texts = append(texts, fmt.Sprintf("%s/node%d", address, i))
	}
	return Service{Namespace: "kube-system", Service: "kube-dns", Domain: "cluster.local", MaxDials: 8,
		List: func(context.Context) ([]EndpointSlice, error) { return ParseEndpoints(texts) }}
}

func dnsService(address string) Service {
	s := service()
	s.List = func(context.Context) ([]EndpointSlice, error) {
		return ParseEndpoints([]string{address + "/node9/" + dnsPort})
	}
	return s
}
