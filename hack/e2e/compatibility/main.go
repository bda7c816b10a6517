// Command compatibility runs the core tests on the test cluster that is up, and prints the table of all versions of Kubernetes
// on which they ran. `make compatibility` runs it for each version.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "run":
		return runTests(ctx, args[1])
	case len(args) > 1 && args[0] == "print":
		return printTable(args[1:])
	}
	return errors.New("usage: compatibility run RESULT | print RESULT…")
}

// runTests runs each column's tests and writes the row of this version to a file. Every column runs, whatever fails.
func runTests(ctx context.Context, file string) error {
	cluster, err := harness.Open()
	if err != nil {
		return err
	}
	version, err := cluster.Kube.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	result := row{Version: version.GitVersion}
	for _, column := range columns() {
		var all outcome
		for _, tests := range column.tests {
			fmt.Printf("== Kubernetes %s: %s: %s\n", version.GitVersion, column.title, tests.pkg)
			one, err := test(ctx, cluster, tests)
			if err != nil {
				return err
			}
			all.Passed, all.Failed, all.Skipped = all.Passed+one.Passed, all.Failed+one.Failed, all.Skipped+one.Skipped
		}
		result.Outcomes = append(result.Outcomes, all)
	}
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// test runs tests of a package with gotestsum, which prints them. A failed test is an outcome and no error.
func test(ctx context.Context, cluster *harness.Cluster, tests tests) (outcome, error) {
	events, err := os.CreateTemp("", "compatibility-*.json")
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = os.Remove(events.Name()) }()
	defer func() { _ = events.Close() }()
	run := exec.CommandContext(ctx, cluster.Tool("gotestsum"), "--format", "standard-verbose", "--jsonfile", events.Name(), "--",
		"-count=1", "-timeout", "60m", "-run", "^("+tests.run+")$", tests.pkg)
	run.Dir = filepath.Join(cluster.Root, "hack", "e2e")
	run.Stdout, run.Stderr = os.Stdout, os.Stderr
	run.Cancel = func() error { return run.Process.Signal(syscall.SIGTERM) }
	failed := run.Run()
	counted, err := count(events)
	if failed != nil && counted.Failed == 0 { // no test has failed, but the package: its cleaning up, or it exited
		counted.Failed = 1
	}
	return counted, errors.Join(err, ctx.Err())
}

// printTable prints the table of the rows in files, the oldest version first.
func printTable(files []string) error {
	rows := make([]row, 0, len(files))
	for _, file := range files {
		var one row
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &one)
		}
		if err != nil {
			return err
		}
		rows = append(rows, one)
	}
	fmt.Print(table(rows))
	for _, row := range rows {
		for i, outcome := range row.Outcomes {
			if outcome.Failed > 0 || outcome.Passed == 0 {
				return fmt.Errorf("on Kubernetes %s: %s: %s", row.Version, columns()[i].title, outcome)
			}
		}
	}
	return nil
}
