//go:build !linux

package checks

import "net"

func readTCPState(net.Conn) (tcpState, bool) { return tcpState{}, false }
