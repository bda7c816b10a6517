package checks

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// readTCPState asks the kernel about a TCP connection (tcp(7), TCP_INFO). False: it does not tell.
func readTCPState(conn net.Conn) (state tcpState, known bool) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return state, false
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				state, known = tcpState{segment: int(info.Snd_mss), acknowledged: int(info.Bytes_acked)}, info.Snd_mss > 0
			}
		})
	}
	return state, known
}
