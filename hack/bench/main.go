// Command bench measures what the agent costs, on the throwaway cluster, against budgets. `make
// bench` starts the cluster and runs it.
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
	"strings"
	"syscall"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const node = "node1"

// bench is one run of the benchmark.
type bench struct {
	*harness.Cluster
	*report
	runs  int // of whatever a median is taken
	sizes []int
}

type part struct {
	name string
	run  func(context.Context) error
}

// parts are in the order in which they are run.
func (b *bench) parts() []part {
	return []part{{"size", b.size}, {"startup", b.startup}, {"memory", b.memory}, {"requests", b.requests}, {"gate", b.gate}, {"scale", b.scale}}
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "in-pod" {
		if err := inPod(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx))
}

func run(ctx context.Context) int {
	only := flag.String("only", "", "the parts to run, by commas: size startup memory requests gate scale")
	runs := flag.Int("runs", 30, "runs of whatever a median is taken")
	nodes := flag.String("nodes", "10,100,1000", "how many nodes to bring up, one after the other")
	flag.Parse()
	sizes, err := numbers(*nodes)
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
			b.failed(part.name, err)
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

// machine says where and when the figures were taken.
func machine() string {
	model := "unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(text), "model name\t: "); ok {
			model, _, _ = strings.Cut(rest, "\n")
		}
	}
	return fmt.Sprintf("%s, %d processors (%s), %s, load %s", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), model, runtime.Version(), load())
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(text))[0]
}

// binaries is the directory of the benchmark's own programs; the agent lies above it.
func binaries() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return filepath.Dir(path)
}
