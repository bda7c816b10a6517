package faults

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// process is one run of the agent's binary.
type process struct {
	s    *suite
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex
	lines []harness.LogLine
	raw   strings.Builder // for a person, after a failure
}

// patient is the setting of an agent whose requests a test holds, or counts: it does not send one again because the machine is busy.
const patient = "CHECK_TIMEOUT=60s"

// hasty is that of one whose failure the test waits for, however often it has failed for another reason.
const hasty = "CHECK_TIMEOUT=1500ms"

// agent is how the binary is started for one node, again and again where need be.
type agent struct {
	s       *suite
	node    string
	env     map[string]string
	barrier *os.File // it starts when this ends, nil for at once
}

// agent prepares the agent of a node, behind the proxy of s.
func (s *suite) agent(node string) *agent {
	s.T.Helper()
	return s.agentAt(node, s.proxy.URL, s.proxy.CA, s.boundToken(node))
}

// agentAt prepares the agent of a node, for which the kubernetes service is at server.
func (s *suite) agentAt(node, server string, ca []byte, token string) *agent {
	s.T.Helper()
	u, err := url.Parse(server)
	s.NoError(err)
	return &agent{s: s, node: node, env: map[string]string{"NODE_NAME": node, "KUBECONFIG": s.access(server, ca, token), "ENABLE_METRICS": "false",
		"KUBERNETES_SERVICE_HOST": u.Hostname(), "KUBERNETES_SERVICE_PORT": u.Port(),
		"DNS_TEST_DOMAINS": s.dns.address, "DNS_SERVICE": "", "PATH": os.Getenv("PATH")}}
}

// with adds to the environment, as NAME=value.
func (a *agent) with(settings ...string) *agent {
	a.env = maps.Clone(a.env)
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		a.env[name] = value
	}
	return a
}

// start starts the binary. It is killed at the end of the test at the latest.
func (a *agent) start() *process {
	s := a.s
	s.T.Helper()
	p := &process{s: s, done: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(s.Cluster.Root, "bin", "kube-node-ready"))
	if a.barrier != nil {
		p.cmd = exec.Command("/bin/sh", "-c", `read -r _; exec "$0"`, p.cmd.Path)
		p.cmd.Stdin = a.barrier
	}
	for _, name := range slices.Sorted(maps.Keys(a.env)) {
		p.cmd.Env = append(p.cmd.Env, name+"="+a.env[name])
	}
	stderr, err := p.cmd.StderrPipe()
	s.NoError(err)
	s.NoError(p.cmd.Start())
	go p.read(stderr)
	s.T.Cleanup(func() {
		p.kill()
		if s.T.Failed() {
			s.T.Logf("the agent of %s said:\n%s", a.node, p.output())
		}
	})
	return p
}

func (p *process) read(stderr io.Reader) {
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var line harness.LogLine
		_ = json.Unmarshal(lines.Bytes(), &line) // what is no JSON is in raw
		p.mu.Lock()
		p.lines = append(p.lines, line)
		p.raw.WriteString(lines.Text() + "\n")
		p.mu.Unlock()
	}
	_ = p.cmd.Wait()
	close(p.done)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.raw.String()
}

func (p *process) log() []harness.LogLine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines)
}

// awaitLine waits for a line of the log.
func (p *process) awaitLine(what string, wanted func(harness.LogLine) bool) harness.LogLine {
	p.s.T.Helper()
	line, err := harness.AwaitLine(p.s.Ctx, func() ([]harness.LogLine, error) { return p.log(), nil }, wanted)
	p.s.NoError(err, "no line with %s in the log:\n%s", what, p.output())
	return line
}

// awaitMessage waits for a line with a message.
func (p *process) awaitMessage(message string) {
	p.s.T.Helper()
	p.awaitLine(message, harness.Says(message))
}

// kill is kill -9, and waits for the end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop is what kubelet does when the pod is deleted. The process must end by itself.
func (p *process) stop() {
	p.s.T.Helper()
	p.s.NoError(p.cmd.Process.Signal(syscall.SIGTERM))
	p.s.await("the end on SIGTERM", p.done)
	p.s.Zero(p.cmd.ProcessState.ExitCode(), p.output())
}
