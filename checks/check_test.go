package checks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"dns", "api", "network", "service"}, Names())
	for i, check := range []Check{DNS{}, API{}, Network{}, Service{}} {
		assert.Equal(t, Names()[i], check.Name())
	}
}

func TestRemedy(t *testing.T) {
	t.Parallel()
	cause := errors.New("no route")
	err := fail("look at the CNI", "TCP: %w", cause)
	require.EqualError(t, err, "TCP: no route")
	require.ErrorIs(t, err, cause)
	assert.Equal(t, "look at the CNI", Remedy(err))
	assert.Equal(t, "look at the CNI", Remedy(fmt.Errorf("network: %w", err)))
	assert.Empty(t, Remedy(cause))
	assert.Empty(t, Remedy(nil))
}

func TestShort(t *testing.T) {
	t.Parallel()
	at := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53}, Err: err}
	}
	for want, err := range map[string]error{
		"timeout":                                 at(os.ErrDeadlineExceeded),
		"connection refused":                      at(os.NewSyscallError("connect", syscall.ECONNREFUSED)),
		"connection reset":                        at(syscall.ECONNRESET),
		"connection closed":                       fmt.Errorf("reading: %w", io.ErrUnexpectedEOF),
		"no route to host":                        at(syscall.EHOSTUNREACH),
		"network is unreachable":                  at(syscall.ENETUNREACH),
		"no source address on this node":          at(syscall.EADDRNOTAVAIL),
		"address family is disabled on this node": at(syscall.EAFNOSUPPORT),
		"lame referral":                           errLameReferral,
		"operation not permitted":                 syscall.EPERM,
		"dial tcp 127.0.0.1:53: broken":           at(errors.New("broken")),
	} {
		assert.EqualError(t, short(err), want)
		assert.ErrorIs(t, short(err), err, "the error itself stays underneath")
	}
	assert.EqualError(t, short(io.EOF), "connection closed")
	assert.EqualError(t, short(context.DeadlineExceeded), "timeout")
}

func TestIsTimeout(t *testing.T) {
	t.Parallel()
	assert.True(t, isTimeout(context.DeadlineExceeded))
	assert.True(t, isTimeout(os.ErrDeadlineExceeded))
	assert.True(t, isTimeout(&net.DNSError{IsTimeout: true}))
	assert.True(t, isTimeout(syscall.ETIMEDOUT))
	assert.False(t, isTimeout(context.Canceled), "a shutdown is not a slow network")
	assert.False(t, isTimeout(syscall.ECONNREFUSED))
	assert.False(t, isTimeout(io.EOF))
}

func TestCombine(t *testing.T) {
	t.Parallel()
	report, err := combine([]outcome{
		{detail: "one", warnings: []string{"slow"}},
		{},
		{detail: "two", warnings: []string{"old"}},
	})
	require.NoError(t, err)
	assert.Equal(t, Report{Detail: "one, two", Warnings: []string{"slow", "old"}}, report)

	first, second := fail("turn it on", "one is off"), fail("turn it on", "two is off")
	_, err = combine([]outcome{{detail: "fine"}, {err: first}, {err: second}, {err: fail("replace it", "three is broken")}, {err: errors.New("four")}})
	require.EqualError(t, err, "one is off; two is off; three is broken; four")
	assert.Equal(t, "turn it on; replace it", Remedy(err))
	require.ErrorIs(t, err, second)
}
