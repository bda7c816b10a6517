package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// inPod is the part of the benchmark that runs in the pod. It prints each result as a line of JSON.
func inPod(ctx context.Context, what string, args []string) error {
	if err := os.Chdir(binaries()); err != nil { // harness.Open finds the repository from here
		return err
	}
	cluster, err := harness.Open()
	if err != nil {
		return err
	}
	counts, err := numbers(args)
	if err != nil || len(counts) != 1 {
		return fmt.Errorf("in-pod %s %v: one number: %w", what, args, err)
	}
	switch what {
	case "hold":
		return verifications(ctx, cluster, counts[0], hold)
	case "once":
		return verifications(ctx, cluster, counts[0], once)
	case "recheck":
		return rechecks(ctx, counts[0])
	case "agents":
		return fleet(ctx, cluster, counts[0], startAgent)
	case "idle":
		return fleet(ctx, cluster, counts[0], startIdle)
	}
	return fmt.Errorf("in-pod %s: unknown", what)
}

// sample is one verification.
type sample struct {
	Start, End time.Time
	Received   uint64 // bytes that the pod received in that time
	Peak       uint64 // of resident memory, in bytes
}

// verifications runs agents, each on the node that has just got its startup taint.
func verifications(ctx context.Context, cluster *harness.Cluster, runs int, verify func(context.Context) (sample, error)) error {
	for range runs {
		if err := cluster.Gate(ctx, node); err != nil {
			return err
		}
		s, err := verify(ctx)
		if err != nil {
			return err
		}
		if err := printJSON(s); err != nil {
			return err
		}
	}
	return nil
}

// hold measures the memory of an agent that stays, as in its pod.
func hold(ctx context.Context) (s sample, err error) {
	pid, stop, err := startHolding(ctx, nil)
	if err != nil {
		return s, err
	}
	defer stop()
	s.Peak, err = peak(pid)
	return s, err
}

// once measures what an agent receives that ends with its verdict.
func once(ctx context.Context) (s sample, err error) {
	before, err := received()
	if err != nil {
		return s, err
	}
	s.Start = time.Now()
	if output, err := exec.CommandContext(ctx, agentPath(), "--once").CombinedOutput(); err != nil {
		return s, fmt.Errorf("%w: %s", err, output)
	}
	s.End = time.Now()
	after, err := received()
	s.Received = after - before
	return s, err
}

// received is the number of bytes that the pod has received.
func received() (uint64, error) {
	self, err := procfs.Self()
	if err != nil {
		return 0, err
	}
	interfaces, err := self.NetDev()
	return interfaces["eth0"].RxBytes, err
}

// startHolding starts the agent with additions to the environment and waits until it is ready. It logs to log; nil: nowhere.
func startHolding(ctx context.Context, log io.Writer, env ...string) (pid int, stop func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	cmd := exec.CommandContext(ctx, agentPath())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), log
	if err := cmd.Start(); err != nil {
		cancel()
		return 0, nil, err
	}
	stop = func() {
		cancel()
		_ = cmd.Wait()
	}
	if err := harness.Until(ctx, func() (bool, error) { return isOK("/readyz"), nil }); err != nil {
		stop()
		return 0, nil, err
	}
	return cmd.Process.Pid, stop, nil
}

// isOK asks the agent's HTTP server.
func isOK(path string) bool {
	response, err := http.Get("http://127.0.0.1:8080" + path)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return err == nil && response.StatusCode == http.StatusOK
}

// peak is VmHWM (proc(5)) in bytes. The maximum that a parent gets from wait4(2) would include what the parent held at the fork.
func peak(pid int) (uint64, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := process.NewStatus()
	return status.VmHWM, err
}

func printJSON(line any) error { return json.NewEncoder(os.Stdout).Encode(line) }
