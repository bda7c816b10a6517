package checks

import (
	"slices"
	"strings"
	"sync"
)

// answer is the outcome of one of the questions that a check asks at the same time.
type answer struct {
	detail   string
	warnings []string
	err      error
}

// parallel asks the question of every item at the same time and keeps the order of the items.
func parallel[T any](items []T, question func(T) answer) []answer {
	answers := make([]answer, len(items))
	var all sync.WaitGroup
	for i, item := range items {
		all.Go(func() { answers[i] = question(item) })
	}
	all.Wait()
	return answers
}

// sum makes one verdict of several answers: all of them must be good.
func sum(answers []answer) (Report, error) {
	var (
		details, warnings []string
		errs              []error
	)
	for _, a := range answers {
		warnings = append(warnings, a.warnings...)
		if a.err != nil {
			errs = append(errs, a.err)
		} else if a.detail != "" {
			details = append(details, a.detail)
		}
	}
	report := Report{Detail: strings.Join(details, ", "), Warnings: warnings}
	if len(errs) == 0 {
		return report, nil
	}
	return report, &Failure{Cause: oneLine(errs), Remedy: remedies(errs)}
}

// oneLine joins errors as errors.Join does, but on one line, as a log wants it.
func oneLine(errs []error) error { return joined(errs) }

type joined []error

func (j joined) Unwrap() []error { return j }
func (j joined) Error() string {
	texts := make([]string, len(j))
	for i, err := range j {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// remedies lists what to try about each of errs, without repetition.
func remedies(errs []error) string {
	var texts []string
	for _, err := range errs {
		if remedy := Remedy(err); remedy != "" && !slices.Contains(texts, remedy) {
			texts = append(texts, remedy)
		}
	}
	return strings.Join(texts, "; ")
}
