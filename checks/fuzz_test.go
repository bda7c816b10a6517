package checks

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// The fuzz targets of this package feed bytes from servers and files to their parsers. None of them may panic, and a check passes
// only for the answers that it documents.

func FuzzHTTPAnswer(f *testing.F) {
	for _, status := range []string{"200 OK", "204", "399", "400 Bad Request", "401 Unauthorized", "099 low", "000", "+99", "-99", "-00", "1000", "abc", ""} {
		f.Add("HTTP/1.1 " + status + "\r\nContent-Length: 0\r\n\r\n")
	}
	f.Add("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")
	f.Add("HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\nConnection: Upgrade\r\n\r\n")
	f.Add("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: -1\r\n\r\nffffffffffffffffff\r\n")
	f.Add("")

	var answer atomic.Pointer[string]
	listening := serving(f, "0.0.0.0", func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, *answer.Load())
	})
	_, port, err := net.SplitHostPort(listening)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, text string) {
		answer.Store(&text)
		// A different address each time: a closed connection blocks its pair of ports for a minute.
		address := fmt.Sprintf("127.0.%d.%d:%s", rand.IntN(256), 1+rand.IntN(254), port)
		target := func(text string) Attempt { return outcomeOf(t, Network{Targets: []Target{ParseTarget(text)}}) }
		if plain := target("http://" + address); plain.Err == nil {
			assert.Regexp(t, `^GET http://`+address+` [123][0-9][0-9]( |$)`, plain.Report.Detail)
		}
		if listed := target("http://" + address + "#200|401"); listed.Err == nil {
			assert.Regexp(t, `^GET http://`+address+` (200 OK|401 Unauthorized)$`, listed.Report.Detail)
		}
		if healthz(limited(t, enough), Peer{Address: address}) == nil {
			assert.Contains(t, text, " 200")
		}
	})
}

// stream is a TCP connection whose peer has already sent everything.
type stream struct {
	io.Reader
	io.Writer
}

func FuzzDNSReply(f *testing.F) {
	const name = "web.example.org."
	add := func(change func(*dnsmessage.Message)) {
		m := dnsmessage.Message{
			Header:    dnsmessage.Header{Response: true, RecursionAvailable: true},
			Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
		}
		change(&m)
		packed, err := m.Pack()
		require.NoError(f, err)
		for end := len(packed); end >= 10; end -= 5 { // also cut short
			f.Add(name, packed[:end])
		}
	}
	resource := func(body dnsmessage.ResourceBody) dnsmessage.Resource {
		return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: dnsmessage.ClassINET}, Body: body}
	}
	for rcode := range dnsmessage.RCode(16) {
		add(func(m *dnsmessage.Message) { m.RCode = rcode })
	}
	add(func(m *dnsmessage.Message) { m.RCode, m.Questions = dnsmessage.RCodeFormatError, nil })
	add(func(m *dnsmessage.Message) {
		m.Truncated = true
		m.Answers = []dnsmessage.Resource{
			resource(&dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("b.example.org.")}),
			resource(&dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}), resource(&dnsmessage.AResource{}),
			resource(&dnsmessage.AAAAResource{AAAA: [16]byte{0xfd, 15: 1}}), resource(&dnsmessage.UnknownResource{Type: 65, Data: []byte{1}}),
		}
	})
	add(func(m *dnsmessage.Message) {
		m.Questions[0].Type = dnsmessage.TypeAAAA
		m.Answers = []dnsmessage.Resource{resource(&dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("::ffff:0.0.0.0").As16()})}
	})

	f.Fuzz(func(t *testing.T, name string, message []byte) {
		overTCP := func(query, message []byte) (reply, error) {
			framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
			return roundTripTCP(stream{bytes.NewReader(framed), io.Discard}, query)
		}
		for recordType, is4 := range map[dnsmessage.Type]bool{dnsmessage.TypeA: true, dnsmessage.TypeAAAA: false} {
			query, err := newQuery(name, recordType, true)
			if err != nil || len(message) > maxMessage {
				continue
			}
			_, _ = roundTripTCP(stream{bytes.NewReader(message), io.Discard}, query) // without the length in front
			answer := bytes.Clone(message)
			copy(answer, query[:2]) // the ID
			reply, isReply := parseReply(query, answer)
			_, err = overTCP(query, answer)
			assert.Equal(t, isReply, err == nil)
			if !isReply {
				continue
			}
			addrs, err := reply.addresses(recordType)
			assert.Equal(t, err == nil, len(addrs) > 0, "%v %v", addrs, err)
			assert.LessOrEqual(t, len(addrs), maxAddresses)
			for _, addr := range addrs {
				assert.True(t, addr.Is4() == is4 && !addr.Unmap().IsUnspecified(), addr)
			}
		}
	})
}

func FuzzResolvConf(f *testing.F) {
	f.Add("search kube-system.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n", "google.com")
	f.Add("search svc.svc. svc. .\nnameserver [::1%eth0\ndomain\nnameserver\noptions use-vc\x00", "a.b.svc.c")
	f.Add("domain svc..svc.\r\nnameserver \u00a0\u2028 a", "..")
	f.Add("search "+strings.Repeat("svc.a ", 300)+strings.Repeat("a.", 300)+"\nnameserver 1", strings.Repeat("a", 300))

	f.Fuzz(func(t *testing.T, text, name string) {
		resolver := parseResolvConf(text)
		require.NotEmpty(t, resolver.Servers)
		for _, server := range resolver.Servers {
			_, port, err := net.SplitHostPort(server)
			assert.True(t, err != nil || port == "53", server)
		}
		domain := resolver.ClusterDomain()
		names, diagnosis := resolver.candidates(name)
		assert.Contains(t, names, strings.TrimSuffix(name, ".")+".")
		for _, candidate := range append(names, diagnosis...) {
			_, _ = newQuery(candidate, dnsmessage.TypeA, true)
		}
		for _, err := range []error{errNXDomain, errNotName, errTruncated, &dnsError{name: name, err: errNoData, fullName: domain}} {
			assert.NotEmpty(t, dnsRemedy(err, name, domain))
		}
		if query, err := largeQuery(domain, minLargeQuery); err == nil {
			assert.Len(t, query, minLargeQuery)
		}
	})
}

func FuzzEndpointSlice(f *testing.F) {
	f.Add(`{"addressType":"IPv4","ports":[{"name":"dns-tcp","protocol":"TCP","port":53}],"endpoints":[{"addresses":["10.0.0.1"],"nodeName":"a","zone":"b"}]}`)
	f.Add(`{"addressType":"FQDN","ports":[{"port":-1}],"endpoints":[{"addresses":["a.example"],"conditions":{"ready":false}}]}`)
	f.Add(`{"ports":[{"port":2147483647},{"protocol":null,"port":8080}],"endpoints":[{"addresses":[]},{"addresses":["fe80::1%eth0/x"]},null]}`)

	f.Fuzz(func(t *testing.T, text string) {
		var slice EndpointSlice
		if json.Unmarshal([]byte(text), &slice) != nil {
			return
		}
		texts := FormatEndpoints([]EndpointSlice{slice})
		ready, _, _ := endpoints([]EndpointSlice{slice})
		assert.Len(t, texts, len(ready))
		_, _ = ParseEndpoints(texts)
		assert.Len(t, SampleEndpoints(texts, "a", 2), min(2, len(texts)))
		sample := PeerSample{Node: "a", Size: 2}
		sample.Add(slice)
		for _, peer := range sample.Drawn() {
			assert.NotEqual(t, "a", peer.Node)
			assert.NotEmpty(t, peer.String())
		}
	})
}
