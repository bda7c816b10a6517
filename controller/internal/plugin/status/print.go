package status

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Print writes the summary, and a table of the rows.
func (f Fleet) Print(out io.Writer, now time.Time) error {
	if _, err := fmt.Fprintln(out, f.Summary()); err != nil || len(f.Rows) == 0 {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "NODE\tSINCE\tSTATE\tREASON\tNEXT STEP")
	for _, row := range f.Rows {
		since := "?"
		if !row.Since.IsZero() {
			since = duration.HumanDuration(now.Sub(row.Since))
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", row.Node, since, row.State, cmp.Or(row.Reason, "-"), row.Next)
	}
	return table.Flush()
}
