package agent

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
	"github.com/imunhatep/kube-node-ready/metrics"
)

// connected are rechecks with connections: the api check and the service check are real. A test makes the rounds, and no time passes
// between them.
type connected struct {
	*rechecks
	log     *output
	outcome error // of the network check
}

func startConnected(t *testing.T, api *fakeAPI) *connected {
	cfg, e := inClusterSettings(t, api, "--check-timeout=1m")
	cfg.Once, cfg.RecheckInterval = false, time.Minute
	c := &connected{log: newOutput()}
	a := New(cfg, e, metrics.New("node1", checks.Names(), "dev", ""), newLog(cfg, c.log), "dev")
	list := a.Checks
	a.Checks = func(api checks.API, o checklist.Options) []checks.Check {
		all := list(api, o)[1:] // api, network, service
		all[1] = fakeCheck{checks.NetworkName, func(context.Context) (checks.Report, error) { return checks.Report{}, c.outcome }}
		return all
	}
	setReleased(api.node)
	require.True(t, a.newVerification().readFirst(t.Context()))
	c.rechecks = a.newRechecks(alreadyVerified)
	return c
}

// round makes one round for each outcome of the network check, and writes what it has found.
func (c *connected) round(t *testing.T, outcomes ...error) {
	for _, c.outcome = range outcomes {
		c.makeRound(t.Context())
		if step, at := c.state.Next(time.Now()); step == recheck.Write && !at.After(time.Now()) {
			c.write(t.Context())
		}
	}
}

// A round is a read of the node and a list of the DNS pods, both from the API server's cache. The requests of all rounds use one
// connection: no TLS handshake with each node and round.
func TestRecheckKeepsItsConnection(t *testing.T) {
	t.Parallel()
	api := newFakeAPI(t)
	api.slices = []discoveryv1.EndpointSlice{dnsSlice(listen(t))}
	connection, changes := "", 0
	api.intercept(func(request string, _ int, _ http.ResponseWriter, r *http.Request) bool {
		if request == getCached && r.RemoteAddr != connection {
			connection = r.RemoteAddr
			changes++
		}
		return false
	})
	c := startConnected(t, api)
	c.round(t, nil, nil, nil)
	before := len(api.seen())
	c.round(t, nil, nil, nil, nil)
	assert.Equal(t, 1, changes)
	assert.Equal(t, []string{getCached, getSlices, getCached, getSlices, getCached, getSlices, getCached, getSlices}, api.seen()[before:])
	c.round(t, errBroken, nil)
	assert.Equal(t, 2, changes, "after a failure it makes a new connection")
}
