package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The initial timeout passes while an attempt is under way: it is told at once, and the rounds go on.
func TestFaultTimeoutInFlight(t *testing.T) {
	t.Parallel()
	s, name := start(t), "faults-timeout"
	row := Begin(t, "initial timeout passes while a check is in flight", "told at once (log, metric, Event); verified when the check passes")
	made := s.create(gated(name))
	// The look at the node and the first attempt of the check fail at once. The second attempt hangs, from about 1 s on
	// until 4 s.
	mend := s.proxy.On(Read(name), FirstElse(2, Status(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd", 0), Never))
	port := freePort(s)
	p := s.agent(name).with("INITIAL_TIMEOUT=3s", "CHECK_TIMEOUT=3s", "ENABLE_METRICS=true", "METRICS_PORT="+port).start()
	p.awaitMessage("initial timeout passed")
	attempts := 0
	for _, line := range p.log() {
		if line.Check == "api" {
			attempts++
		}
	}
	s.require.Equal(1, attempts, "the second attempt is still under way")
	s.require.InDelta(1, s.ask(port, name, "node_check_timed_out"), 0)
	s.mended(row, p, made, mend)
	events, err := s.Events(s.ctx, name, "NodeVerificationTimedOut")
	s.require.NoError(err)
	s.require.Len(events, 1)
}

// HTTPS_PROXY leads nowhere: the way to the API server is the pod's own. The address is none of
// this machine's loopback, for which no program would ask a proxy.
func TestFaultProxyVariables(t *testing.T) {
	t.Parallel()
	s, name := start(t), "faults-proxy"
	row := Begin(t, "HTTPS_PROXY set to a dead address", "not used for the API; verified")
	made := s.create(gated(name))
	s.require.False(strings.HasPrefix(s.config.Host, "https://127."))
	kubeconfig := s.access(s.config.Host, s.config.CAData, s.token(name))
	const dead = "http://127.0.0.1:1"
	began := time.Now()
	p := s.agentAt(name, kubeconfig).with("HTTPS_PROXY="+dead, "https_proxy="+dead, "HTTP_PROXY="+dead, "ALL_PROXY="+dead).start()
	p.awaitMessage("node verified")
	row.Recovered(time.Since(began))
	row.keeps(s.verified(name), foreign(made))
	p.stop()
}

// The node's clock is an hour off what the API server says: the Node seems to be of the future, or
// older than it is. A taint that is there comes off either way, at once.
func TestFaultClockOff(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			s, name := start(t), fmt.Sprintf("faults-clock-%d", int(off.Minutes())+60)
			row := Begin(t, "clock off by "+off.String()+" (by the Node's age)", "verified at once")
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
			s.once(row, s.agent(name).start(), made, began)
		})
	}
}

// Somebody sets the clock while the agent is at work: an hour ahead while a check is under way, an
// hour slow while the patch is. No time limit is passed by that, and what it says to have taken is
// what it took. The agent is built by faults/jump, which moves the clock of this process alone.
func TestFaultClockSet(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("faults/jump moves time.Now for linux/amd64 only")
	}
	s, name := start(t), "faults-clock-set"
	row := Begin(t, "clock set 1 h ahead within a check, and 2 h back within the patch", "verified; no time limit is passed, durations are true")
	made := s.create(gated(name))
	checking, patching := NewGate(), NewGate()
	s.proxy.On(Read(name), FirstElse(1, Status(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd", 0), checking.Hold))
	s.proxy.On(Patch(name), patching.Hold)
	port := freePort(s)
	a := s.agent(name).with("INITIAL_TIMEOUT=30m", "CHECK_TIMEOUT=1m", "ENABLE_METRICS=true", "METRICS_PORT="+port)
	a.program = filepath.Join(s.Root, "bin", "jump", "kube-node-ready")
	began := time.Now()
	p := a.start()
	set := func(signals ...syscall.Signal) {
		for _, which := range signals {
			before := strings.Count(p.said(), "clock set")
			s.require.NoError(p.cmd.Process.Signal(which))
			s.require.NoError(harness.Until(s.ctx, func() (bool, error) { return strings.Count(p.said(), "clock set") > before, nil }))
		}
	}
	s.await("the api check", checking.Arrived)
	set(syscall.SIGUSR1)
	checking.Open()
	s.await("the patch", patching.Arrived)
	set(syscall.SIGUSR2, syscall.SIGUSR2)
	patching.Open()

	now := s.verified(name)
	p.awaitMessage("node verified")
	took := time.Since(began)
	for what, off := range map[string]time.Duration{"node verified": -time.Hour, "check passed": time.Hour} {
		line := p.awaitLine(what, func(line harness.LogLine) bool { return strings.HasPrefix(line.Msg, what) && line.Check != "dns" })
		s.require.WithinRange(line.Time, began.Add(off).Truncate(time.Second), began.Add(off+took), "the clock was not set when it said %q", what)
	}
	for _, series := range []string{"node_check_verification_duration_seconds", "node_check_api_duration_seconds"} {
		seconds := s.ask(port, name, series)
		s.require.Positive(seconds, series)
		s.require.LessOrEqual(seconds, took.Seconds(), series)
	}
	s.require.Zero(s.ask(port, name, "node_check_timed_out"))
	var annotation struct{ Duration string }
	s.require.NoError(json.Unmarshal([]byte(now.Annotations[harness.Annotation]), &annotation))
	said, err := time.ParseDuration(annotation.Duration)
	s.require.NoError(err)
	s.require.Positive(said)
	s.require.LessOrEqual(said, took)
	s.once(row, p, made, began)
}

// Many rounds and many scrapes leave the process as it was: its goroutines, descriptors and memory.
// Rounds are one second apart; scrapes run beside them.
func TestFaultGrowth(t *testing.T) {
	t.Parallel()
	s := start(t)
	rounds, scrapes := Pick(10, 1000), Pick(1000, 10_000)
	row := Begin(t, fmt.Sprintf("%d rounds and %d scrapes of one process", rounds, scrapes), "no growth of goroutines, descriptors or memory")
	measure := func(name string, rounds, scrapes int) usage {
		made := s.create(gated(name))
		port := freePort(s)
		p := s.agent(name).with("INITIAL_TIMEOUT=1h", "ENABLE_METRICS=true", "METRICS_PORT="+port, "SUCCESS_THRESHOLD="+strconv.Itoa(rounds)).start()
		p.awaitLine("a check", func(line harness.LogLine) bool { return line.Check != "" })
		for range scrapes {
			s.ask(port, name, "node_check_status")
		}
		p.awaitMessage("node verified")
		http.DefaultClient.CloseIdleConnections()
		row.keeps(s.verified(name), foreign(made))
		u := s.usage(p)
		s.Logf("%s: %d rounds, %d scrapes: %+v", name, rounds, scrapes, u)
		return u
	}
	few, many := measure("faults-few", 1, 20), measure("faults-many", rounds, scrapes)
	row.Round()
	s.require.LessOrEqual(many.descriptors, few.descriptors, "descriptors")
	s.require.LessOrEqual(many.goroutines, few.goroutines, "goroutines")
	// The heap of a Go process grows to its first collections; 8 MiB is less than 1 KiB a scrape.
	s.require.Less(many.memory, few.memory+8<<10, "memory (KiB)")
}

// usage is what a process holds.
type usage struct{ descriptors, goroutines, memory int }

// usage reads /proc, and ends the process: a Go program prints its goroutines when it gets SIGQUIT.
func (s *suite) usage(p *process) (u usage) {
	s.Helper()
	proc := fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)
	// The server ends connections that its clients have closed, and the client those to the API in its own time.
	last := -1
	s.require.NoError(harness.Until(s.ctx, func() (bool, error) {
		entries, err := os.ReadDir(proc + "/fd")
		settled := len(entries) == last
		last = len(entries)
		return settled, err
	}))
	u.descriptors = last
	status, err := os.ReadFile(proc + "/status")
	s.require.NoError(err)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS:") {
			_, err := fmt.Sscanf(line, "VmRSS: %d kB", &u.memory)
			s.require.NoError(err)
		}
	}
	s.require.NoError(p.cmd.Process.Signal(syscall.SIGQUIT))
	s.await("the end", p.done)
	for line := range strings.Lines(p.said()) {
		if strings.HasPrefix(line, "goroutine ") {
			u.goroutines++
		}
	}
	s.require.Positive(u.goroutines)
	return u
}

func freePort(s *suite) string {
	s.Helper()
	listener, err := new(net.ListenConfig).Listen(s.ctx, "tcp", ":0")
	s.require.NoError(err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	s.require.NoError(err)
	s.require.NoError(listener.Close())
	return port
}

// ask reads a series of an agent's metrics.
func (s *suite) ask(port, node, series string) float64 {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+port+"/metrics", nil)
	s.require.NoError(err)
	response, err := http.DefaultClient.Do(request)
	s.require.NoError(err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	s.require.NoError(err)
	value, err := harness.FindMetric(string(text), node, series)
	s.require.NoError(err)
	return value
}
