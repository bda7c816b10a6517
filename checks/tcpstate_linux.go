package checks

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// readTCPState asks the kernel about a TCP connection (tcp(7), TCP_INFO). False: it does not tell.
func readTCPState(conn net.Conn) (tcpState, bool) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return tcpState{}, false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return tcpState{}, false
	}
	var info *unix.TCPInfo
	controlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if controlErr != nil || err != nil {
		return tcpState{}, false
	}
	return tcpState{segment: int(info.Snd_mss), acknowledged: int(info.Bytes_acked)}, info.Snd_mss > 0
}
