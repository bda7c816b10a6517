// Package checks proves, from inside the pod network, that a node is fit for workloads.
//
// A Check makes exactly one attempt and does nothing else: it never sleeps, logs or retries. The Runner decides the order, the
// timeout of an attempt and the backoff between attempts, and reports each attempt. Within an attempt, hedge repeats a query or
// a connection that gets no answer. Between attempts, an outage looks for a sign that the next attempt would pass, and then ends
// the pause (outage.go, sign.go).
package checks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The names of the checks, in the order in which they run.
const (
	DNSName     = "dns"
	APIName     = "api"
	NetworkName = "network"
	ServiceName = "service"
	NodeName    = "node"  // only with REQUIRE, after the others
	PeersName   = "peers" // only with ENABLE_CONNECTIVITY_MATRIX, after the release
)

// Names lists the four checks of a verification in their order.
func Names() []string { return []string{DNSName, APIName, NetworkName, ServiceName} }

// Check is one question about this node.
type Check interface {
	Name() string // one of Names(), NodeName or PeersName
	// Try makes one attempt, within the deadline of ctx. The error names the layer, and is a *Failure if there is a remedy.
	Try(ctx context.Context) (Report, error)
}

// Report is what an attempt found besides its verdict.
type Report struct {
	Detail   string   // what the attempt proved: one line for the reader of a dry run
	Skipped  string   // the reason why the attempt probed nothing: a skipped check has passed
	Warnings []string // what did not work although the check passed
	// IsUnknown means that the attempt could not look: it proves nothing, either way.
	IsUnknown bool
	Took      time.Duration // if set, of an earlier request whose answer the attempt used: replaces the attempt's own
}

// Failure is an error and what is known about it. Where a field is empty, the cause may know more.
type Failure struct {
	Cause  error
	Remedy string // what to try first
	text   string // what Error returns, if not the text of the cause
	sign   sign   // that the next attempt would pass; a check without signs, as of a missing permission, only waits
}

func (f *Failure) Error() string {
	if f.text != "" {
		return f.text
	}
	return f.Cause.Error()
}

func (f *Failure) Unwrap() error { return f.Cause }

// Remedy returns what to try first about err, or "" if nothing is known.
func Remedy(err error) string {
	for f, found := errors.AsType[*Failure](err); found; f, found = errors.AsType[*Failure](f.Cause) {
		if f.Remedy != "" {
			return f.Remedy
		}
	}
	return ""
}

func fail(remedy, format string, args ...any) error {
	return &Failure{Cause: fmt.Errorf(format, args...), Remedy: remedy}
}

// Skip is a check that probes nothing, for a reason.
func Skip(name, reason string) Check { return skipped{name, reason} }

type skipped struct{ name, reason string }

func (s skipped) Name() string                        { return s.name }
func (s skipped) Try(context.Context) (Report, error) { return Report{Skipped: s.reason}, nil }

// isTimeout reports whether no answer came in time.
func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout() || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, syscall.ETIMEDOUT) // in an error that hides its Timeout method
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// short reduces a network error to the words to search for: the text around it names the addresses. nil stays nil.
func short(err error) error {
	if isTimeout(err) {
		return &Failure{Cause: err, text: "timeout"}
	}
	for _, known := range []struct {
		text string
		err  error
	}{
		{"connection refused", syscall.ECONNREFUSED},
		{"connection reset", syscall.ECONNRESET},
		{"connection closed", io.EOF}, {"connection closed", io.ErrUnexpectedEOF}, {"connection closed", syscall.EPIPE},
		{"no route to host", syscall.EHOSTUNREACH},
		{"network is unreachable", syscall.ENETUNREACH},
		{"no source address on this node", syscall.EADDRNOTAVAIL},
		{"address family is disabled on this node", syscall.EAFNOSUPPORT},
	} {
		if errors.Is(err, known.err) {
			return &Failure{Cause: err, text: known.text}
		}
	}
	return err
}

// outcome is what one of a check's probes found.
type outcome struct {
	detail   string
	warnings []string
	err      error
}

// WarnPrefix is what a name or a target begins with whose failure is only a warning.
const WarnPrefix = "warn+"

// orWarning makes a warning of a failure, if the name or target only warns.
func (o outcome) orWarning(onlyWarns bool) outcome {
	if o.err != nil && onlyWarns {
		return outcome{warnings: append(o.warnings, o.err.Error())}
	}
	return o
}

// inParallel probes all items at the same time and returns the outcomes in the order of the items.
func inParallel[Item, Outcome any](items []Item, probe func(Item) Outcome) []Outcome {
	outcomes := make([]Outcome, len(items))
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
	return Report{Detail: strings.Join(details, ", "), Warnings: warnings}, join(errs, "; ")
}

// join makes one error of several: their texts are on one line of the log, and a remedy is there once. Its sign is that each of
// them has its sign. Without errors it returns nil.
func join(errs []error, separator string) error {
	if len(errs) == 0 {
		return nil
	}
	var texts, remedies []string
	for _, err := range errs {
		texts = append(texts, err.Error())
		if remedy := Remedy(err); remedy != "" && !slices.Contains(remedies, remedy) {
			remedies = append(remedies, remedy)
		}
	}
	return &Failure{Cause: errors.Join(errs...), Remedy: strings.Join(remedies, "; "),
		text: strings.Join(texts, separator), sign: signOfAll(signsOf(errs))}
}
