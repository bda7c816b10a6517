package faults

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// stage is a point in the agent's life: a request that is held there, or what reach sets up before the agent is started. reach
// returns a function that waits until the agent is there, kills it, and takes away what held it.
type stage struct {
	name    string
	request func(node string) Match
	refused int  // as many of these requests are refused before one is held
	answer  bool // it is the answer that is held
	applied bool // the node is verified by then
	reach   func(s *suite, a *agent) (andKill func(p *process))
}

func stages() []stage {
	always := func(match Match) func(string) Match { return func(string) Match { return match } }
	return []stage{
		{name: "before the first check", request: Read},
		{name: "inside dns", reach: func(s *suite, _ *agent) func(*process) {
			asked := s.dns.pause()
			return func(p *process) {
				s.await("a question", asked)
				p.kill()
				s.dns.resume()
			}
		}},
		// The first read of the node fails, so that the check has to read it itself.
		{name: "inside api", request: Read, refused: 1},
		{name: "inside network", reach: func(s *suite, a *agent) func(*process) {
			target := newFullBacklog(s.T)
			a.env["NETWORK_TARGETS"] = target.address
			return func(p *process) {
				s.Until(func() (bool, error) {
					table, err := os.ReadFile("/proc/net/tcp")
					return target.isDialed(string(table)), err
				})
				p.kill()
				target.accept(s.Ctx)
			}
		}},
		{name: "inside service", request: always(Slices)},
		{name: "between read and patch", request: Patch},
		{name: "after the patch, before its answer", request: Patch, answer: true, applied: true},
		{name: "before the Event", request: always(Event), applied: true},
		{name: "while holding", applied: true, reach: func(s *suite, _ *agent) func(*process) {
			return func(p *process) {
				p.awaitMessage(harness.MsgVerified)
				s.Until(func() (bool, error) { return len(s.proxy.Asked(Event)) > 0, nil })
				p.kill()
			}
		}},
	}
}

// hold lets the proxy hold a request of the stage. What it returns waits for that, and kills the agent: what is held is then
// not forwarded.
func (s *suite) hold(stage stage, a *agent) func(*process) {
	gate := NewGate()
	fault := Fault(gate.Hold)
	if stage.answer {
		fault = After(fault)
	}
	notNow := Status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "not now", 0)
	off := s.proxy.On(stage.request(a.node), FirstElse(stage.refused, notNow, fault))
	return func(p *process) {
		s.await("a request to hold", gate.Arrived)
		p.kill()
		s.await("the end of the request", gate.Gone)
		off()
	}
}

func TestFaultKilled(t *testing.T) {
	rounds := harness.Pick(1, 20)
	for i, stage := range stages() {
		t.Run(stage.name, func(t *testing.T) {
			t.Parallel()
			outcome := "untouched; started again it is verified, once"
			if stage.applied {
				outcome = "verified; started again it is left as it is"
			}
			row := harness.BeginRow(t, "killed "+stage.name, outcome)
			for round := range rounds {
				start(t, row).killed(stage, fmt.Sprintf("faults-kill-%d-%d", i, round))
			}
		})
	}
}

func (s *suite) killed(stage stage, name string) {
	made := s.create(gated(name))
	a := s.agent(name).with(s.dnsService(), patient)
	var kill func(*process)
	if stage.request != nil {
		kill = s.hold(stage, a)
	} else {
		kill = stage.reach(s, a)
	}
	kill(a.start())
	now := s.Node(name)
	if stage.applied {
		s.True(fullyVerified(now), "not verified, or in part: %v %v", now.ObjectMeta, now.Spec)
	} else {
		s.True(untouched(now, made), "not as it was: %v %v", now.ObjectMeta, now.Spec)
	}
	stamp := now.Annotations[harness.Annotation]

	message := harness.MsgVerified
	if stage.applied {
		message = harness.MsgAlreadyVerified
	}
	began := time.Now()
	again := a.start()
	again.awaitMessage(message)
	s.row.Recovered(time.Since(began))
	again.stop()
	now = s.verified(name)
	s.True(fullyVerified(now))
	s.row.Keeps(now, harness.Foreign(made))
	s.Equal(1, s.proxy.Applied(name), "verified exactly once")
	if stage.applied {
		s.Equal(stamp, now.Annotations[harness.Annotation], "verified a second time")
	}
}

// dnsService makes a DNS service with an endpoint that the agent reaches, and returns the setting for it.
func (s *suite) dnsService() string {
	s.T.Helper()
	api, err := url.Parse(s.config.Host)
	s.NoError(err)
	// The API takes no loopback address for an endpoint: this machine's address on the way to the API server is one.
	route, err := new(net.Dialer).DialContext(s.Ctx, "tcp", api.Host)
	s.NoError(err)
	host, _, err := net.SplitHostPort(route.LocalAddr().String())
	s.NoError(err)
	s.NoError(route.Close())
	// The kernel accepts for it.
	listener, err := new(net.ListenConfig).Listen(s.Ctx, "tcp", net.JoinHostPort(host, "0"))
	s.NoError(err)
	s.T.Cleanup(func() { _ = listener.Close() })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	s.NoError(err)
	name := "faults-" + port
	s.Apply(fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, namespace: %[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{port: %[3]s, name: serve, protocol: TCP}]
endpoints: [{addresses: [%[4]q], conditions: {ready: true}}]
`, name, serviceNamespace, port, host))
	return "DNS_SERVICE=" + serviceNamespace + "/" + name
}
