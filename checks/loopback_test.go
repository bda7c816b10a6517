package checks

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The tests use real sockets on loopback, and nothing beyond it.

// accepting returns the address of a listener at host that accepts every connection.
func accepting(t *testing.T, host string) string {
	t.Helper()
	return serving(t, host, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
}

// serving passes every connection to serve, which need not close it.
func serving(t testing.TB, host string, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	serveTCP(t, listener, serve)
	return listener.Addr().String()
}

// Bytes of a TCP segment, with its timestamp (RFC 7323), on an Ethernet and with jumbo frames.
const ethernet, jumbo = 1460, 8960

// servingEthernet is serving on an Ethernet: packets of 1,448 bytes of payload.
func servingEthernet(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	return servingPath(t, ethernet, 1<<17, serve)
}

// servingPath is serving over segments of at most segment bytes, and a path with an
// MTU that silently drops larger packets.
func servingPath(t *testing.T, segment, mtu int, serve func(net.Conn)) string {
	t.Helper()
	path := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) {
			// The accepted sockets inherit both. A filter sees a packet without its IP header, which has 20 bytes.
			filter := []unix.SockFilter{
				{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
				{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: uint32(mtu - 20), Jf: 1},
				{Code: unix.BPF_RET | unix.BPF_K, K: 0},
				{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 20},
			}
			err = errors.Join(
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, segment),
				unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
			)
		}), err)
	}}
	listener, err := path.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveTCP(t, listener, serve)
	return listener.Addr().String()
}

func serveTCP(t testing.TB, listener net.Listener, serve func(net.Conn)) {
	t.Helper()
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		open    []net.Conn
		closed  bool
	)
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if open = append(open, conn); closed {
				_ = conn.Close()
			}
			mu.Unlock()
			running.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		closed = true
		for _, conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
}

// refusing returns an address that refuses TCP and UDP for as long as the test runs: the port is
// taken, so that nothing else can listen on it.
func refusing(t *testing.T) string {
	t.Helper()
	var err error
	for range 100 {
		_, address := boundTCP(t)
		self := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address))
		// The kernel hands a connected socket only what its peer sends, and refuses the rest.
		var conn net.Conn
		if conn, err = net.DialUDP("udp", self, &net.UDPAddr{IP: self.IP, Port: 9}); err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return address
		} // the port is taken on UDP
	}
	require.NoError(t, err)
	return ""
}

// silent returns an address that does not answer a SYN: its queue of connections is full, and Linux drops more.
func silent(t *testing.T) string {
	t.Helper()
	fd, address := boundTCP(t)
	require.NoError(t, syscall.Listen(fd, 0))
	for {
		conn, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			require.True(t, isTimeout(err), "%v", err)
			return address
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

// boundTCP takes a port of 127.0.0.1 without listening on it.
func boundTCP(t *testing.T) (fd int, address string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	return fd, net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port))
}

// Connecting to a multicast address fails with ENETUNREACH on every machine.
const (
	unreachable  = "224.0.0.1"
	unreachable6 = "ff02::1"
)

func needIPv6(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 loopback on this machine: %v", err)
	}
	_ = listener.Close()
}
