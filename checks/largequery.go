package checks

import (
	"context"
	"fmt"
	"net"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// largeQuerySize is the length in bytes of the large query: more than one segment of an Ethernet frame, so that at least one
// packet each way is as large as the interface allows. A path with a smaller MTU and without ICMP passes small packets and
// drops these, and with them those of every workload.
const largeQuerySize = 2800

// errLargeQuery marks an endpoint that accepts connections and gets no large packets.
const errLargeQuery replyError = "a large query"

// exchangeLargeQuery asks the DNS server at the other end of a TCP connection for the address of the API's service, in a
// large query. CoreDNS pads its reply alike. Any reply is a pass: it proves the path.
func exchangeLargeQuery(ctx context.Context, conn net.Conn, domain string) error {
	query, err := largeQuery(domain)
	if err != nil {
		return err
	}
	_, err = roundTrip(ctx, conn, query)
	return err
}

// largeQuery packs a query of largeQuerySize bytes, filled up with the padding option (RFC 7830).
func largeQuery(domain string) ([]byte, error) {
	const optionPadding = 12
	name := "kubernetes.default.svc." + strings.TrimSuffix(domain, ".") + "."
	padding := dnsmessage.Option{Code: optionPadding}
	query, err := newQuery(name, dnsmessage.TypeA, false, padding)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.TrimSuffix(name, "."), err)
	}
	padding.Data = make([]byte, largeQuerySize-len(query))
	return newQuery(name, dnsmessage.TypeA, false, padding)
}
