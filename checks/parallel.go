package checks

import (
	"slices"
	"strings"
	"sync"
)

// outcome is what one of a check's probes found.
type outcome struct {
	detail   string
	warnings []string
	err      error
}

// inParallel probes all items at the same time and returns the outcomes in the order of the items.
func inParallel[T any](items []T, probe func(T) outcome) []outcome {
	outcomes := make([]outcome, len(items))
	var all sync.WaitGroup
	for i, item := range items {
		all.Go(func() { outcomes[i] = probe(item) })
	}
	all.Wait()
	return outcomes
}

// combine makes one verdict of several outcomes: all of them must be good.
func combine(outcomes []outcome) (Report, error) {
	var details, warnings []string
	var errs []error
	for _, o := range outcomes {
		warnings = append(warnings, o.warnings...)
		if o.err != nil {
			errs = append(errs, o.err)
		} else if o.detail != "" {
			details = append(details, o.detail)
		}
	}
	report := Report{Detail: strings.Join(details, ", "), Warnings: warnings}
	if len(errs) == 0 {
		return report, nil
	}
	return report, &Failure{Cause: oneLine(errs), Remedy: remedies(errs)}
}

// oneLine joins errors like errors.Join, but on one line of the log.
func oneLine(errs []error) error { return joined{errs, "; "} }

type joined struct {
	errs      []error
	separator string
}

func (j joined) Unwrap() []error { return j.errs }
func (j joined) Error() string {
	texts := make([]string, len(j.errs))
	for i, err := range j.errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, j.separator)
}

// remedies joins the remedies of errs, without repetition.
func remedies(errs []error) string {
	var texts []string
	for _, err := range errs {
		if remedy := Remedy(err); remedy != "" && !slices.Contains(texts, remedy) {
			texts = append(texts, remedy)
		}
	}
	return strings.Join(texts, "; ")
}
