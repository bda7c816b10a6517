// Package checks proves, from inside the pod network, that a node is fit for workloads.
//
// A Check makes exactly one attempt and does nothing else: it never sleeps, logs or retries. The
// Runner owns the order, the time limit of an attempt, the backoff between attempts, and tells its
// Observer about each of them.
package checks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// The names of the four checks, in the order in which they are run.
const (
	DNSName     = "dns"
	APIName     = "api"
	NetworkName = "network"
	ServiceName = "service"
)

// Names lists the four checks in their order.
func Names() []string { return []string{DNSName, APIName, NetworkName, ServiceName} }

// Check is one question about this node.
type Check interface {
	// Name is one of Names().
	Name() string
	// Try makes one attempt, within the deadline of ctx. The error, if any, names the layer
	// that failed; it is a *Failure where there is a remedy to name as well.
	Try(ctx context.Context) (Report, error)
}

// Report is what an attempt found out besides its verdict.
type Report struct {
	// Detail says in one line what was proven, for a person who reads the dry run.
	Detail string
	// Skipped is the reason why nothing was asked. A skipped check does not hold a node back.
	Skipped string
	// Warnings name what did not work although the check passed.
	Warnings []string
	// Took, where it is set, is the duration of a question that was asked before this attempt
	// and whose answer the attempt used. The Runner then reports it in place of its own measure.
	Took time.Duration
}

// Failure is the error of an attempt, with what a person would try first.
type Failure struct {
	Cause  error
	Remedy string
}

func (f *Failure) Error() string { return f.Cause.Error() }
func (f *Failure) Unwrap() error { return f.Cause }

// Remedy returns what to try first about err, or "" where nothing is known.
func Remedy(err error) string {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f.Remedy
	}
	return ""
}

func fail(remedy, format string, args ...any) error {
	return &Failure{Cause: fmt.Errorf(format, args...), Remedy: remedy}
}

// Skip is a check that asks nothing, because of reason.
func Skip(name, reason string) Check { return skipped{name, reason} }

type skipped struct{ name, reason string }

func (s skipped) Name() string                        { return s.name }
func (s skipped) Try(context.Context) (Report, error) { return Report{Skipped: s.reason}, nil }

// isTimeout tells whether err means that no answer came in time, as opposed to a bad one.
func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

// short reduces a network error to the words that an operator searches for: the addresses that
// package net repeats in every layer of it are in the sentence around it already.
func short(err error) error {
	words := err.Error()
	reply, _ := errors.AsType[*net.DNSError](err)
	switch {
	case isTimeout(err):
		words = "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		words = "connection refused"
	case errors.Is(err, syscall.ECONNRESET):
		words = "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		words = "connection closed"
	case errors.Is(err, syscall.EHOSTUNREACH):
		words = "no route to host"
	case errors.Is(err, syscall.ENETUNREACH):
		words = "network is unreachable"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		words = "no address of this node to connect from"
	case errors.Is(err, syscall.EAFNOSUPPORT):
		words = "address family is switched off on this node"
	case reply != nil:
		words = reply.Err
	}
	return shortened{words, err}
}

type shortened struct {
	words string
	err   error
}

func (s shortened) Error() string { return s.words }
func (s shortened) Unwrap() error { return s.err }
