package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/bench/size"
	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	mb            = 1e6
	binaryBudget  = 16.8 // MB, stripped
	imageBudget   = 6.2  // MB, compressed
	startupBudget = 1.5  // times the floor
	memoryBudget  = 20   // MiB
	holdRuns      = 5
	scrapes       = 10000
)

// size weighs the agent and its image.
func (b *bench) size(context.Context) error {
	info, err := os.Stat(agent())
	if err != nil {
		return err
	}
	image, err := size.Compressed(filepath.Join(b.Dir, "images", "kube-node-ready.tar"))
	if err != nil {
		return err
	}
	floor, err := os.Stat(filepath.Join(binaries(), "floor"))
	if err != nil {
		return err
	}
	b.budget("size: binary, stripped", float64(info.Size())/mb, binaryBudget, "%.2f MB")
	b.budget("size: image, compressed", float64(image)/mb, imageBudget, "%.2f MB")
	b.figure("size: binary against a program of net/http alone", "%.2f times %.2f MB", float64(info.Size())/float64(floor.Size()), float64(floor.Size())/mb)
	return nil
}

// startup holds the agent against a floor that does the same on the network.
func (b *bench) startup(ctx context.Context) error {
	b.step("start to patched: the agent and the floor in turn, %d times each", b.runs)
	end, err := b.withPod(ctx, noAgents)
	if err != nil {
		return err
	}
	defer end()
	samples, err := b.verify(ctx, b.runs)
	if err != nil {
		return err
	}
	patched := map[string][]float64{}
	cpu := map[string][]float64{}
	for _, s := range samples {
		patched[s.Program] = append(patched[s.Program], milliseconds(s.patched.Sub(s.Start)))
		cpu[s.Program] = append(cpu[s.Program], milliseconds(s.CPU))
	}
	const self, floor = "kube-node-ready", "floor"
	b.budget("start to patched, times the floor", median(patched[self])/median(patched[floor]), startupBudget, "%.2f")
	b.figure("start to patched, median", "%.1f ms, floor %.1f ms", median(patched[self]), median(patched[floor]))
	b.figure("CPU of one verification, median", "%.0f ms, floor %.0f ms", median(cpu[self]), median(cpu[floor]))
	return nil
}

// verified is a sample with what the API server's audit log says of it.
type verified struct {
	sample
	patched  time.Time
	requests []harness.Request
}

// verify runs the floor and the agent in the pod.
func (b *bench) verify(ctx context.Context, runs int) ([]verified, error) {
	began := time.Now()
	var samples []verified
	err := inside(ctx, b, func(s sample) {
		samples = append(samples, verified{sample: s})
		b.progress(len(samples), 2*runs, "runs")
	}, "verify", strconv.Itoa(runs))
	if err != nil {
		return nil, err
	}
	requests, err := b.Audit(began, harness.User)
	if err != nil {
		return nil, err
	}
	for i := range samples {
		s := &samples[i]
		for _, request := range requests {
			if request.Received.Before(s.Start) || request.Received.After(s.End) {
				continue
			}
			s.requests = append(s.requests, request)
			if request.Verb == "patch" && request.Response.Code == 200 {
				s.patched = request.Answered
			}
		}
		if s.patched.IsZero() {
			return nil, fmt.Errorf("%s: the audit log has no patch between %s and %s", s.Program, s.Start, s.End)
		}
	}
	return samples, nil
}

// memory reads the kernel's account of the real process.
func (b *bench) memory(ctx context.Context) error {
	b.step("memory: %d verifications, then %d scrapes", holdRuns, scrapes)
	end, err := b.withPod(ctx, noAgents)
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
	highest := slices.MaxFunc(all, func(a, b peaks) int { return a.Verified - b.Verified })
	b.budget("memory: peak of a verification", float64(highest.Verified)/(1<<20), memoryBudget, "%.1f MiB")
	b.budget(fmt.Sprintf("memory: peak after %d scrapes", scrapes), float64(all[len(all)-1].Scraped)/(1<<20), memoryBudget, "%.1f MiB")
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
