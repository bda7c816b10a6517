package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	recheckRounds = 8
	// shortInterval is the RECHECK_INTERVAL of the agent that is measured. Each of its rounds stands for one minute: in it the agent
	// gets the probes and scrapes of a minute.
	shortInterval = 10 * time.Second
	probes        = 6 // a round: the chart's readiness probe has a period of 10s
	scrapeEvery   = 3 // probes: a scrape every 30s
)

// recheck measures an agent that rechecks its node.
func (b *bench) recheck(ctx context.Context) (err error) {
	values := []string{noAgents, "config.recheckInterval=1m"}
	end, err := b.startPod(ctx, values...)
	if err != nil {
		return err
	}
	defer func() {
		end()
		err = errors.Join(err, b.Undeploy(context.WithoutCancel(ctx), values...))
	}()
	if err := b.Gate(ctx, node); err != nil {
		return err
	}
	b.step("rechecks: %d rounds of an agent, %s apart", recheckRounds, shortInterval)
	began := time.Now()
	var used steady
	if err := inside(ctx, b, func(s steady) { used = s }, "recheck", strconv.Itoa(recheckRounds)); err != nil {
		return err
	}
	all, err := b.Audit(began, harness.User)
	if err != nil {
		return err
	}
	words, rounds, err := requestsOfRounds(all, used)
	if err != nil {
		return err
	}
	b.budget("rechecks: peak resident memory", float64(used.Peak)/(1<<20), recheckMemoryBudget, "%.1f MiB")
	b.budget("rechecks: CPU of a round, its probes and scrapes, compared with the verification",
		used.CPU.Seconds()/recheckRounds/used.Verification.Seconds(), recheckCPUBudget, "%.2f times")
	b.figure("rechecks: requests of a round: these are", "%s", strings.Join(words, ", "))
	b.budget("rechecks: requests of a round", float64(len(words)), recheckRequestsBudget, "%.2f")
	b.budget("rechecks: connections opened in a round", float64(used.Opened)/float64(rounds), recheckConnectionsBudget, "%.1f")
	return nil
}

// requestsOfRounds returns what the first round that was measured has requested, and how many rounds there were. It fails where a
// round writes, or reads what is not in the API server's cache.
func requestsOfRounds(all []harness.Request, used steady) (words []string, rounds int, err error) {
	for _, request := range all {
		if request.Received.Before(used.Start) || request.Received.After(used.End) {
			continue
		}
		if request.Write() || !strings.Contains(request.RequestURI, "resourceVersion=0") {
			return nil, 0, fmt.Errorf("a write, or a read that is not from the API server's cache: %s", request)
		}
		word := request.Verb + " " + request.ObjectRef.Resource
		if word == "get nodes" {
			rounds++
		}
		if rounds == 1 {
			words = append(words, word)
		}
	}
	if rounds < recheckRounds/2 {
		return nil, 0, fmt.Errorf("%d rounds in the audit log, fewer than %d", rounds, recheckRounds/2)
	}
	return words, rounds, nil
}

// steady is what an agent that rechecks its node has used.
type steady struct {
	Verification time.Duration // CPU until the node was released
	Start, End   time.Time
	CPU          time.Duration // in that time
	Opened       int           // TCP connections that the agent has opened in that time
	Peak         uint64        // of resident memory since the process began, in bytes
}

// rechecks runs in the pod. It starts the agent and measures it while it rechecks its node. A warning of the agent is an error:
// its state is not steady.
func rechecks(ctx context.Context, rounds int) error {
	var log bytes.Buffer
	pid, stop, err := startHolding(ctx, &log, "ON_TIMEOUT=condition", "RECHECK_INTERVAL="+shortInterval.String())
	if err != nil {
		return err
	}
	used, err := observeRechecks(ctx, pid, rounds)
	stop()
	if found := warnings(&log); err == nil && len(found) > 0 {
		err = fmt.Errorf("the agent warns: %s", strings.Join(found, "; "))
	}
	if err != nil {
		return err
	}
	return printJSON(used)
}

func observeRechecks(ctx context.Context, pid, rounds int) (used steady, err error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return used, err
	}
	if used.Verification, _, err = consumed(process); err != nil {
		return used, err
	}
	sleep(ctx, 2*shortInterval) // the first round comes within one interval
	cpu, opened, err := consumed(process)
	if err != nil {
		return used, err
	}
	used.Start = time.Now()
	ticker := time.NewTicker(shortInterval / probes)
	defer ticker.Stop()
	own := 0 // connections of this process: the agent's server keeps none
	for i := range rounds * probes {
		select {
		case <-ctx.Done():
			return used, ctx.Err()
		case <-ticker.C:
		}
		if !isOK("/readyz") {
			return used, errors.New("the agent is not ready")
		}
		own++
		if i%scrapeEvery == 0 {
			if !isOK("/metrics") {
				return used, errors.New("the agent has no metrics")
			}
			own++
		}
	}
	used.End = time.Now()
	cpuNow, openedNow, err := consumed(process)
	if err != nil {
		return used, err
	}
	used.CPU, used.Opened = cpuNow-cpu, openedNow-opened-own
	used.Peak, err = peak(pid)
	return used, err
}

// consumed is the CPU time of a process, and the number of TCP connections that have been opened in its network namespace.
func consumed(process procfs.Proc) (cpu time.Duration, opened int, err error) {
	threads, err := procfs.AllThreads(process.PID)
	if err != nil {
		return 0, 0, err
	}
	for _, thread := range threads { // Go keeps its threads; the figure of the whole process is in units of 10 ms
		stat, err := thread.Schedstat()
		if err != nil {
			return 0, 0, err
		}
		cpu += time.Duration(stat.RunningNanoseconds)
	}
	snmp, err := process.Snmp()
	if err != nil {
		return 0, 0, err
	}
	if snmp.ActiveOpens == nil {
		return 0, 0, errors.New("the kernel does not count connections")
	}
	return cpu, int(*snmp.ActiveOpens), nil
}
