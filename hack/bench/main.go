// Command bench measures what the agent costs on the throwaway cluster, and compares it with budgets and with baselines.
// `make bench` starts the cluster and runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const node = "node1"

// bench is one run of the benchmark.
type bench struct {
	*harness.Cluster
	*report
	runs  int   // per median of gate
	sizes []int // numbers of nodes for scale
}

type part struct {
	name string
	run  func(context.Context) error
}

// parts returns the parts in the order in which they run.
func (b *bench) parts() []part {
	return []part{
		{"size", b.size}, {"memory", b.memory}, {"requests", b.requests}, {"gate", b.gate}, {"benefit", b.benefit},
		{"recovery", b.recovery}, {"scale", b.scale}, {"controller", b.controller}, {"recheck", b.recheck},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx))
}

func run(ctx context.Context) int {
	var err error
	switch {
	case len(os.Args) > 2 && os.Args[1] == "in-pod":
		err = inPod(ctx, os.Args[2], os.Args[3:])
	case len(os.Args) > 2 && os.Args[1] == "watch":
		err = watchNodes(ctx, os.Args[2])
	default:
		return measure(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// measure runs the parts. It returns 1 where a budget is not kept.
func measure(ctx context.Context) int {
	only := flag.String("only", "", "comma-separated parts to run: size memory requests gate benefit recovery scale controller recheck")
	runs := flag.Int("runs", 20, "runs per median of gate")
	nodes := flag.String("nodes", "10,100,1000", "comma-separated numbers of nodes for scale, one run each")
	flag.Parse()
	sizes, err := numbers(strings.Split(*nodes, ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	cluster, err := harness.Open()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	b := &bench{Cluster: cluster, report: &report{Live: harness.NewLive(os.Stdout)}, runs: *runs, sizes: sizes}
	for _, part := range b.parts() {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			b.add(row{part.name, err.Error(), "measured", "FAIL"})
		}
		if ctx.Err() != nil {
			return 1
		}
	}
	if !b.end() {
		return 1
	}
	return 0
}

// machine describes when and where the figures were measured.
func machine() string {
	model, load := "unknown processor", 0.0
	if proc, err := procfs.NewDefaultFS(); err == nil {
		if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 {
			model = cpus[0].ModelName
		}
		if average, err := proc.LoadAvg(); err == nil {
			load = average.Load1
		}
	}
	date := time.Now().UTC().Format(time.DateOnly)
	return fmt.Sprintf("%s, %d processors (%s), %s, load %.1f", date, runtime.NumCPU(), model, runtime.Version(), load)
}

// binaries is the directory of the benchmark's own programs; the agent is in its parent.
func binaries() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return filepath.Dir(path)
}

func agentPath() string { return filepath.Join(binaries(), "..", harness.Name) }

func numbers(words []string) (list []int, err error) {
	for _, word := range words {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a number of at least 1", word)
		}
		list = append(list, n)
	}
	return list, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
