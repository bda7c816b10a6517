package faults

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Many agents start in the same instant against one API server, without a proxy: what one of them
// asks is what it asks when it is alone. The API server makes some of them wait (API Priority and
// Fairness), once each: none comes back too early.
func TestFaultLoad(t *testing.T) {
	agents := harness.Pick(50, 500)
	s := begin(t, fmt.Sprintf("load: %d agents in the same second", agents), "all verified; each asks what one alone asks; no storm of 429")
	began := time.Now()
	name := s.load("faults-alone", 1)[0]
	alone := s.requests(began)[podOf(name)]
	s.NotEmpty(alone)
	t.Logf("an agent alone asks: %v", alone)

	began = time.Now()
	names := s.load("faults-load", agents)
	asked := s.requests(began)
	waits := 0
	for _, name := range names {
		own := slices.Clone(asked[podOf(name)])
		for i := len(own) - 1; i >= 0; i-- {
			if !strings.HasSuffix(own[i], fmt.Sprint(" ", http.StatusTooManyRequests)) {
				continue
			}
			waits++
			// The Node is read again before a patch is sent again, and a round that began without the first read is made again.
			again := i + 1
			if (strings.HasPrefix(own[i], "patch ") || i == 0) && again < len(own) {
				again++
			}
			own = slices.Delete(own, i, again)
		}
		if !slices.Equal(own, alone) {
			t.Errorf("%s asked %v", name, asked[podOf(name)])
		}
	}
	t.Logf("the API server made its %d agents wait %d times", agents, waits)
	s.Less(waits, 2*agents, "a storm of 429")
}

// load prepares nodes with their agents, starts all of these at once, and waits until every node
// is verified. It returns the names of the nodes.
func (s *suite) load(prefix string, n int) []string {
	s.T.Helper()
	names := make([]string, n)
	list := make([]*agent, n)
	for i := range n {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
		s.create(gated(names[i]))
		list[i] = s.agentAt(names[i], s.config.Host, s.config.CAData, s.boundToken(names[i])).with("GOMAXPROCS=1", patient)
	}
	// All wait for the same pipe to end: starting hundreds of processes one by one takes seconds.
	wait, release, err := os.Pipe()
	s.NoError(err)
	processes := make([]*process, n)
	for i, a := range list {
		a.barrier = wait
		processes[i] = a.start()
	}
	s.NoError(wait.Close())
	began := time.Now()
	s.NoError(release.Close())
	var all sync.WaitGroup
	for i, p := range processes {
		all.Go(func() {
			p.awaitMessage(harness.MsgVerified)
			s.row.Recovered(time.Since(began))
			now := s.verified(names[i])
			if !fullyVerified(now) {
				s.row.Lose("%s: a part of the verification", names[i])
			}
			s.row.Keeps(now, harness.Foreign(gated(names[i])))
		})
	}
	all.Wait()
	s.T.Logf("%d agents let go at once, all verified after %s", n, time.Since(began).Round(time.Millisecond))
	for _, p := range processes {
		p.stop()
	}
	return names
}

// requests lists what each agent has asked since, by the pod that its token is bound to, from the
// API server's audit log.
func (s *suite) requests(since time.Time) map[string][]string {
	s.T.Helper()
	all, err := s.Cluster.Audit(since.Add(-time.Second), harness.User)
	s.NoError(err)
	asked := make(map[string][]string)
	for _, request := range all {
		pod := request.Pod()
		asked[pod] = append(asked[pod], fmt.Sprintf("%s %s %d", request.Verb, request.ObjectRef.Resource, request.Response.Code))
	}
	return asked
}
