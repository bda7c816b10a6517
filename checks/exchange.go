package checks

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// udpPayload is the size in bytes of the UDP replies that a query allows (EDNS0): no fragments (DNS flag day 2020).
const udpPayload = 1232

// replyError is why an exchange failed.
type replyError string

func (e replyError) Error() string { return string(e) }

const (
	errNXDomain     replyError = "NXDOMAIN"            // the name does not exist, for any record type (RFC 8020)
	errNoData       replyError = "no A or AAAA record" // NODATA: the name exists, without such a record (RFC 2308)
	errSinkhole     replyError = "only the address of a sinkhole (0.0.0.0 or ::)"
	errLameReferral replyError = "lame referral" // the server neither knows the name nor asks another server
	errMalformed    replyError = "malformed reply"
	errNotReply     replyError = "not a DNS reply"
	errNotName      replyError = "not a domain name"                      // nothing to ask for: DNS cannot hold it
	errTruncated    replyError = "UDP answer truncated, TCP query failed" // and the error over TCP
)

type reply struct {
	dnsmessage.Header
	answers       dnsmessage.Parser // at the first answer
	hasAdditional bool              // EDNS0 is one
}

// newQuery packs a query for one record type of name, which ends with a dot. The only error is errNotName (RFC 1035, 3.1).
func newQuery(name string, recordType dnsmessage.Type, recursion bool, options ...dnsmessage.Option) ([]byte, error) {
	var edns0 dnsmessage.ResourceHeader
	_ = edns0.SetEDNS0(udpPayload, dnsmessage.RCodeSuccess, false) // never fails
	asked, _ := dnsmessage.NewName(name)                           // empty if name is too long: Pack fails
	query := dnsmessage.Message{
		Header:      dnsmessage.Header{ID: uint16(rand.Uint32()), RecursionDesired: recursion},
		Questions:   []dnsmessage.Question{{Name: asked, Type: recordType, Class: dnsmessage.ClassINET}},
		Additionals: []dnsmessage.Resource{{Header: edns0, Body: &dnsmessage.OPTResource{Options: options}}},
	}
	packed, err := query.Pack()
	if err != nil {
		return nil, errNotName
	}
	return packed, nil
}

// exchange sends a packed query to server (host:port) over network, udp or tcp, until there is a reply, also a truncated one. It
// returns as soon as ctx ends.
func exchange(ctx context.Context, network, server string, query []byte) (reply, error) {
	r, err := hedge(ctx, pacingOf(ctx).between(hedgeParts), func(ctx context.Context) (reply, error) {
		return exchangeOnce(ctx, network, server, query)
	})
	return r, short(err)
}

func exchangeOnce(ctx context.Context, network, server string, query []byte) (reply, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, server)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = conn.Close() }()
	return roundTrip(ctx, conn, query)
}

func roundTrip(ctx context.Context, conn net.Conn, query []byte) (reply, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, isUDP := conn.(net.PacketConn); !isUDP {
		return roundTripTCP(conn, query)
	}
	if _, err := conn.Write(query); err != nil {
		return reply{}, err
	}
	buffer := make([]byte, 4096) // some servers send more than udpPayload
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return reply{}, err
		}
		// Anybody can send a packet with the server's address: ignore what is no reply to this query.
		if r, ok := parseReply(query, buffer[:n]); ok {
			return r, nil
		}
	}
}

// roundTripTCP sends and reads messages with their length before them (RFC 1035, 4.2.2).
func roundTripTCP(conn io.ReadWriter, query []byte) (reply, error) {
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		return reply{}, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return reply{}, err
	}
	message := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, message); err != nil {
		return reply{}, err
	}
	r, ok := parseReply(query, message)
	if !ok {
		return reply{}, errNotReply
	}
	return r, nil
}

// parseReply reads message up to its answers. False: it does not reply to query. Only an error may come without the question,
// as the FORMERR of a server that could not read the query.
func parseReply(query, message []byte) (reply, bool) {
	var sent, received dnsmessage.Parser
	want, _ := sent.Start(query)
	question, _ := sent.Question()
	header, err := received.Start(message)
	if err != nil || !header.Response || header.ID != want.ID {
		return reply{}, false
	}
	switch echoed, err := received.Question(); {
	case errors.Is(err, dnsmessage.ErrSectionDone) && header.RCode != dnsmessage.RCodeSuccess:
	case err != nil, echoed.Type != question.Type, echoed.Class != question.Class,
		!strings.EqualFold(echoed.Name.String(), question.Name.String()):
		return reply{}, false
	}
	if received.SkipAllQuestions() != nil {
		return reply{}, false
	}
	return reply{Header: header, answers: received, hasAdditional: binary.BigEndian.Uint16(message[10:]) > 0}, true
}

// addresses returns the first addresses in the answers of a record type, A or AAAA: a server follows CNAME records itself. The
// error is the response code, or errNoData, errSinkhole, errLameReferral or errMalformed.
func (r reply) addresses(recordType dnsmessage.Type) ([]netip.Addr, error) {
	if r.RCode != dnsmessage.RCodeSuccess {
		names := []replyError{1: "FORMERR", 2: "SERVFAIL", 3: errNXDomain, 4: "NOTIMP", 5: "REFUSED"} // RFC 1035, RFC 2136
		if int(r.RCode) < len(names) {
			return nil, names[r.RCode]
		}
		return nil, replyError(fmt.Sprintf("response code %d", r.RCode))
	}
	var addrs []netip.Addr
	records, none := 0, errNoData
	for ; ; records++ {
		header, err := r.answers.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		record, err := r.answers.UnknownResource() // fails after a malformed header too
		addr, isAddr := netip.AddrFromSlice(record.Data)
		switch {
		case err != nil:
			return nil, errMalformed
		case header.Type != recordType:
		case !isAddr || addr.Is4() != (recordType == dnsmessage.TypeA):
			return nil, errMalformed
		case addr.Unmap().IsUnspecified():
			none = errSinkhole
		case len(addrs) < maxAddresses: // an answer may have thousands
			addrs = append(addrs, addr)
		}
	}
	if records == 0 && !r.Authoritative && !r.RecursionAvailable && !r.hasAdditional {
		return nil, errLameReferral
	}
	if len(addrs) == 0 {
		return nil, none
	}
	return addrs, nil
}
