package checks

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What the tests talk to: real sockets on loopback, and nothing beyond it.

// accepting returns the address of a listener at host that takes every connection.
func accepting(t *testing.T, host string) string {
	t.Helper()
	return serving(t, host, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
}

// serving hands every connection to serve, which need not close it.
func serving(t *testing.T, host string, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	serveTCP(t, listener, serve)
	return listener.Addr().String()
}

func serveTCP(t *testing.T, listener net.Listener, serve func(net.Conn)) {
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
// taken, so that nothing else can listen there meanwhile.
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

// silent returns an address that does not answer a SYN: its queue of connections is full, and
// Linux drops what comes then.
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

// boundTCP takes a port of 127.0.0.1 without listening there.
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

// Connecting to a group address fails with ENETUNREACH, whatever routes this machine has.
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

// script is what a nameServer does about one name.
type script struct {
	a, aaaa   []string // addresses; none of either: NODATA
	rcode     byte
	codes     map[uint16]byte // by record type, where they differ
	silent    bool            // no answer at all
	dead      *atomic.Bool    // no answer while it is set
	kills     *atomic.Bool    // is set before the answer
	mute      uint16          // the record type that is never answered
	lost      int             // how many of the questions of each type get no answer
	slowA     time.Duration   // the answer about A comes that much later
	truncated bool            // over UDP
	lame      bool            // no answer, no authority and no recursion: a referral to nowhere
	foreignID bool            // the answer to somebody else's question
	cutShort  bool            // announces a record and ends
	noise     []byte          // sent in place of an answer
}

const (
	formErr  = 1
	servFail = 2
	nxDomain = 3
	notImp   = 4
	refused  = 5

	typeNS   = 2
	typeA    = 1
	typeAAAA = 28
)

// nameServer is a DNS server on loopback, on UDP and TCP, that answers by script. It does not
// know any other name.
type nameServer struct {
	address string
	names   map[string]script

	mu    sync.Mutex
	seen  map[string]int // questions over UDP, by name and type
	order []string       // names, as they came first
}

// How a nameServer behaves on TCP.
type overTCP int

const (
	tcpOpen overTCP = iota
	tcpClosed
	tcpSilent // takes connections and says nothing
)

// newNameServer starts one; names are absolute, with the final dot.
func newNameServer(t *testing.T, host string, tcp overTCP, names map[string]script) *nameServer {
	t.Helper()
	s := &nameServer{names: names, seen: make(map[string]int)}
	packets := s.listen(t, host, tcp)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serveUDP(packets)
	}()
	t.Cleanup(func() {
		_ = packets.Close()
		<-done
	})
	return s
}

// listen takes the same port on UDP and TCP.
func (s *nameServer) listen(t *testing.T, host string, tcp overTCP) net.PacketConn {
	t.Helper()
	for range 100 {
		var listener net.Listener
		if tcp == tcpClosed {
			_, s.address = boundTCP(t)
		} else {
			var err error
			listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
			require.NoError(t, err)
			s.address = listener.Addr().String()
		}
		packets, err := net.ListenPacket("udp", s.address)
		if err != nil { // taken
			if listener != nil {
				_ = listener.Close()
			}
			continue
		}
		if listener != nil {
			serveTCP(t, listener, func(conn net.Conn) {
				if tcp == tcpSilent {
					_, _ = io.Copy(io.Discard, conn)
					return
				}
				s.serveStream(conn)
			})
		}
		return packets
	}
	require.Fail(t, "no port is free on both UDP and TCP")
	return nil
}

func (s *nameServer) serveUDP(packets net.PacketConn) {
	buffer := make([]byte, 4096)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		question := slices.Clone(buffer[:n])
		name, kind := questionOf(question)
		sc, known := s.names[name]
		if !known {
			sc = script{rcode: nxDomain}
		}
		count := s.count(name, kind)
		if sc.kills != nil {
			sc.kills.Store(true)
		}
		if sc.silent || sc.mute == kind || count <= sc.lost || (sc.dead != nil && sc.dead.Load()) {
			continue
		}
		answer := sc.answer(question, kind, true)
		if kind == typeA && sc.slowA > 0 {
			time.AfterFunc(sc.slowA, func() { _, _ = packets.WriteTo(answer, from) })
			continue
		}
		_, _ = packets.WriteTo(answer, from)
	}
}

func (s *nameServer) serveStream(conn net.Conn) {
	for {
		question, err := readStream(conn)
		if err != nil {
			return
		}
		name, kind := questionOf(question)
		sc, known := s.names[name]
		if !known {
			sc = script{rcode: nxDomain}
		}
		message := sc.answer(question, kind, false)
		message = append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
		if _, err := conn.Write(message); err != nil {
			return
		}
	}
}

// readStream reads one message with its length in front.
func readStream(conn net.Conn) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(conn, message)
	return message, err
}

func (s *nameServer) count(name string, kind uint16) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.order, name) {
		s.order = append(s.order, name)
	}
	key := name + strconv.Itoa(int(kind))
	s.seen[key]++
	return s.seen[key]
}

// asked returns the names that it was asked over UDP so far, in their order.
func (s *nameServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

// questions returns how often it was asked over UDP for name and a record type.
func (s *nameServer) questions(name string, kind uint16) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[name+strconv.Itoa(int(kind))]
}

// questionEnd is the offset behind the one question of a message.
func questionEnd(message []byte) int {
	at := 12
	for message[at] != 0 {
		at += 1 + int(message[at])
	}
	return at + 5
}

func questionOf(message []byte) (name string, kind uint16) {
	var text strings.Builder
	at := 12
	for message[at] != 0 {
		text.Write(message[at+1 : at+1+int(message[at])])
		text.WriteByte('.')
		at += 1 + int(message[at])
	}
	if text.Len() == 0 {
		text.WriteByte('.')
	}
	return text.String(), binary.BigEndian.Uint16(message[at+1:])
}

func (sc script) answer(question []byte, kind uint16, udp bool) []byte {
	if sc.noise != nil {
		return sc.noise
	}
	const response, authoritative, truncation, recursion = 0x80, 0x04, 0x02, 0x80
	var addrs []netip.Addr
	switch kind {
	case typeA:
		addrs = parseAddrs(sc.a)
	case typeAAAA:
		addrs = parseAddrs(sc.aaaa)
	}
	if sc.truncated && udp {
		addrs = nil
	}
	m := slices.Clone(question[:questionEnd(question)])
	if sc.foreignID {
		m[0] ^= 0xff
	}
	m[2] = response | authoritative | question[2]&1
	m[3] = recursion | sc.rcode | sc.codes[kind]
	if sc.truncated && udp {
		m[2] |= truncation
	}
	if sc.lame {
		m[2], m[3] = response, 0
	}
	records := len(addrs)
	if sc.cutShort {
		records++
	}
	copy(m[4:12], []byte{0, 1, 0, byte(records), 0, 0, 0, 0})
	for _, addr := range addrs {
		m = append(m, 0xc0, 12) // the name of the question
		m = binary.BigEndian.AppendUint16(m, kind)
		m = append(m, 0, 1, 0, 0, 0, 5, 0, byte(addr.BitLen()/8))
		m = append(m, addr.AsSlice()...)
	}
	return m
}

func parseAddrs(texts []string) []netip.Addr {
	addrs := make([]netip.Addr, len(texts))
	for i, text := range texts {
		addrs[i] = netip.MustParseAddr(text)
	}
	return addrs
}
