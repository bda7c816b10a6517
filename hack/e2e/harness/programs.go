package harness

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// Program is a program that runs beside the cluster.
type Program struct {
	*exec.Cmd
	Log  string        // the file with what it prints
	done chan struct{} // closed when it has ended
}

// StartProgram starts a program with additions to the environment. What it prints goes to the cluster's log folder. The kernel
// kills it when its parent dies.
func (c *Cluster) StartProgram(name string, env []string, command string, args ...string) (*Program, error) {
	p := &Program{Cmd: exec.Command(command, args...), Log: filepath.Join(c.Dir, "log", name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.Log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.Dir, p.Stdout, p.Stderr = c.Dir, log, log
	p.Env = append(append(os.Environ(), "KUBECONFIG="+c.Kubeconfig()), env...)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = p.Wait()
	}()
	return p, nil
}

// Stop kills the program and waits until it has ended.
func (p *Program) Stop() {
	_ = p.Process.Kill()
	<-p.done
}

// While returns a context that ends when the program does, with an error that says so.
func (p *Program) While(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.done:
			cancel(fmt.Errorf("%s has ended: %s, see %s", filepath.Base(p.Path), p.ProcessState, p.Log))
		case <-ctx.Done():
		}
	}()
	return ctx
}

// AwaitOK waits until the program answers a GET with 200.
func (p *Program) AwaitOK(ctx context.Context, url string) error {
	ctx = p.While(ctx)
	err := Until(ctx, func() (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil // not up yet
		}
		return answer.StatusCode == http.StatusOK, answer.Body.Close()
	})
	if err != nil {
		return fmt.Errorf("%s (see %s): %w", url, p.Log, cmp.Or(context.Cause(ctx), err))
	}
	return nil
}

// StartKwok lets kwok play kubelet for the nodes that have the annotation kwok.x-k8s.io/node=fake, until it is stopped: they become
// ready and send heartbeats, their pods run and end, or do what files of Stages say in place of that. With those the nodes have no
// leases: kwok v0.8.0 ignores a pod that is bound before it sees that the lease of the node is its own.
func (c *Cluster) StartKwok(ctx context.Context, podStages ...string) (*Program, error) {
	module, err := c.Module(ctx, "kwok", "sigs.k8s.io/kwok")
	if err != nil {
		return nil, err
	}
	port, err := FreePort(ctx)
	if err != nil {
		return nil, err
	}
	address := "127.0.0.1:" + port
	args := []string{"--kubeconfig=" + c.Kubeconfig(), "--server-address=" + address, "--manage-all-nodes=false",
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"}
	stages := module + "/kustomize/stage/"
	patterns := []string{stages + "node/fast/node-*.yaml"}
	if len(podStages) == 0 {
		args = append(args, "--node-lease-duration-seconds=40")
		patterns = append(patterns, stages+"node/heartbeat-with-lease/node-*.yaml", stages+"pod/fast/pod-*.yaml")
	} else {
		args = append(args, "--node-lease-duration-seconds=0")
		patterns = append(append(patterns, stages+"node/heartbeat/node-*.yaml"), podStages...)
	}
	for _, pattern := range patterns {
		stages, err := filepath.Glob(pattern)
		if err != nil || len(stages) == 0 {
			return nil, fmt.Errorf("no stages %s: %w", pattern, err)
		}
		for _, stage := range stages {
			args = append(args, "--config="+stage)
		}
	}
	kwok, err := c.StartProgram("kwok", nil, c.Tool("kwok"), args...)
	if err != nil {
		return nil, err
	}
	if err := kwok.AwaitOK(ctx, "http://"+address+"/healthz"); err != nil {
		kwok.Stop()
		return nil, err
	}
	return kwok, nil
}

// Module downloads a module that hack/tools pins for a tool, where need be, and returns its folder.
func (c *Cluster) Module(ctx context.Context, tool, module string) (string, error) {
	text, err := c.Run(ctx, "", "go", "-C", "hack/tools/"+tool, "mod", "download", "-json", module)
	if err != nil {
		return "", err
	}
	var found struct{ Dir string }
	return found.Dir, json.Unmarshal([]byte(text), &found)
}

// FreePort is a TCP port that nobody listens on, and that the kernel gives to no outgoing connection before a program has it.
func FreePort(ctx context.Context) (port string, err error) {
	for range 100 {
		port = strconv.Itoa(20000 + rand.IntN(10000)) // below the range in /proc/sys/net/ipv4/ip_local_port_range
		var listener net.Listener
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", ":"+port); err == nil {
			return port, listener.Close()
		}
	}
	return "", err
}

// CoreDNS is a Deployment in place of the platform's, to patch: tolerations may follow.
const CoreDNS = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: default}
spec:
  replicas: 0
  selector: {matchLabels: {app: e2e-coredns}}
  template:
    metadata: {labels: {app: e2e-coredns}}
    spec:
      containers: [{name: coredns, image: localhost/none}]
`
