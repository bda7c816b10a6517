package checks

import (
	"encoding/binary"
	"github.com/stretchr/testify/require"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// script is what a nameServer replies about one name.
type script struct {
	a, aaaa   []string // addresses; none of either: NODATA
	rcode     byte
	codes     map[uint16]byte // by record type, where they differ
	silent    bool            // no reply at all
	dead      *atomic.Bool    // no reply while it is set
	kills     *atomic.Bool    // set before the reply
	recovered *atomic.Bool    // rcode counts until it is set
	noReply   uint16          // a record type without a reply
	lost      int             // the first queries of each type without a reply
	slowA     time.Duration   // delay of the reply about A
	truncated bool            // over UDP
	lame      bool            // no answer, not authoritative, no recursion: a lame referral
	foreignID bool            // the reply to another query
	cutShort  bool            // announces a record and ends
	noise     []byte          // sent instead of a reply
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

// nameServer is a DNS server on loopback, UDP and TCP, that replies by script, that of "*" to other names, else NXDOMAIN.
type nameServer struct {
	address string
	names   map[string]script

	mu    sync.Mutex
	seen  map[string]int // queries over UDP, by name and type
	order []string       // names, in the order of their first query
}

// How a nameServer behaves on TCP.
type overTCP int

const (
	tcpOpen overTCP = iota
	tcpClosed
	tcpSilent // accepts connections and sends nothing
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
		sc := s.scriptOf(name)
		count := s.count(name, kind)
		if sc.kills != nil {
			sc.kills.Store(true)
		}
		if sc.recovered != nil && sc.recovered.Load() {
			sc.rcode = 0
		}
		if sc.silent || sc.noReply == kind || count <= sc.lost || (sc.dead != nil && sc.dead.Load()) {
			continue
		}
		reply := sc.reply(question, kind, true)
		if kind == typeA && sc.slowA > 0 {
			time.AfterFunc(sc.slowA, func() { _, _ = packets.WriteTo(reply, from) })
			continue
		}
		_, _ = packets.WriteTo(reply, from)
	}
}

func (s *nameServer) serveStream(conn net.Conn) {
	for {
		question, err := readStream(conn)
		if err != nil {
			return
		}
		name, kind := questionOf(question)
		sc := s.scriptOf(name)
		writeStream(conn, sc.reply(question, kind, false))
	}
}

// scriptOf returns the script of a name, that of any other name, or NXDOMAIN.
func (s *nameServer) scriptOf(name string) script {
	if sc, known := s.names[name]; known {
		return sc
	}
	if sc, known := s.names["*"]; known {
		return sc
	}
	return script{rcode: nxDomain}
}

// writeStream writes one message behind its length.
func writeStream(conn net.Conn, message []byte) {
	_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
}

// readStream reads one message after its length.
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

// asked returns the names of the UDP queries so far, in their order.
func (s *nameServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

// queries returns the number of UDP queries for name and a record type.
func (s *nameServer) queries(name string, kind uint16) int {
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

func (sc script) reply(question []byte, kind uint16, udp bool) []byte {
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
