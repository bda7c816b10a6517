package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
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

	peerConnections = 8 // of a round
)

// recheck measures an agent that rechecks its node, beside 5,000 nodes, and then the API server while the requests of this agent
// come from 5,000.
func (b *bench) recheck(ctx context.Context) (err error) {
	values := []string{noAgents, "config.recheckInterval=" + longInterval.String(), "config.peers=true"}
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
	alone, err := b.recheckAgent(ctx, "rechecks", "recheck", recheckConnectionsBudget)
	if err != nil {
		return err
	}
	withPeers, err := b.recheckAgent(ctx, "rechecks with peers", "recheck-peers", recheckConnectionsBudget+peerConnections)
	if err != nil {
		return err
	}
	return b.replay(ctx, alone.paths[alone.starts[0]:alone.starts[1]], withPeers.peers)
}

// recheckAgent measures one agent and records its requests.
func (b *bench) recheckAgent(ctx context.Context, name, what string, connections float64) (r recording, err error) {
	b.step("%s: %d rounds of an agent, %s apart", name, recheckRounds, shortInterval)
	began := time.Now()
	var used steady
	if err := inside(ctx, b, func(s steady) { used = s }, what, strconv.Itoa(recheckRounds)); err != nil {
		return r, err
	}
	all, err := b.Audit(began, harness.User)
	if err != nil {
		return r, err
	}
	if r, err = record(all, used); err != nil {
		return r, err
	}
	rounds := len(r.starts) - 1
	first, second, last := r.starts[0], r.starts[1], r.starts[rounds]
	b.budget(name+": peak resident memory", float64(used.Peak)/(1<<20), recheckMemoryBudget, "%.1f MiB")
	b.budget(name+" at 60s: CPU", used.CPU.Seconds()*1000/(recheckRounds*longInterval).Seconds(), recheckCPUBudget, "%.2f mCPU")
	b.figure(name+": CPU of a round, its probes and scrapes", "%.1f ms", milliseconds(used.CPU)/recheckRounds)
	b.budget(name+": requests of a round", float64(last-first)/float64(rounds), recheckRequestsBudget, "%.2f")
	b.figure(name+": these are", "%s", strings.Join(r.words[first:second], ", "))
	b.budget(name+": writes", float64(r.writes), 0, "%.0f")
	b.budget(name+": connections opened in a round", float64(used.Opened)/float64(len(r.starts)), connections, "%.1f")
	return r, nil
}

// recording is what an agent that rechecks its node has requested while it was measured.
type recording struct {
	paths, words []string // of each request; the words are its verb and resource
	starts       []int    // the index of each round's first request
	writes       int
	peers        string // the path of its list of other agents, which it requests when it starts and hourly
}

func record(all []harness.Request, used steady) (r recording, err error) {
	for _, request := range all {
		if strings.Contains(request.RequestURI, "-peers") {
			r.peers = request.RequestURI
		}
		if request.Received.Before(used.Start) || request.Received.After(used.End) {
			continue
		}
		if request.Write() {
			r.writes++
		} else if !strings.Contains(request.RequestURI, "resourceVersion=0") {
			return r, fmt.Errorf("a read that is not from the API server's cache: %s", request)
		}
		word := request.Verb + " " + request.ObjectRef.Resource
		if word == "get nodes" {
			r.starts = append(r.starts, len(r.words))
		}
		r.paths, r.words = append(r.paths, request.RequestURI), append(r.words, word)
	}
	if len(r.starts) < recheckRounds/2 {
		return r, fmt.Errorf("fewer than %d rounds in the audit log: %q", recheckRounds/2, r.words)
	}
	return r, nil
}

// steady is what an agent that rechecks its node has used.
type steady struct {
	Start, End time.Time
	CPU        time.Duration // in that time
	Opened     int           // TCP connections that the agent has opened in that time
	Peak       uint64        // of resident memory since the process began, in bytes
}

// rechecks runs in the pod. It starts the agent and measures it while it rechecks its node. A warning of the agent is an error:
// its state is not steady.
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
	own := 0 // connections of this process: the agent's server keeps none
	for i := range rounds * probes {
		select {
		case <-ctx.Done():
			return used, ctx.Err()
		case <-ticker.C:
		}
		if status, _, err := get("/readyz"); err != nil || status != http.StatusOK {
			return used, fmt.Errorf("readyz: status %d: %w", status, err)
		}
		own++
		if i%scrapeEvery == 0 {
			if _, _, err := get("/metrics"); err != nil {
				return used, err
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
