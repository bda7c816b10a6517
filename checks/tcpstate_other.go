//go:build !linux

package checks

import (
	"net"
	"syscall"
)

func repeatOnce(string, string, syscall.RawConn) error { return nil }

func readTCPState(net.Conn) (tcpState, bool) { return tcpState{}, false }
