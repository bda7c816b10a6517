package faults

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// stage is a point in the agent's life. reach sets it up before the agent is started, and returns
// a function that waits until the agent is there, kills it, and takes away what held it.
type stage struct {
	name    string
	reach   func(s *suite, a *agent) (andKill func(p *process))
	applied bool // the node is verified by then
}

func stages() []stage {
	return []stage{
		{name: "before the first check", reach: func(s *suite, a *agent) func(*process) {
			return s.hold(Read(a.node), 0, false)
		}},
		{name: "inside dns", reach: func(s *suite, _ *agent) func(*process) {
			asked := s.dns.fallSilent()
			return func(p *process) {
				s.await("a question", asked)
				p.kill()
				s.dns.speak()
			}
		}},
		{name: "inside api", reach: func(s *suite, a *agent) func(*process) {
			// The first look at the node fails, so that the check has to read it itself.
			return s.hold(Read(a.node), 1, false)
		}},
		{name: "inside network", reach: func(s *suite, a *agent) func(*process) {
			target := newFull(s.T)
			a.env["NETWORK_TARGETS"] = target.address
			return func(p *process) {
				s.Until(func() (bool, error) {
					table, err := os.ReadFile("/proc/net/tcp")
					return target.knocked(string(table)), err
				})
				p.kill()
				target.open(s.Ctx)
			}
		}},
		{name: "inside service", reach: func(s *suite, _ *agent) func(*process) {
			return s.hold(Slices, 0, false)
		}},
		{name: "between read and patch", reach: func(s *suite, a *agent) func(*process) {
			return s.hold(Patch(a.node), 0, false)
		}},
		{name: "after the patch, before its answer", applied: true, reach: func(s *suite, a *agent) func(*process) {
			return s.hold(Patch(a.node), 0, true)
		}},
		{name: "before the Event", applied: true, reach: func(s *suite, _ *agent) func(*process) {
			return s.hold(Event, 0, false)
		}},
		{name: "while holding", applied: true, reach: func(s *suite, _ *agent) func(*process) {
			return func(p *process) {
				p.awaitMessage(harness.MsgVerified)
				s.Until(func() (bool, error) { return len(s.proxy.Asked(Event)) > 0, nil })
				p.kill()
			}
		}},
	}
}

// hold lets the proxy refuse the first requests of a kind, and hold the next one, or its answer.
// What it returns waits until one is held, and kills the agent: what is held is then not forwarded.
func (s *suite) hold(match Match, refused int, answer bool) func(*process) {
	gate := NewGate()
	fault := Fault(gate.Hold)
	if answer {
		fault = After(fault)
	}
	offHold := s.proxy.On(match, fault)
	offRefusal := func() {}
	if refused > 0 {
		notNow := Status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "not now", 0)
		offRefusal = s.proxy.On(match, FirstElse(refused, notNow, fault))
	}
	return func(p *process) {
		s.await("a request to hold", gate.Arrived)
		p.kill()
		s.await("the end of the request", gate.Gone)
		offHold()
		offRefusal()
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
	a := s.agent(name).with(s.inCluster()...).with("CHECK_TIMEOUT=60s")
	reachAndKill := stage.reach(s, a)

	p := a.start()
	reachAndKill(p)
	now := s.Node(name)
	if stage.applied {
		s.True(whole(now), "not verified, or in part: %v %v", now.ObjectMeta, now.Spec)
	} else {
		s.True(untouched(now, made), "not as it was: %v %v", now.ObjectMeta, now.Spec)
	}
	stamp := now.Annotations[harness.Annotation]

	began := time.Now()
	again := a.start()
	if stage.applied {
		again.awaitMessage(harness.MsgAlreadyVerified)
	} else {
		again.awaitMessage(harness.MsgVerified)
	}
	s.row.Recovered(time.Since(began))
	again.stop()
	now = s.verified(name)
	s.True(whole(now))
	s.keeps(now, foreign(made))
	s.Equal(1, s.proxy.Applied(name), "verified exactly once")
	if stage.applied {
		s.Equal(stamp, now.Annotations[harness.Annotation], "verified a second time")
	}
}

// inCluster are the settings with which the agent runs all four checks: the proxy is the kubernetes
// service, and an endpoint that it reaches is that of the DNS service.
func (s *suite) inCluster() []string {
	s.Helper()
	api, err := url.Parse(s.config.Host)
	s.NoError(err)
	// The API takes no loopback address for an endpoint: this machine's address on the way to the API server is one.
	route, err := new(net.Dialer).DialContext(s.Ctx, "tcp", api.Host)
	s.NoError(err)
	host, _, err := net.SplitHostPort(route.LocalAddr().String())
	s.NoError(err)
	s.NoError(route.Close())
	listener, err := new(net.ListenConfig).Listen(s.Ctx, "tcp", net.JoinHostPort(host, "0"))
	s.NoError(err)
	s.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
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
	return []string{
		"KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=" + s.proxy.Port(),
		"DNS_SERVICE=" + strings.Join([]string{serviceNamespace, name}, "/"),
	}
}
