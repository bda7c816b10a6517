package checks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

func TestQuery(t *testing.T) {
	t.Parallel()
	query, err := newQuery("web.example.org.", dnsmessage.TypeAAAA, true)
	require.NoError(t, err)
	var m dnsmessage.Message
	require.NoError(t, m.Unpack(query))
	assert.Equal(t, dnsmessage.Header{ID: m.ID, RecursionDesired: true}, m.Header)
	assert.Equal(t, []dnsmessage.Question{{Name: dnsmessage.MustNewName("web.example.org."), Type: dnsmessage.TypeAAAA, Class: dnsmessage.ClassINET}}, m.Questions)
	require.Len(t, m.Additionals, 1)
	assert.Equal(t, dnsmessage.TypeOPT, m.Additionals[0].Header.Type)
	assert.Equal(t, dnsmessage.Class(1232), m.Additionals[0].Header.Class, "the largest UDP reply")

	ids := make(map[uint16]bool)
	for range 100 {
		query, err := newQuery(".", dnsmessage.TypeNS, true)
		require.NoError(t, err)
		ids[uint16(query[0])<<8|uint16(query[1])] = true
	}
	assert.Greater(t, len(ids), 50, "the ID is random")
}

func TestNamesThatDNSCannotHold(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("a.", 126) + "a" // 253 bytes
	for _, name := range []string{"", "no-final-dot", "..", ".a.", "a..b.", strings.Repeat("a", 64) + ".b.", longest + "a.", strings.Repeat("a.", 200), strings.Repeat("a", 70000) + "."} {
		_, err := newQuery(name, dnsmessage.TypeA, true)
		require.ErrorIs(t, err, errNotName, "%.80q", name)
		assert.Equal(t, "not a domain name", err.Error())
	}
	for _, name := range []string{".", "_dmarc.example.org.", "ümlaut and space.\x00.", strings.Repeat("a", 63) + ".", longest + "."} {
		_, err := newQuery(name, dnsmessage.TypeA, true)
		require.NoError(t, err, "%q", name)
	}

	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{longest + ".": known})
	resolver := &Resolver{Servers: []string{server.address}, Search: []string{"corp.example"}}
	for _, name := range []string{"a..b", longest + "a", strings.Repeat("a", 64)} {
		_, err := DNS{Names: []string{name}, Resolver: resolver}.Try(limited(t, enough))
		require.EqualError(t, err, name+": not a domain name")
		assert.Equal(t, checkName, Remedy(err))
	}
	assert.Empty(t, server.asked())
	_, err := DNS{Names: []string{longest}, Resolver: resolver}.Try(limited(t, enough))
	require.NoError(t, err, "that the search list cannot complete it does no harm")
	assert.Equal(t, []string{longest + "."}, server.asked())
}

// replier answers UDP queries on loopback with the packets that packets makes of each.
func replier(t *testing.T, packets func(query dnsmessage.Message) [][]byte) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done })
	go func() {
		defer close(done)
		buffer := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if query.Unpack(buffer[:n]) != nil {
				continue
			}
			for _, packet := range packets(query) {
				_, _ = conn.WriteTo(packet, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}

// replyTo packs a reply with these answers, after change (or nil) has changed it.
func replyTo(query dnsmessage.Message, change func(*dnsmessage.Message), answers ...dnsmessage.Resource) []byte {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: query.ID, Response: true, RecursionAvailable: true},
		Questions: slices.Clone(query.Questions), Answers: answers,
	}
	if change != nil {
		change(&m)
	}
	packed, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return packed
}

func record(name string, body dnsmessage.ResourceBody) dnsmessage.Resource {
	return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET}, Body: body}
}

func aRecord(name string, last byte) dnsmessage.Resource {
	return record(name, &dnsmessage.AResource{A: [4]byte{192, 0, 2, last}})
}

func cname(name, target string) dnsmessage.Resource {
	return record(name, &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(target)})
}

func TestUDPReplies(t *testing.T) {
	t.Parallel()
	const name = "web.example.org."
	type message = dnsmessage.Message
	good := func(q message) []byte { return replyTo(q, nil, aRecord(name, 1)) }
	bad := func(change func(*message)) func(message) [][]byte { // another's reply, and then the server's own
		return func(q message) [][]byte { return [][]byte{replyTo(q, change, aRecord(name, 66)), good(q)} }
	}
	only := func(change func(*message), answers ...dnsmessage.Resource) func(message) [][]byte {
		return func(q message) [][]byte { return [][]byte{replyTo(q, change, answers...)} }
	}
	many := make([]dnsmessage.Resource, 200) // 3,200 bytes: the names are compressed
	for i := range many {
		many[i] = aRecord(name, byte(i+1))
	}
	const sinkhole = "only the address of a sinkhole (0.0.0.0 or ::)"
	for title, test := range map[string]struct {
		packets func(message) [][]byte
		want    string
	}{
		"a reply":                    {only(nil, aRecord(name, 1)), "192.0.2.1"},
		"another ID":                 {bad(func(m *message) { m.ID++ }), "192.0.2.1"},
		"another name":               {bad(func(m *message) { m.Questions[0].Name = dnsmessage.MustNewName("evil.example.org.") }), "192.0.2.1"},
		"another type":               {bad(func(m *message) { m.Questions[0].Type = dnsmessage.TypeMX }), "192.0.2.1"},
		"another class":              {bad(func(m *message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }), "192.0.2.1"},
		"no question, NOERROR":       {bad(func(m *message) { m.Questions = nil }), "192.0.2.1"},
		"a sinkhole":                 {only(nil, record(name, &dnsmessage.AResource{})), sinkhole},
		"a sinkhole, and an address": {only(nil, record(name, &dnsmessage.AResource{}), aRecord(name, 1)), "192.0.2.1"},
		"a query":                    {bad(func(m *message) { m.Response = false }), "192.0.2.1"},
		"noise":                      {func(q message) [][]byte { return [][]byte{[]byte("noise"), {}, good(q)[:11], good(q)[:20], good(q)} }, "192.0.2.1"},
		"the name in capitals":       {only(func(m *message) { m.Questions[0].Name = dnsmessage.MustNewName("WEB.example.ORG.") }, aRecord(name, 1)), "192.0.2.1"},
		"no question, FORMERR":       {only(func(m *message) { m.Questions, m.RCode = nil, dnsmessage.RCodeFormatError }), "FORMERR"},
		"an unknown code":            {only(func(m *message) { m.RCode = 11 }), "response code 11"},
		"SERVFAIL with a record":     {only(func(m *message) { m.RCode = dnsmessage.RCodeServerFailure }, aRecord(name, 1)), "SERVFAIL"},
		"a CNAME chain":              {only(nil, cname(name, "a.example.net."), cname("a.example.net.", "b.example.net."), aRecord("b.example.net.", 7), aRecord("b.example.net.", 8)), "192.0.2.7 192.0.2.8"},
		"a CNAME to nowhere":         {only(nil, cname(name, "a.example.net.")), "no A or AAAA record"},
		"records of other types":     {only(nil, record(name, &dnsmessage.TXTResource{TXT: []string{"text"}}), aRecord(name, 3), record(name, &dnsmessage.AAAAResource{})), "192.0.2.3"},
		"no record, no recursion, EDNS0": {only(func(m *message) {
			m.RecursionAvailable = false
			m.Additionals = []dnsmessage.Resource{record(".", &dnsmessage.OPTResource{})}
		}), "no A or AAAA record"},
		"a CNAME, no recursion":   {only(func(m *message) { m.RecursionAvailable = false }, cname(name, "a.example.net.")), "no A or AAAA record"},
		"no record, no recursion": {only(func(m *message) { m.RecursionAvailable = false }), "lame referral"},
		"an address of 5 bytes":   {only(nil, record(name, &dnsmessage.UnknownResource{Type: dnsmessage.TypeA, Data: make([]byte, 5)})), "malformed reply"},
		"an IPv6 address as A":    {only(nil, record(name, &dnsmessage.UnknownResource{Type: dnsmessage.TypeA, Data: make([]byte, 16)})), "malformed reply"},
		"a record cut off":        {func(q message) [][]byte { m := good(q); return [][]byte{m[:len(m)-1]} }, "malformed reply"},
		"a name that points to itself": {func(q message) [][]byte {
			m := good(q)
			at := questionEnd(m) // the name of the record, a pointer: 0xc0 0x0c
			m[at], m[at+1] = 0xc0|byte(at>>8), byte(at)
			return [][]byte{m}
		}, "malformed reply"},
		"more than 1,232 bytes": {only(nil, many...), "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6 192.0.2.7 192.0.2.8"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			addrs, err := Resolver{}.query(limited(t, enough), replier(t, test.packets), name, dnsmessage.TypeA)
			got := text(err)
			if err == nil {
				got = strings.Trim(fmt.Sprint(addrs), "[]")
			}
			assert.Equal(t, test.want, got)
		})
	}
}

// A server from before EDNS0 (RFC 6891, 7) is asked once more without it, and only once.
func TestServerWithoutEDNS0(t *testing.T) {
	t.Parallel()
	const name = "web.example.org."
	for code, text := range map[dnsmessage.RCode]string{dnsmessage.RCodeFormatError: "FORMERR", dnsmessage.RCodeNotImplemented: "NOTIMP"} {
		for _, recovers := range []bool{true, false} {
			var asked atomic.Int32
			server := replier(t, func(q dnsmessage.Message) [][]byte {
				asked.Add(1)
				if len(q.Additionals) > 0 || !recovers {
					return [][]byte{replyTo(q, func(m *dnsmessage.Message) { m.RCode = code })}
				}
				return [][]byte{replyTo(q, nil, aRecord(name, 1))}
			})
			addrs, err := Resolver{}.query(limited(t, enough), server, name, dnsmessage.TypeA)
			assert.Equal(t, int32(2), asked.Load())
			if recovers {
				require.NoError(t, err)
				assert.Equal(t, parseAddrs(known.a), addrs)
			} else {
				require.EqualError(t, err, text)
			}
		}
	}
}

// Blocked names: 0.0.0.0 and :: are no addresses, and connecting to them would reach this pod.
func TestSinkhole(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		title  string
		script script
		err    string
	}{
		{"both families", script{a: []string{"0.0.0.0"}, aaaa: []string{"::"}}, "only the address of a sinkhole (0.0.0.0 or ::)"},
		{"IPv4 only", script{a: []string{"0.0.0.0"}}, "only the address of a sinkhole (0.0.0.0 or ::)"},
		{"IPv6 only", script{aaaa: []string{"::"}}, "only the address of a sinkhole (0.0.0.0 or ::)"},
		{"IPv4 mapped to IPv6", script{aaaa: []string{"::ffff:0.0.0.0"}}, "only the address of a sinkhole (0.0.0.0 or ::)"},
		{"the other family has an address", script{a: []string{"0.0.0.0"}, aaaa: []string{"2001:db8::1"}}, ""},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": test.script})
			_, err := DNS{Names: []string{"web.example.org"}, Resolver: &Resolver{Servers: []string{server.address}}}.Try(limited(t, enough))
			if test.err == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, "web.example.org: "+test.err+" from name server "+server.address)
			assert.Equal(t, checkName, Remedy(err))
		})
	}
}

// exchangeTCP is an exchange with a server that replies to the one query with these bytes, each in a packet of its own.
func exchangeTCP(t *testing.T, bytes func(query dnsmessage.Message) []byte) (reply, error) {
	t.Helper()
	server := serving(t, "127.0.0.1", func(conn net.Conn) {
		packed, err := readStream(conn)
		var query dnsmessage.Message
		if err != nil || query.Unpack(packed) != nil {
			return
		}
		for _, b := range bytes(query) {
			if _, err := conn.Write([]byte{b}); err != nil {
				return
			}
		}
	})
	query, err := newQuery("web.example.org.", dnsmessage.TypeA, true)
	require.NoError(t, err)
	return exchange(limited(t, enough), "tcp", server, query)
}

func framed(message []byte) []byte {
	return append([]byte{byte(len(message) >> 8), byte(len(message))}, message...)
}

func TestTCPReplies(t *testing.T) {
	t.Parallel()
	const name = "web.example.org."
	type message = dnsmessage.Message
	for title, test := range map[string]struct {
		bytes func(message) []byte
		err   string
	}{
		"a reply, byte by byte": {func(q message) []byte { return framed(replyTo(q, nil, aRecord(name, 1))) }, ""},
		"truncated over TCP too": {func(q message) []byte {
			return framed(replyTo(q, func(m *message) { m.Truncated = true }, aRecord(name, 1)))
		}, ""},
		"another ID": {func(q message) []byte { return framed(replyTo(q, func(m *message) { m.ID++ }, aRecord(name, 1))) }, "not a DNS reply"},
		"another name": {func(q message) []byte {
			return framed(replyTo(q, func(m *message) { m.Questions[0].Name = dnsmessage.MustNewName("a.") }))
		}, "not a DNS reply"},
		"no question, NOERROR": {func(q message) []byte {
			return framed(replyTo(q, func(m *message) { m.Questions = nil }, aRecord(name, 1)))
		}, "not a DNS reply"},
		"an empty message":         {func(message) []byte { return []byte{0, 0} }, "not a DNS reply"},
		"no reply":                 {func(message) []byte { return nil }, "connection closed"},
		"half a length":            {func(message) []byte { return []byte{0} }, "connection closed"},
		"a length and no message":  {func(message) []byte { return []byte{0, 50} }, "connection closed"},
		"a message that ends soon": {func(q message) []byte { m := framed(replyTo(q, nil)); return m[:len(m)-1] }, "connection closed"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			r, err := exchangeTCP(t, test.bytes)
			require.Equal(t, test.err, text(err))
			if err == nil {
				addrs, err := r.addresses(dnsmessage.TypeA)
				require.NoError(t, err)
				assert.Equal(t, parseAddrs([]string{"192.0.2.1"}), addrs)
			}
		})
	}
}

// With the option use-vc of resolv.conf not even a server that would answer over UDP gets a packet.
func TestOnlyTCP(t *testing.T) {
	t.Parallel()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"web.example.org.": known})
	_, port, err := net.SplitHostPort(server.address)
	require.NoError(t, err)
	report, err := DNS{
		Names: []string{"web.example.org", "127.0.0.1"}, Port: port, Resolver: &Resolver{Servers: []string{server.address}, Network: "tcp"},
	}.Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, "web.example.org is 192.0.2.1, by 127.0.0.1: web.example.org. is 192.0.2.1", report.Detail)
	assert.Empty(t, server.asked())
}

// The attempt ends while the UDP reply or the TCP connection is due: a timeout, and worth asking again.
func TestExchangeThatTheDeadlineEnds(t *testing.T) {
	t.Parallel()
	dropsTCP := silent(t)
	packets, err := net.ListenPacket("udp", dropsTCP) // the same port
	require.NoError(t, err)
	t.Cleanup(func() { _ = packets.Close() })
	go func() {
		buffer := make([]byte, 512)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			if _, recordType := questionOf(buffer[:n]); recordType == typeA {
				_, _ = packets.WriteTo(script{truncated: true}.reply(buffer[:n], typeA, true), from)
			}
		}
	}()
	for recordType, want := range map[dnsmessage.Type]string{
		dnsmessage.TypeA: "UDP answer truncated, TCP query failed: timeout", dnsmessage.TypeAAAA: "timeout",
	} {
		_, err = Resolver{}.query(limited(t, 300*time.Millisecond), dropsTCP, "web.example.org.", recordType)
		require.EqualError(t, err, want)
		require.True(t, isTimeout(err))
		query, err := newQuery("web.example.org.", recordType, true)
		require.NoError(t, err)
		ended, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		_, err = exchange(ended, "tcp", dropsTCP, query)
		require.True(t, isTimeout(err), "%v", err)
	}
}

// A shutdown ends an exchange that has no deadline, at once.
func TestExchangeThatAShutdownEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	server := replier(t, func(dnsmessage.Message) [][]byte { cancel(); return nil })
	query, err := newQuery("web.example.org.", dnsmessage.TypeA, true)
	require.NoError(t, err)
	_, err = exchange(ctx, "udp", server, query)
	require.Error(t, err)
	_, err = exchange(ctx, "tcp", accepting(t, "127.0.0.1"), query)
	require.ErrorIs(t, err, context.Canceled)
}

func TestExchangeWithAPortThatRefusesUDP(t *testing.T) {
	t.Parallel()
	query, err := newQuery("web.example.org.", dnsmessage.TypeA, true)
	require.NoError(t, err)
	_, err = exchange(limited(t, enough), "udp", refusing(t), query)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// Whatever a server sends, reading it ends, and without a panic.
func TestRepliesWithRandomBytes(t *testing.T) {
	t.Parallel()
	query, err := newQuery("web.example.org.", dnsmessage.TypeA, true)
	require.NoError(t, err)
	var sent dnsmessage.Message
	require.NoError(t, sent.Unpack(query))
	good := replyTo(sent, nil, cname("web.example.org.", "a.example.net."), aRecord("a.example.net.", 7))
	var replies, resolved int
	for range 20000 {
		message := slices.Clone(good[:len(good)-rand.IntN(2)*rand.IntN(len(good))])
		for range rand.IntN(4) {
			message[rand.IntN(len(message))] = byte(rand.Uint32())
		}
		if r, ok := parseReply(query, message); ok {
			replies++
			if addrs, err := r.addresses(dnsmessage.TypeA); err == nil {
				resolved++
				require.NotEmpty(t, addrs)
			}
		}
	}
	assert.Greater(t, replies, resolved)
	assert.Positive(t, resolved)
}

// A link-local name server of resolv.conf names its interface.
func TestServerWithAZone(t *testing.T) {
	t.Parallel()
	needIPv6(t)
	server := newNameServer(t, "::1", tcpOpen, map[string]script{"web.example.org.": {a: known.a, truncated: true}})
	_, port, err := net.SplitHostPort(server.address)
	require.NoError(t, err)
	addrs, err := Resolver{}.query(limited(t, enough), "[::1%lo]:"+port, "web.example.org.", dnsmessage.TypeA)
	require.NoError(t, err)
	assert.Equal(t, parseAddrs(known.a), addrs)
}
