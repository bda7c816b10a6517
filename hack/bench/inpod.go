package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// inPod is the part of the benchmark that runs in the pod.
func inPod(what string, args []string) error {
	if err := os.Chdir(binaries()); err != nil { // the repository is found from here
		return err
	}
	cluster, err := harness.Open()
	if err != nil {
		return err
	}
	counts, err := numbers(strings.Join(args, ","))
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch {
	case what == "verify" && len(counts) == 1:
		return verifications(ctx, cluster, counts[0])
	case what == "hold" && len(counts) == 2:
		return holds(ctx, cluster, counts[0], counts[1])
	case what == "fleet" && len(counts) == 1:
		return fleet(ctx, cluster, counts[0])
	}
	return fmt.Errorf("in-pod %s %v: no such part", what, args)
}

// sample is one run of a program that opens the node.
type sample struct {
	Program    string
	Start, End time.Time
	CPU        time.Duration // user and system, by the kernel
	Received   int           // bytes that came into the pod meanwhile
}

// verifications runs the floor and the agent in turn, each on a node that has just been gated.
func verifications(ctx context.Context, cluster *harness.Cluster, runs int) error {
	for range runs {
		for _, program := range []string{"floor", "kube-node-ready"} {
			if err := cluster.Gate(ctx, node); err != nil {
				return err
			}
			s, err := verification(program)
			if err != nil {
				return err
			}
			if err := say(s); err != nil {
				return err
			}
		}
	}
	return nil
}

func verification(program string) (sample, error) {
	path, args := filepath.Join(binaries(), program), []string(nil)
	if program != "floor" {
		path, args = agent(), []string{"--once"}
	}
	cmd := exec.Command(path, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	before, err := received()
	if err != nil {
		return sample{}, err
	}
	s := sample{Program: program, Start: time.Now()}
	err = cmd.Run()
	s.End = time.Now()
	if err != nil {
		return s, fmt.Errorf("%s: %w: %s", program, err, output.String())
	}
	s.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	after, err := received()
	s.Received = after - before
	return s, err
}

func agent() string { return filepath.Join(binaries(), "..", "kube-node-ready") }

// received is the number of bytes that have come into the pod.
func received() (int, error) {
	text, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "eth0:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, errors.New("no eth0 in /proc/net/dev")
	}
	return strconv.Atoi(fields[0])
}

// peaks is the most memory that one process has held, in bytes.
type peaks struct{ Verified, Scraped int }

// holds starts the agent again and again, and scrapes the last of them.
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
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, agent())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	if err := harness.Until(ctx, func() (bool, error) {
		status, _, err := get(ctx, "/readyz")
		return err == nil && status == http.StatusOK, nil
	}); err != nil {
		return err
	}
	var p peaks
	var err error
	if p.Verified, err = peak(cmd.Process.Pid); err != nil {
		return err
	}
	for range scrapes {
		if status, body, err := get(ctx, "/metrics"); err != nil || status != http.StatusOK || !bytes.Contains(body, []byte("node_check_status")) {
			return fmt.Errorf("scrape: status %d: %w", status, err)
		}
	}
	if p.Scraped, err = peak(cmd.Process.Pid); err != nil {
		return err
	}
	return say(p)
}

func get(ctx context.Context, path string) (status int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8080"+path, nil)
	if err != nil {
		return 0, nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err = io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

// peak is VmHWM (proc(5)). It is not what the parent is told of a child that has ended, which
// counts in what the parent itself held when it forked.
func peak(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) < 2 || fields[1] != "kB" {
		return 0, errors.New("no VmHWM")
	}
	n, err := strconv.Atoi(fields[0])
	return n << 10, err
}

func say(line any) error { return json.NewEncoder(os.Stdout).Encode(line) }

func numbers(text string) (list []int, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%q is no list of numbers", text)
		}
		list = append(list, n)
	}
	return list, nil
}
