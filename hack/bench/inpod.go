package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
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
	if err != nil {
		return err
	}
	switch {
	case what == "verify" && len(counts) == 1:
		return verifications(ctx, cluster, counts[0])
	case what == "hold" && len(counts) == 2:
		return holds(ctx, cluster, counts[0], counts[1])
	case what == "recheck" && len(counts) == 1:
		return rechecks(ctx, counts[0], false)
	case what == "recheck-peers" && len(counts) == 1:
		return rechecks(ctx, counts[0], true)
	case what == "fleet" && len(counts) == 1:
		return fleet(ctx, cluster, counts[0], startAgent)
	case what == "tokens" && len(counts) == 1:
		return fleet(ctx, cluster, counts[0], startIdle)
	}
	return fmt.Errorf("in-pod %s %v: unknown", what, args)
}

// sample is one run of a program that releases the node.
type sample struct {
	Program    string
	Start, End time.Time
	CPU        time.Duration // user and system
	Received   uint64        // bytes that the pod received during the run
}

// verifications runs baseline and agent in turn, each on a node that has just got its startup taint.
func verifications(ctx context.Context, cluster *harness.Cluster, runs int) error {
	for range runs {
		baseline, agent := exec.CommandContext(ctx, baselinePath(), "checks"), exec.CommandContext(ctx, agentPath(), "--once")
		for _, cmd := range []*exec.Cmd{baseline, agent} {
			if err := cluster.Gate(ctx, node); err != nil {
				return err
			}
			s, err := runSample(cmd)
			if err != nil {
				return err
			}
			if err := printJSON(s); err != nil {
				return err
			}
		}
	}
	return nil
}

func runSample(cmd *exec.Cmd) (sample, error) {
	before, err := received()
	if err != nil {
		return sample{}, err
	}
	s := sample{Program: filepath.Base(cmd.Path), Start: time.Now()}
	output, err := cmd.CombinedOutput()
	s.End = time.Now()
	if err != nil {
		return s, fmt.Errorf("%s: %w: %s", s.Program, err, output)
	}
	s.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
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

// peaks are the peaks of one process's resident memory, in bytes.
type peaks struct{ Verified, Scraped uint64 }

// holds starts the agent runs times, and scrapes the last of these processes.
func holds(ctx context.Context, cluster *harness.Cluster, runs, scrapes int) error {
	for i := range runs {
		if err := cluster.Gate(ctx, node); err != nil {
			return err
		}
		n := 0
		if i == runs-1 {
			n = scrapes
		}
		if err := hold(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func hold(ctx context.Context, scrapes int) error {
	pid, stop, err := startHolding(ctx, nil)
	if err != nil {
		return err
	}
	defer stop()
	var p peaks
	if p.Verified, err = peak(pid); err != nil {
		return err
	}
	for range scrapes {
		status, body, err := get("/metrics")
		if err != nil || status != http.StatusOK || !bytes.Contains(body, []byte("node_check_status")) {
			return fmt.Errorf("scrape: status %d: %w", status, err)
		}
	}
	if p.Scraped, err = peak(pid); err != nil {
		return err
	}
	return printJSON(p)
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
	if err := harness.Until(ctx, func() (bool, error) {
		status, _, err := get("/readyz")
		return err == nil && status == http.StatusOK, nil
	}); err != nil {
		stop()
		return 0, nil, err
	}
	return cmd.Process.Pid, stop, nil
}

func get(path string) (status int, body []byte, err error) {
	response, err := http.Get("http://127.0.0.1:8080" + path)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
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
