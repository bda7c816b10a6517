package doctor

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Report looks for all traps but those to skip, and writes what was found. It returns how many are set; those that only
// would be, with more gated nodes, do not count.
func Report(out io.Writer, c Cluster, skip []string) (set int) {
	line := func(state, name, text string) { _, _ = fmt.Fprintf(out, "%-5s %-21s %s\n", state, name, text) }
	for _, trap := range Traps(c) {
		result := trap.look(c, skip)
		list := func(state string, findings []Finding) {
			for i, finding := range findings {
				line(state, trap.Name, finding.Text)
				if i+1 == len(findings) || findings[i+1].Remedy != finding.Remedy {
					line("", "", "try: "+finding.Remedy)
				}
			}
		}
		list("TRAP", result.Findings)
		list("WARN", result.Warnings)
		if len(result.Findings) > 0 {
			set++
		}
		switch {
		case result.Unchecked != nil:
			line("SKIP", trap.Name, "not checked: "+strings.ReplaceAll(result.Unchecked.Error(), "\n", "; "))
		case len(result.Findings)+len(result.Warnings) == 0:
			line("PASS", trap.Name, result.Passed)
		}
		for _, note := range result.Notes {
			line("", "", "note: "+note)
		}
	}
	return set
}

// look looks for the trap, unless it is to be skipped or needs what is not there.
func (t Trap) look(c Cluster, skip []string) Result {
	switch {
	case slices.Contains(skip, t.Name):
		return unchecked(errors.New("--skip"))
	case c.Release.Invalid != nil && t.Name != settingsName:
		return unchecked(errors.New("the settings are unknown"))
	case errors.Join(t.Unread...) != nil:
		return unchecked(t.Unread...)
	}
	return t.Find(c)
}

// CheckNames returns an error for names that no trap has.
func CheckNames(names []string) error {
	var known []string
	for _, trap := range Traps(Cluster{}) {
		known = append(known, trap.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return errors.New("--skip " + name + ": must be one of " + strings.Join(known, ", "))
		}
	}
	return nil
}
