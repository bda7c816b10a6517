// Command print prints the one table of all tests that appended rows to a file, and exits 1 where
// something was lost, a test failed or there is no row at all.
package main

import (
	"fmt"
	"os"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func main() { os.Exit(run(os.Args)) }

func run(args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: print FILE")
		return 2
	}
	rows, err := harness.ReadTable(args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	harness.PrintTable(os.Stdout, rows)
	lost, failed := 0, 0
	for _, row := range rows {
		lost += len(row.Lost)
		if row.Failed {
			failed++
		}
	}
	fmt.Printf("%d faults, %d failed, %d lost\n", len(rows), failed, lost)
	if failed > 0 || lost > 0 || len(rows) == 0 {
		return 1
	}
	return 0
}
