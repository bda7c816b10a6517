package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	recheckRounds = 8
	// shortInterval is the RECHECK_INTERVAL of the agent that is measured. Each of its rounds stands for longInterval: in it the
	// agent gets the probes and scrapes of a minute.
	shortInterval = 10 * time.Second
	longInterval  = time.Minute
	probes        = 6 // a round: the chart's readiness probe has a period of 10s
	scrapeEvery   = 3 // probes: a scrape every 30s
)

// recheck measures an agent that rechecks its node, beside 5,000 nodes, and then the API server while the requests of this agent
// come from 5,000.
func (b *bench) recheck(ctx context.Context) (err error) {
	values := []string{noAgents, "config.recheckInterval=" + longInterval.String(), "config.connectivityMatrix=true"}
	end, err := b.startPod(ctx, values...)
	if err != nil {
		return err
	}
	defer func() {
		end()
		err = errors.Join(err, b.Undeploy(context.WithoutCancel(ctx), values...))
	}()
	start, err := b.stopControllers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, start()) }()
	template, err := b.agentTemplate(ctx)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, b.removeFleet(context.WithoutCancel(ctx)), b.removePeers(context.WithoutCancel(ctx)))
	}()
	b.step("recheck: %d nodes, and as many pods and endpoints", fleetSize)
	if err := b.createFleet(ctx, template, harness.Name); err != nil {
		return err
	}
	if err := b.createPeers(ctx); err != nil {
		return err
	}
	round, _, err := b.recheckAgent(ctx, "rechecks", "recheck")
	if err != nil {
		return err
	}
	_, peers, err := b.recheckAgent(ctx, "rechecks with peers", "recheck-peers")
	if err != nil {
		return err
	}
	return b.replay(ctx, round, peers)
}

// recheckAgent measures one agent, and returns the paths of its requests in a round and of its list of other agents.
func (b *bench) recheckAgent(ctx context.Context, name, what string) (round []string, peers string, err error) {
	b.step("%s: %d rounds of an agent, %s apart", name, recheckRounds, shortInterval)
	began := time.Now()
	var used steady
	if err := inside(ctx, b, func(s steady) { used = s }, what, strconv.Itoa(recheckRounds)); err != nil {
		return nil, "", err
	}
	all, err := b.Audit(began, harness.User)
	if err != nil {
		return nil, "", err
	}
	writes := 0
	var paths, words []string // of the requests while it was measured
	for _, request := range all {
		if strings.Contains(request.RequestURI, "-peers") {
			peers = request.RequestURI
		}
		if request.Received.Before(used.Start) || request.Received.After(used.End) {
			continue
		}
		if request.Write() {
			writes++
		} else if !strings.Contains(request.RequestURI, "resourceVersion=0") {
			return nil, "", fmt.Errorf("a request that the API server's cache does not answer: %s", request)
		}
		paths, words = append(paths, request.RequestURI), append(words, request.Verb+" "+request.ObjectRef.Resource)
	}
	first := slices.Index(words, "get nodes") // each round begins with it
	if first < 0 || len(words) < 2*recheckRounds {
		return nil, "", fmt.Errorf("%d rounds have sent %q", recheckRounds, words)
	}
	next := first + 1 + slices.Index(words[first+1:], "get nodes")
	gets := len(slices.DeleteFunc(slices.Clone(words), func(word string) bool { return word != "get nodes" }))
	last := len(words) - 1
	for words[last] != "get nodes" {
		last--
	}
	b.budget(name+": peak resident memory", float64(used.Peak)/(1<<20), recheckMemoryBudget, "%.1f MiB")
	b.budget(name+" at 60s: CPU", used.CPU.Seconds()*1000/(recheckRounds*longInterval).Seconds(), recheckCPUBudget, "%.2f mCPU")
	b.figure(name+": CPU of a round, with its probes and scrapes", "%.1f ms", milliseconds(used.CPU)/recheckRounds)
	b.budget(name+": requests of a round", float64(last-first)/float64(gets-1), recheckRequestsBudget, "%.2f")
	b.figure(name+": these are", "%s", strings.Join(words[first:next], ", "))
	b.budget(name+": writes", float64(writes), 0, "%.0f")
	b.figure(name+": connections opened in a round", "%.1f", float64(used.Opened)/float64(gets))
	return paths[first:next], peers, nil
}

// steady is what an agent that rechecks its node has used.
type steady struct {
	Start, End time.Time
	CPU        time.Duration // in that time
	Opened     int           // TCP connections that the pod has opened in that time
	Peak       uint64        // of resident memory since the process began, in bytes
}

// rechecks runs in the pod. It starts the agent and measures it while it rechecks its node. An agent with a warning is an error: it
// would not be in the steady state.
func rechecks(ctx context.Context, rounds int, peers bool) error {
	var log bytes.Buffer
	pid, stop, err := startHolding(ctx, &log, "ON_TIMEOUT=condition", "RECHECK_INTERVAL="+shortInterval.String(),
		fmt.Sprintf("ENABLE_CONNECTIVITY_MATRIX=%v", peers))
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
	sleep(ctx, 2*shortInterval) // the first round comes within one interval
	cpu, opened, err := consumed(process)
	if err != nil {
		return used, err
	}
	used.Start = time.Now()
	ticker := time.NewTicker(shortInterval / probes)
	defer ticker.Stop()
	for i := range rounds * probes {
		select {
		case <-ctx.Done():
			return used, ctx.Err()
		case <-ticker.C:
		}
		if status, _, err := get("/readyz"); err != nil || status != http.StatusOK {
			return used, fmt.Errorf("readyz: status %d: %w", status, err)
		}
		if i%scrapeEvery == 0 {
			if _, _, err := get("/metrics"); err != nil {
				return used, err
			}
		}
	}
	used.End = time.Now()
	cpuNow, openedNow, err := consumed(process)
	if err != nil {
		return used, err
	}
	used.CPU, used.Opened = cpuNow-cpu, openedNow-opened
	used.Peak, err = peak(pid)
	return used, err
}

// consumed is the CPU time of a process, and the number of TCP connections that have been opened in its network namespace.
func consumed(process procfs.Proc) (cpu time.Duration, opened int, err error) {
	stat, err := process.Stat()
	if err != nil {
		return 0, 0, err
	}
	snmp, err := process.Snmp()
	if err != nil {
		return 0, 0, err
	}
	if snmp.ActiveOpens != nil {
		opened = int(*snmp.ActiveOpens)
	}
	return time.Duration(stat.CPUTime() * float64(time.Second)), opened, nil
}
