package faults

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// nameServer answers every question at once, or none. It has port 53 of a loopback
// address of its own: the agent asks no other port.
type nameServer struct {
	address string
	conn    net.PacketConn

	mu     sync.Mutex
	paused bool
	asked  chan struct{} // closed at the first question since it was paused
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	d := &nameServer{}
	var err error
	for i := 1; i < 250; i++ { // several may run at once
		d.address = fmt.Sprintf("127.53.1.%d", i)
		if d.conn, err = new(net.ListenConfig).ListenPacket(t.Context(), "udp", d.address+":53"); err == nil {
			break
		}
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.conn.Close() })
	go d.serve()
	return d
}

// pause takes queries from now on and answers none. The channel it returns is closed when
// the first of them has come.
func (d *nameServer) pause() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused, d.asked = true, make(chan struct{})
	return d.asked
}

// resume answers again.
func (d *nameServer) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = false
}

func (d *nameServer) serve() {
	packet := make([]byte, 1500)
	for {
		n, from, err := d.conn.ReadFrom(packet)
		if err != nil {
			return
		}
		d.mu.Lock()
		paused := d.paused
		if paused && d.asked != nil {
			close(d.asked)
			d.asked = nil
		}
		d.mu.Unlock()
		if !paused && n >= 12 { // the question comes back with the bit that makes it an answer (RFC 1035, 4.1.1)
			packet[2] |= 0x80
			packet[3] = 0x80
			_, _ = d.conn.WriteTo(packet[:n], from)
		}
	}
}

// fullBacklog is a TCP address that drops connections until it accepts.
type fullBacklog struct {
	address string
	fd      int
	filling []net.Conn
}

func newFullBacklog(t *testing.T) *fullBacklog {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := &fullBacklog{fd: fd}
	t.Cleanup(func() {
		_ = syscall.Close(fd)
		f.empty()
	})
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	// With a backlog of 0 Linux queues one connection; the SYN of the next is dropped.
	require.NoError(t, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	in4, ok := name.(*syscall.SockaddrInet4)
	require.True(t, ok)
	f.address = fmt.Sprintf("127.0.0.1:%d", in4.Port)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", f.address)
	require.NoError(t, err)
	f.filling = append(f.filling, conn)
	return f
}

func (f *fullBacklog) empty() {
	for _, conn := range f.filling {
		_ = conn.Close()
	}
	f.filling = nil
}

// accept accepts from now on.
func (f *fullBacklog) accept(ctx context.Context) {
	go func() {
		for ctx.Err() == nil {
			fd, _, err := syscall.Accept(f.fd)
			if err != nil {
				return
			}
			_ = syscall.Close(fd)
		}
	}()
}

// isDialed reports whether somebody is trying to connect (SYN_SENT in /proc/net/tcp).
func (f *fullBacklog) isDialed(table string) bool {
	_, port, err := net.SplitHostPort(f.address)
	if err != nil {
		return false
	}
	var n int
	if _, err := fmt.Sscan(port, &n); err != nil {
		return false
	}
	return strings.Contains(table, fmt.Sprintf(" 0100007F:%04X 02 ", n))
}
