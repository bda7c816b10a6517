package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The initial timeout passes while an attempt is under way: it is reported at once, and the rounds go on.
func TestFaultTimeoutInFlight(t *testing.T) {
	t.Parallel()
	name := "faults-timeout"
	s := begin(t, "initial timeout passes while a check is in flight", "reported at once (log, metric, Event); verified when the check passes")
	made := s.create(gated(name))
	// The first read of the node and the first attempt of the check fail at once. The second attempt hangs.
	gate := NewGate()
	s.proxy.On(Read(name), FirstElse(2, Status(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd", 0), gate.Hold))
	port := freePort(s)
	// Here the time limit of an attempt must not be longer than the initial timeout.
	p := s.agent(name).with("INITIAL_TIMEOUT=10s", "CHECK_TIMEOUT=10s", "ENABLE_METRICS=true", "METRICS_PORT="+port).start()
	s.await("the second attempt", gate.Arrived)
	p.awaitMessage(harness.MsgTimedOut)
	attempts := 0
	for _, line := range p.log() {
		if line.Check == "api" {
			attempts++
		}
		if line.Msg == harness.MsgTimedOut {
			break
		}
	}
	s.Equal(1, attempts, "the second attempt is still under way")
	s.InDelta(1, s.ask(port, name, "node_check_timed_out"), 0)
	s.repaired(p, made, gate.Open)
	s.Until(func() (bool, error) {
		events, err := s.Cluster.Events(s.Ctx, name, "NodeVerificationTimedOut")
		return len(events) == 1, err
	}, "no Event")
}

// HTTPS_PROXY leads nowhere: the way to the API server is the pod's own. The address is none of
// this machine's loopback, for which no program would ask a proxy.
func TestFaultProxyVariables(t *testing.T) {
	t.Parallel()
	name := "faults-proxy"
	s := begin(t, "HTTPS_PROXY set to a dead address", "not used for the API; verified")
	made := s.create(gated(name))
	s.False(strings.HasPrefix(s.config.Host, "https://127."))
	const dead = "http://127.0.0.1:1"
	began := time.Now()
	p := s.agentAt(name, s.config.Host, s.config.CAData, s.boundToken(name)).with("HTTPS_PROXY="+dead, "https_proxy="+dead, "HTTP_PROXY="+dead, "ALL_PROXY="+dead).start()
	p.awaitMessage(harness.MsgVerified)
	s.row.Recovered(time.Since(began))
	s.row.Keeps(s.verified(name), harness.Foreign(made))
	p.stop()
}

// The node's clock is an hour off what the API server says: the Node seems to be of the future, or
// older than it is. A taint that is there comes off either way, at once.
func TestFaultClockOff(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("faults-clock-%d", int(off.Minutes())+60)
			s := begin(t, "clock off by "+off.String()+" (by the Node's age)", "verified at once")
			made := s.create(gated(name))
			s.proxy.On(Read(name), func(w http.ResponseWriter, r *http.Request, forward func() (Answer, error)) {
				answer, err := forward()
				var node map[string]any
				if err == nil {
					err = json.Unmarshal(answer.Body, &node)
				}
				if metadata, ok := node["metadata"].(map[string]any); ok && err == nil {
					metadata["creationTimestamp"] = time.Now().Add(-off).UTC().Format(time.RFC3339)
					answer.Body, err = json.Marshal(node)
				}
				Pass(w, r, func() (Answer, error) { return answer, err })
			})
			began := time.Now()
			s.once(s.agent(name).start(), made, began)
		})
	}
}

// Many scrapes leave the process as it was: its goroutines, descriptors and memory. (The bench does the same with many rechecks.)
func TestFaultGrowth(t *testing.T) {
	t.Parallel()
	scrapes := harness.Pick(1000, 10_000)
	s := begin(t, fmt.Sprintf("%d scrapes of one process", scrapes), "no growth of goroutines, descriptors or memory")
	measure := func(name string, scrapes int) usage {
		made := s.create(gated(name))
		port := freePort(s)
		p := s.agent(name).with("INITIAL_TIMEOUT=1h", "ENABLE_METRICS=true", "METRICS_PORT="+port).start()
		p.awaitMessage(harness.MsgVerified)
		for range scrapes {
			s.ask(port, name, "node_check_status")
		}
		http.DefaultClient.CloseIdleConnections()
		s.row.Keeps(s.verified(name), harness.Foreign(made))
		u := s.usage(p)
		s.T.Logf("%s: %d scrapes: %+v", name, scrapes, u)
		return u
	}
	few, many := measure("faults-few", 20), measure("faults-many", scrapes)
	s.row.Round()
	// What ends only now is no growth: that would be one for each scrape.
	s.Less(many.descriptors, few.descriptors+scrapes/20, "descriptors")
	s.Less(many.goroutines, few.goroutines+scrapes/20, "goroutines")
	// The heap of a Go process grows to its first collections; 8 MiB is less than 1 KiB a scrape.
	s.Less(many.memory, few.memory+8<<10, "memory (KiB)")
}

// usage is what a process holds.
type usage struct{ descriptors, goroutines, memory int }

// usage reads /proc, and ends the process: a Go program prints its goroutines when it gets SIGQUIT.
func (s *suite) usage(p *process) (u usage) {
	s.T.Helper()
	proc := fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)
	// The server ends connections that its clients have closed, and the client those to the API in its own time.
	last := -1
	s.Until(func() (bool, error) {
		entries, err := os.ReadDir(proc + "/fd")
		settled := len(entries) == last
		last = len(entries)
		return settled, err
	})
	u.descriptors = last
	status, err := os.ReadFile(proc + "/status")
	s.NoError(err)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS:") {
			_, err := fmt.Sscanf(line, "VmRSS: %d kB", &u.memory)
			s.NoError(err)
		}
	}
	s.NoError(p.cmd.Process.Signal(syscall.SIGQUIT))
	s.await("the end", p.done)
	for line := range strings.Lines(p.output()) {
		if strings.HasPrefix(line, "goroutine ") {
			u.goroutines++
		}
	}
	s.Positive(u.goroutines)
	return u
}

func freePort(s *suite) string {
	s.T.Helper()
	port, err := harness.FreePort(s.Ctx)
	s.NoError(err)
	return port
}

// ask reads a series of an agent's metrics.
func (s *suite) ask(port, node, series string) float64 {
	s.T.Helper()
	request, err := http.NewRequestWithContext(s.Ctx, http.MethodGet, "http://127.0.0.1:"+port+"/metrics", nil)
	s.NoError(err)
	response, err := http.DefaultClient.Do(request)
	s.NoError(err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	s.NoError(err)
	value, err := harness.FindMetric(string(text), node, series)
	s.NoError(err)
	return value
}
