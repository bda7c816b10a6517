// Command print prints the one table of all tests that appended rows to a file, and exits 1 where
// something was lost, a test failed or there is no row at all.
package main

import (
	"fmt"
	"os"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func main() {
	rows, err := harness.ReadTable(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if !harness.PrintTable(os.Stdout, rows) {
		os.Exit(1)
	}
}
