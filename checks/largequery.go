package checks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"golang.org/x/net/dns/dnsmessage"
)

// A path with a smaller MTU than the interface and without ICMP passes small packets and drops large ones, and with them
// those of every workload. A large query fills more than two segments, so that packets each way are as large as can be.
const (
	minLargeQuery = 2800  // its least length in bytes: more than one segment of an Ethernet frame
	maxMessage    = 65535 // the most bytes that a DNS message holds over TCP (RFC 1035, 4.2.2)

	errLargeQuery replyError = "a large query"           // an endpoint accepts connections and gets no large packets
	errTooLarge   replyError = "closes on a large query" // it gets them, and may refuse the size
)

// tcpState is what the kernel knows about a TCP connection.
type tcpState struct {
	segment      int // bytes of payload in a full packet (TCP_MAXSEG)
	acknowledged int // bytes that the peer has received, and 1 for the SYN
}

// exchangeLargeQuery asks the DNS server at the other end of a TCP connection for the API's service, in a query of at most
// limit bytes. CoreDNS pads its reply alike. Any reply proves the path. After errTooLarge a smaller query may get a reply.
func exchangeLargeQuery(ctx context.Context, conn net.Conn, domain string, limit int) error {
	before, known := readTCPState(conn)
	size := largeQuerySize(before.segment, limit)
	query, err := largeQuery(domain, size)
	if err != nil {
		return err
	}
	_, err = roundTrip(ctx, conn, query)
	after, _ := readTCPState(conn)
	// A server may also close because it has waited in vain for the query. Its kernel has then not received a full packet.
	isLost := known && after.acknowledged <= before.segment
	isClosed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case err == nil:
		return nil
	case isTimeout(err), isClosed && isLost:
		return fmt.Errorf("%w (%d bytes) got no reply: %w", errLargeQuery, size, short(err))
	case isClosed && size > minLargeQuery:
		return fmt.Errorf("%w (%d bytes): %w", errTooLarge, size, short(err))
	default:
		return fmt.Errorf("does not answer as a DNS server: %w", short(err))
	}
}

// largeQuerySize returns the length of a large query in bytes. Two more bytes make it more than two segments.
func largeQuerySize(segment, limit int) int { return min(max(2*segment, minLargeQuery), limit) }

// largeQuery packs a query of size bytes, filled up with the padding option (RFC 7830).
func largeQuery(domain string, size int) ([]byte, error) {
	name := "kubernetes.default.svc." + strings.TrimSuffix(domain, ".") + "."
	padding := dnsmessage.Option{Code: 12}
	query, err := newQuery(name, dnsmessage.TypeA, false, padding)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.TrimSuffix(name, "."), err)
	}
	padding.Data = make([]byte, size-len(query))
	return newQuery(name, dnsmessage.TypeA, false, padding)
}
