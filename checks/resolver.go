package checks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Resolver asks name servers itself, question by question, because the verdict needs to know what
// the resolver of package net does not tell: which server it was, and what exactly it answered.
// The exchange on the wire is still package net's (RFC 1035, with TCP after a truncated answer).
type Resolver struct {
	Servers []string // host:port, in order of preference
	Search  []string // domains without the final dot
}

// resolvConf is where kubelet (and every libc) puts the name servers; see resolv.conf(5).
const resolvConf = "/etc/resolv.conf"

// SystemResolver asks as /etc/resolv.conf says.
func SystemResolver() (Resolver, error) {
	file, err := os.Open(resolvConf)
	if err != nil {
		return Resolver{}, err
	}
	defer func() { _ = file.Close() }()
	return ParseResolvConf(file)
}

// ParseResolvConf reads name servers and search list from the text of a resolv.conf(5).
func ParseResolvConf(r io.Reader) (Resolver, error) {
	var out Resolver
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			out.Servers = append(out.Servers, net.JoinHostPort(fields[1], "53"))
		case "search", "domain": // the last one counts
			out.Search = nil
			for _, domain := range fields[1:] {
				if domain = strings.TrimSuffix(domain, "."); domain != "" {
					out.Search = append(out.Search, domain)
				}
			}
		}
	}
	if len(out.Servers) == 0 {
		out.Servers = []string{"127.0.0.1:53"} // what resolv.conf(5) says about a file without any
	}
	return out, lines.Err()
}

// ClusterDomain returns the cluster's DNS domain, which kubelet puts on the search list as
// svc.<domain>, or "" where the list has none (a desk, a pod with dnsPolicy Default).
func (r Resolver) ClusterDomain() string {
	for _, domain := range r.Search {
		if rest, ok := strings.CutPrefix(domain, "svc."); ok {
			return rest
		}
	}
	return ""
}

// candidates lists the absolute names that name may stand for, in the order in which to ask. A
// name with a dot is asked as written first: with ndots:5, which kubelet sets, it would
// otherwise cost a query for each domain of the search list before that. Not so one that ends in
// .svc, which is no domain of the internet: where that is a black hole, the question would cost the whole attempt.
func (r Resolver) candidates(name string) []string {
	if strings.HasSuffix(name, ".") {
		return []string{name}
	}
	var searched []string
	for _, domain := range r.Search {
		searched = append(searched, name+"."+domain+".")
	}
	if strings.Contains(name, ".") && !strings.HasSuffix(name, ".svc") {
		return append([]string{name + "."}, searched...)
	}
	return append(searched, name+".")
}

// lookup resolves name to addresses: those of the family that answers first, or with every all
// there are. Warnings name the servers that failed although another one answered. The failure is
// about the name as it was asked first, unless the servers know of that and not of a later one.
func (r Resolver) lookup(ctx context.Context, name string, every bool) (addrs []netip.Addr, warnings []string, failed *dnsError) {
	// A lost packet must not cost the whole attempt, so there is time for three tries.
	wait := time.Second
	if deadline, ok := ctx.Deadline(); ok {
		wait = time.Until(deadline) / time.Duration(max(3, len(r.Servers)))
	}
	for _, candidate := range r.candidates(name) {
		addrs, warned, failure := r.resolve(ctx, candidate, wait, every)
		warnings = append(warnings, warned...)
		if failure == nil {
			return addrs, warnings, nil
		}
		if failed == nil || (failed.definite() && !failure.definite()) {
			failed = failure
		}
		if ctx.Err() != nil {
			break
		}
		if failure.definite() {
			// The server that knew is asked first from now on: a dead one before it would cost
			// as much again for every domain of the search list.
			r.Servers = slices.Concat([]string{failure.server},
				slices.DeleteFunc(slices.Clone(r.Servers), func(s string) bool { return s == failure.server }))
		}
	}
	return nil, nil, failed
}

// resolve asks the servers in turn for one absolute name, each for at most wait, until one of them
// knows, or each has refused, or ctx ends.
func (r Resolver) resolve(ctx context.Context, name string, wait time.Duration, every bool) (addrs []netip.Addr, warnings []string, failed *dnsError) {
	failures := make(map[string]*dnsError)
	for try := 0; ; try++ {
		server := r.Servers[try%len(r.Servers)]
		addrs, failure := ask(ctx, server, name, wait, every)
		if failure == nil || failure.definite() {
			for _, other := range r.Servers {
				if f := failures[other]; f != nil && other != server {
					warnings = append(warnings, f.Error())
				}
			}
			return addrs, warnings, failure
		}
		// What a server says counts more than its silence, before it or after it, at the deadline.
		if before := failures[server]; before == nil || before.timeout {
			failures[server] = failure
		}
		worthAsking := slices.ContainsFunc(r.Servers, func(s string) bool { return failures[s] == nil || failures[s].timeout })
		if ctx.Err() != nil || !worthAsking {
			break
		}
	}
	if len(failures) == 1 {
		return nil, nil, failures[r.Servers[0]]
	}
	failed = &dnsError{name: name}
	var all []string
	for _, server := range r.Servers {
		if f := failures[server]; f != nil {
			all = append(all, f.server+": "+f.answer)
			failed.timeout = failed.timeout || f.timeout
			failed.truncated = failed.truncated || f.truncated
			failed.refused = failed.refused || f.refused
		}
	}
	failed.answer = strings.Join(all, ", ")
	return nil, nil, failed
}

// ask puts one absolute name to one server, for A and AAAA at once. One of them is enough, unless
// every address is wanted.
func ask(ctx context.Context, server, name string, wait time.Duration, every bool) ([]netip.Addr, *dnsError) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	type answer struct {
		addrs   []netip.Addr
		failure *dnsError
	}
	answers := make(chan answer, 2)
	for _, family := range []string{"ip4", "ip6"} {
		go func() {
			var heard wire
			addrs, err := heard.resolver(server).LookupNetIP(ctx, family, name)
			if err == nil {
				answers <- answer{addrs: addrs}
				return
			}
			answers <- answer{failure: heard.failure(server, name, err)}
		}()
	}
	one := <-answers
	if one.failure == nil && !every {
		return one.addrs, nil
	}
	two := <-answers
	if one.failure == nil || two.failure == nil {
		return append(one.addrs, two.addrs...), nil
	}
	// NXDOMAIN is about the name, whatever the family (RFC 8020). No record of one family says
	// nothing yet about the other.
	if two.failure.nxdomain || one.failure.noRecord {
		return nil, two.failure
	}
	return nil, one.failure
}

// dnsError says what a server answered about a name. Its kinds are those of RFC 1035 and RFC 2308.
type dnsError struct {
	name, server string // without a server: the answer names several
	answer       string // NXDOMAIN, SERVFAIL, timeout, …
	timeout      bool
	truncated    bool // over UDP, and TCP failed
	refused      bool // the connection, that is; not the answer REFUSED
	nxdomain     bool
	noRecord     bool // NOERROR without an address (NODATA)
	spoken       bool // the server gave a well-formed answer, whatever it says
}

func (e *dnsError) Error() string {
	if e.server == "" {
		return fmt.Sprintf("%s: %s", strings.TrimSuffix(e.name, "."), e.answer)
	}
	return fmt.Sprintf("%s: %s from name server %s", strings.TrimSuffix(e.name, "."), e.answer, e.server)
}

// definite tells whether the server knows that the name has no address.
func (e *dnsError) definite() bool { return e.nxdomain || e.noRecord }

// wire listens in on one question of package net's resolver: the errors of that are for callers
// that do not care what a server said.
type wire struct {
	mu        sync.Mutex
	id        [2]byte // of the question
	answered  bool    // a well-formed answer came
	rcode     byte
	truncated bool // over UDP, and TCP has not answered yet
	err       error
}

func (w *wire) resolver(server string) *net.Resolver {
	return &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, server)
			if err != nil {
				w.note(err)
				return nil, err
			}
			if udp, ok := conn.(*net.UDPConn); ok { // package net tells UDP from TCP by this type's methods
				return udpWire{udp, w}, nil
			}
			return &tcpWire{Conn: conn, wire: w}, nil
		},
	}
}

type udpWire struct {
	*net.UDPConn
	wire *wire
}

func (c udpWire) Write(b []byte) (int, error) {
	c.wire.asked(b)
	return c.UDPConn.Write(b)
}

func (c udpWire) Read(b []byte) (int, error) {
	n, err := c.UDPConn.Read(b)
	if err != nil {
		c.wire.note(err)
	} else {
		c.wire.header(b[:n])
	}
	return n, err
}

// lengthPrefix is the size of what comes before a message over TCP (RFC 1035, 4.2.2).
const lengthPrefix = 2

type tcpWire struct {
	net.Conn
	wire  *wire
	heard []byte // the one answer, so far
}

func (c *tcpWire) Write(b []byte) (int, error) {
	c.wire.asked(b[lengthPrefix:])
	return c.Conn.Write(b)
}

func (c *tcpWire) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.wire.note(err)
		return n, err
	}
	// A stream comes in pieces of any size.
	c.heard = append(c.heard, b[:n]...)
	c.wire.header(c.heard[min(lengthPrefix, len(c.heard)):])
	return n, err
}

// headerLength is that of a DNS message (RFC 1035, 4.1.1).
const headerLength = 12

func (w *wire) asked(question []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	copy(w.id[:], question)
}

func (w *wire) note(err error) {
	// package net cancels its own dial when the question's time is over. Only the error that it
	// returns then says that this was a timeout.
	if errors.Is(err, context.Canceled) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func (w *wire) header(message []byte) {
	const response, truncation, rcode = 0x80, 0x02, 0x0f
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(message) < headerLength || !bytes.HasPrefix(message, w.id[:]) || message[2]&response == 0 {
		return
	}
	w.answered = true
	w.truncated = message[2]&truncation != 0
	w.rcode = message[3] & rcode
	w.err = nil
}

// failure puts what was heard into the words of the protocol.
func (w *wire) failure(server, name string, err error) *dnsError {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := &dnsError{name: name, server: server, spoken: w.answered}
	if w.err != nil {
		err = w.err
	}
	reply, _ := errors.AsType[*net.DNSError](err)
	rcodes := map[byte]string{1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
	switch {
	case w.answered && w.truncated:
		e.answer = "truncated answer over UDP, and over TCP " + short(err).Error()
		e.truncated = true
		e.timeout = isTimeout(err)
	case w.err == nil && w.answered && w.rcode != 0:
		e.answer = rcodes[w.rcode]
		if e.answer == "" {
			e.answer = fmt.Sprintf("response code %d", w.rcode)
		}
		e.nxdomain = w.rcode == 3
	case w.answered && reply != nil && reply.IsNotFound:
		e.answer = "no A or AAAA record"
		e.noRecord = true
	default:
		e.answer = short(err).Error()
		e.timeout = isTimeout(err)
		e.refused = errors.Is(err, syscall.ECONNREFUSED)
	}
	return e
}
