package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	holdRuns = 5
	scrapes  = 10000
	baseline = "baseline" // the program in the directory of this name
)

// startup compares the agent with the baseline that makes the same requests, from process start to the released node.
func (b *bench) startup(ctx context.Context) error {
	b.step("startup: baseline and agent in turn, %d times each", b.runs)
	end, err := b.startPod(ctx, noAgents)
	if err != nil {
		return err
	}
	defer end()
	verifications, err := b.verify(ctx, b.runs)
	if err != nil {
		return err
	}
	released, cpu := map[string][]float64{}, map[string][]float64{}
	for _, v := range verifications {
		released[v.Program] = append(released[v.Program], milliseconds(v.released.Sub(v.Start)))
		cpu[v.Program] = append(cpu[v.Program], milliseconds(v.CPU))
	}
	agentTime, baselineTime := median(released[harness.Name]), median(released[baseline])
	b.budget("process start to released node, compared with the baseline", agentTime/baselineTime, startupBudget, "%.2f times")
	b.figure("process start to released node", "%.1f ms, baseline %.1f ms", agentTime, baselineTime)
	b.figure("CPU of a verification", "%.0f ms, baseline %.0f ms", median(cpu[harness.Name]), median(cpu[baseline]))
	return nil
}

// verification is one sample with what the API server's audit log says about it.
type verification struct {
	sample
	released time.Time
	requests []harness.Request
}

// verify runs baseline and agent in turn in the pod.
func (b *bench) verify(ctx context.Context, runs int) ([]verification, error) {
	start := time.Now()
	var all []verification
	err := inside(ctx, b, func(s sample) {
		all = append(all, verification{sample: s})
		b.progress(len(all), 2*runs, "runs")
	}, "verify", strconv.Itoa(runs))
	if err != nil {
		return nil, err
	}
	requests, err := b.Audit(start, harness.User)
	if err != nil {
		return nil, err
	}
	for i := range all {
		v := &all[i]
		for _, request := range requests {
			if request.Received.Before(v.Start) || request.Received.After(v.End) {
				continue
			}
			v.requests = append(v.requests, request)
			if isRelease(request) {
				v.released = request.Answered
			}
		}
		if v.released.IsZero() {
			return nil, fmt.Errorf("%s: no patch in the audit log between %s and %s", v.Program, v.Start, v.End)
		}
	}
	return all, nil
}

func isRelease(request harness.Request) bool {
	return request.Verb == "patch" && request.Response.Code == 200
}

// memory measures the peak resident memory of the agent.
func (b *bench) memory(ctx context.Context) error {
	b.step("memory: %d verifications, then %d scrapes", holdRuns, scrapes)
	end, err := b.startPod(ctx, noAgents)
	if err != nil {
		return err
	}
	defer end()
	var all []peaks
	err = inside(ctx, b, func(p peaks) {
		all = append(all, p)
		b.progress(len(all), holdRuns, "verifications")
	}, "hold", strconv.Itoa(holdRuns), strconv.Itoa(scrapes))
	if err != nil {
		return err
	}
	highest := slices.MaxFunc(all, func(a, b peaks) int { return int(a.Verified) - int(b.Verified) })
	b.budget("peak memory of a verification", float64(highest.Verified)/(1<<20), memoryBudget, "%.1f MiB")
	scraped := all[len(all)-1].Scraped
	b.budget(fmt.Sprintf("peak memory after %d scrapes", scrapes), float64(scraped)/(1<<20), scrapedBudget, "%.1f MiB")
	return nil
}
