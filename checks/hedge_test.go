package checks

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// exceptFirst listens on loopback, and does not answer the source port that connects first, however often it repeats its
// packets: like a flow that began before kube-proxy's rules. It accepts every other.
func exceptFirst(t *testing.T) net.Listener {
	t.Helper()
	socket := 0
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) {
			socket = int(fd)
			err = filter(socket, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}) // drops all
		}), err)
	}}
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveTCP(t, listener, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })
	go func() {
		for t.Context().Err() == nil {
			if port := connecting(listener.Addr().(*net.TCPAddr).Port); port > 0 {
				// A filter sees a segment from its source port on.
				_ = filter(socket, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS},
					unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: port, Jf: 1},
					unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K},
					unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 20})
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return listener
}

func filter(socket int, program ...unix.SockFilter) error {
	return unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// connecting returns the source port of a connection to a port that has no answer yet, else 0.
func connecting(to int) (port uint32) {
	table, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0
	}
	defer func() { _ = table.Close() }()
	for lines := bufio.NewScanner(table); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 3 && fields[3] == "02" && strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", to)) {
			if _, err := fmt.Sscanf(fields[1], "0100007F:%X", &port); err == nil {
				return port
			}
		}
	}
	return 0
}

// attemptOf returns the context of an attempt in an outage.
func attemptOf(ctx context.Context, outage, least time.Duration) context.Context {
	now := time.Now()
	return withPacing(ctx, pacing{outage: now.Add(-outage), least: least, connectBy: now.Add(least), dials: new(atomic.Int32)})
}

func TestAttemptNoticesThatTheNetworkWorks(t *testing.T) {
	t.Parallel()
	soon := func(t *testing.T, check Check) { // much sooner than TCP, or a third of the attempt, repeats a packet
		t.Helper()
		passed := make(chan error, 1)
		ctx := attemptOf(limited(t, time.Hour), 0, time.Second)
		go func() {
			_, err := check.Try(ctx)
			passed <- err
		}()
		select {
		case err := <-passed:
			require.NoError(t, err)
		case <-time.After(enough):
			require.Fail(t, "no second packet from a new source port")
		}
	}
	t.Run("tcp", func(t *testing.T) {
		t.Parallel()
		soon(t, Network{Targets: []Target{{Address: exceptFirst(t).Addr().String()}}})
	})
	t.Run("dns", func(t *testing.T) {
		t.Parallel()
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": {a: []string{"192.0.2.1"}, lost: 1}})
		soon(t, DNS{Names: []string{"web.example.org."}, Resolver: &Resolver{Servers: []string{server.address}}})
	})
	t.Run("dns, the flow is not translated", func(t *testing.T) {
		t.Parallel()
		first := make(map[string]string) // the source of the first query of a type
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		go func() {
			for buffer := make([]byte, 512); ; {
				n, from, err := conn.ReadFrom(buffer)
				if err != nil {
					return
				}
				var query dnsmessage.Message
				if query.Unpack(buffer[:n]) != nil {
					continue
				}
				kind := query.Questions[0].Type.String()
				if _, seen := first[kind]; !seen {
					first[kind] = from.String()
				}
				if first[kind] != from.String() {
					_, _ = conn.WriteTo(replyTo(query, nil, aRecord("web.example.org.", 1)), from)
				}
			}
		}()
		soon(t, DNS{Names: []string{"web.example.org."}, Resolver: &Resolver{Servers: []string{conn.LocalAddr().String()}}})
	})
}

// unanswered counts the calls of a probe that gets no answer within an attempt of an outage.
func unanswered(ctx context.Context, outage, limit time.Duration) int {
	var calls atomic.Int32
	ctx, cancel := context.WithTimeout(attemptOf(ctx, outage, time.Second), limit)
	defer cancel()
	_, _ = hedge(ctx, pacingOf(ctx).between(hedgeParts), func(ctx context.Context) (int, error) {
		calls.Add(1)
		<-ctx.Done()
		return 0, ctx.Err()
	})
	return int(calls.Load())
}

func TestPaceInFlight(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		outage, limit time.Duration
		calls         int
	}{
		{0, 900 * time.Millisecond, 1},
		{0, 2900 * time.Millisecond, 3},
		{30 * time.Second, 2900 * time.Millisecond, 3},
		{time.Minute, 2900 * time.Millisecond, 2},
		{2 * time.Minute, 2900 * time.Millisecond, 1},
		{time.Hour, 29 * time.Second, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			assert.Equal(t, test.calls, unanswered(t.Context(), test.outage, test.limit), "%+v", test)
		})
	}
}

func TestAnswersInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var calls atomic.Int32
		call := func(first, second error) (int32, error) {
			calls.Store(0)
			return hedge(ctx, time.Second, func(ctx context.Context) (int32, error) {
				n := calls.Add(1)
				if n == 1 && first == nil {
					<-ctx.Done()
					return n, ctx.Err()
				}
				if n == 1 {
					return n, first
				}
				return n, second
			})
		}
		n, err := call(nil, nil)
		require.NoError(t, err)
		assert.EqualValues(t, 2, n, "the first success wins")
		_, err = call(nil, syscall.ECONNREFUSED)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, "an answer, too")
		_, err = call(syscall.ECONNREFUSED, nil)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.EqualValues(t, 1, calls.Load())
		time.Sleep(5 * time.Second)
		assert.EqualValues(t, 1, calls.Load(), "after an answer there is no call")
	})
}

// A transport dials on after the request of an attempt has ended, without its deadline: no packet comes of that.
// noted is a connection that notes that it was closed.
type noted struct {
	io.Closer
	isClosed atomic.Bool
}

func (n *noted) Close() error {
	n.isClosed.Store(true)
	return nil
}

// A connection that comes after another one was returned, or after the attempt, would stay open.
func TestLateConnectionsAreClosed(t *testing.T) {
	for name, limit := range map[string]time.Duration{"another has come": time.Hour, "the attempt has ended": 1200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			late, returned := new(noted), new(noted)
			var calls atomic.Int32
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			got, err := hedge(ctx, time.Second, func(context.Context) (io.Closer, error) {
				if calls.Add(1) == 1 {
					time.Sleep(time.Minute)
					return late, nil
				}
				time.Sleep(500 * time.Millisecond)
				return returned, nil
			})
			if limit == time.Hour {
				require.NoError(t, err, name)
				assert.Equal(t, io.Closer(returned), got)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded, name)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			assert.True(t, late.isClosed.Load(), name)
			assert.Equal(t, err != nil, returned.isClosed.Load(), name)
		})
	}
}

func TestConnectionsToOtherAddressesAreClosed(t *testing.T) {
	t.Parallel()
	var accepted, closed atomic.Int32
	_, port, err := net.SplitHostPort(serving(t, "0.0.0.0", func(conn net.Conn) {
		accepted.Add(1)
		_, _ = io.Copy(io.Discard, conn)
		closed.Add(1)
	}))
	require.NoError(t, err)
	var kept []net.Conn
	for range 30 {
		conn, err := dialFirst(limited(t, enough), parseAddrs([]string{"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"}), port)
		require.NoError(t, err)
		kept = append(kept, conn)
	}
	assert.Eventually(t, func() bool { return int(accepted.Load()-closed.Load()) == len(kept) }, enough, time.Millisecond)
	for _, conn := range kept {
		_ = conn.Close()
	}
}

func TestDialEndsWithTheAttempt(t *testing.T) {
	t.Parallel()
	ctx := attemptOf(t.Context(), 0, 100*time.Millisecond)
	_, err := Dial(ctx, "tcp", silent(t))
	require.True(t, isTimeout(err), "%v", err)
}
