package agent

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/metrics"
)

// A simulation is an agent without a socket, under the clock of testing/synctest: its API server is called and not dialled, and its
// checks other than api answer what a test says. Minutes take no time.

// simulated runs a test in a bubble, with an API server that needs no socket.
func simulated(t *testing.T, test func(*testing.T, *fakeAPI)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newSimulatedAPI(t)) })
}

// RoundTrip answers a request without a socket. A handler that does not answer ends with the request.
func (a *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	answered := make(chan *http.Response, 1)
	go func() {
		recorder := httptest.NewRecorder()
		recorder.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
		a.ServeHTTP(recorder, r.WithContext(r.Context()))
		answered <- recorder.Result()
	}()
	select {
	case response := <-answered:
		response.Request = r
		return response, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// CloseIdleConnections does nothing: there are none. Without it client-go warns.
func (a *fakeAPI) CloseIdleConnections() {}

// fakeCheck answers what a test says.
type fakeCheck struct {
	name string
	try  func(context.Context) (checks.Report, error)
}

func (c fakeCheck) Name() string                                   { return c.name }
func (c fakeCheck) Try(ctx context.Context) (checks.Report, error) { return c.try(ctx) }

func passing(context.Context) (checks.Report, error) { return checks.Report{Detail: "a test"}, nil }

// simulatedSettings are the settings and the environment of an agent in a simulation.
func simulatedSettings(t *testing.T, api *fakeAPI, env map[string]string, args ...string) (config.Config, kube.Environment) {
	all := map[string]string{"NODE_NAME": "node1", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	maps.Copy(all, env)
	cfg, err := config.Parse(args, lookup(all), io.Discard)
	require.NoError(t, err)
	e := kube.Environment{Service: "10.96.0.1:443", REST: &rest.Config{
		Host: "http://10.96.0.1", BearerToken: "secret", UserAgent: "kube-node-ready/dev", Transport: api}}
	e.Client, e.Err = kube.NewClient(e.REST)
	require.NoError(t, e.Err)
	return cfg, e
}

// simulate starts an agent, which the test stops or waits for. network is its network check, nil: it passes.
func simulate(t *testing.T, api *fakeAPI, network func(context.Context) (checks.Report, error), env map[string]string, args ...string) *process {
	if network == nil {
		network = passing
	}
	return simulateChecks(t, api, checks.Skip(checks.DNSName, "a test"), fakeCheck{checks.NetworkName, network}, env, args...)
}

// simulateChecks starts an agent with these checks of DNS and the network.
func simulateChecks(t *testing.T, api *fakeAPI, dns, network checks.Check, env map[string]string, args ...string) *process {
	cfg, e := simulatedSettings(t, api, env, args...)
	ctx, terminate := context.WithCancel(t.Context())
	p := &process{t: t, terminate: terminate, done: make(chan struct{}), stdout: newOutput(), stderr: newOutput()}
	p.process, p.kill = context.WithCancel(context.Background())
	p.agent = New(cfg, e, metrics.New("node1", checks.Names(), "dev", ""), newLog(cfg, p.stderr), "dev")
	p.agent.Checks = func(api checks.API, _ checklist.Options) []checks.Check {
		return []checks.Check{dns, api, network, checks.Skip(checks.ServiceName, "a test")}
	}
	go func() {
		defer close(p.done)
		if verified := p.agent.Run(ctx, p.process); !verified && cfg.Once {
			p.code = exitNotVerified
		}
	}()
	return p
}

// brokenNetwork is a network check that fails until the network recovers.
type brokenNetwork struct{ recovered atomic.Bool }

const refused = "TCP 192.0.2.1:443: connection refused"

func (n *brokenNetwork) try(ctx context.Context) (checks.Report, error) {
	if n.recovered.Load() {
		return passing(ctx)
	}
	return checks.Report{}, errors.New(refused)
}

// failingUntil is a network check that fails. Its last attempt before a time goes on until then, and passes.
func failingUntil(passesAt time.Time) func(context.Context) (checks.Report, error) {
	return func(ctx context.Context) (checks.Report, error) {
		if time.Until(passesAt) > nextAttempt {
			return checks.Report{}, errors.New(refused)
		}
		time.Sleep(time.Until(passesAt))
		return passing(ctx)
	}
}

// simulateFailing starts an agent that does not pass until its network recovers.
func simulateFailing(t *testing.T, api *fakeAPI, args ...string) (*process, *brokenNetwork) {
	network := new(brokenNetwork)
	return simulate(t, api, network.try, nil, args...), network
}

const (
	// initialTimeout is the default of INITIAL_TIMEOUT.
	initialTimeout = 5 * time.Minute
	// nextAttempt is longer than any pause between two attempts or rounds, and shorter than the time between two reads of a
	// verified node.
	nextAttempt = 40 * time.Second
)

// after waits until a simulation has done all that it does within d, its end included.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestSimulation(t *testing.T) {
	simulated(t, func(t *testing.T, api *fakeAPI) {
		api.node.Status.NodeInfo.BootID = bootID()
		p := simulate(t, api, nil, nil, "--once")
		require.Equal(t, exitOK, p.wait(), p.stderr)
		require.NotContains(t, p.stderr.String(), "boot id")
		require.Equal(t, []string{getNode, patchNode, postEvent}, api.seen())
		require.Equal(t, untainted, api.taints())
	})
}
