package checks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
)

// paddedSize is the length in bytes of the question that a DNS endpoint is asked over TCP: more
// than a segment of an Ethernet frame holds, so that at least one packet each way is as large as
// the interface allows. A path with a smaller MTU that does not say so lets small packets pass
// and loses these, and with them every real workload's.
const paddedSize = 2800

// askPadded asks the DNS server at the other end of conn for the address of the API's service, in
// a message padded to paddedSize (RFC 7830; over TCP: RFC 1035, 4.2.2), and waits for an answer.
// CoreDNS pads its answer alike. Any well-formed answer is good: it is the path that is asked about.
func askPadded(conn net.Conn, domain string) error {
	id := uint16(rand.Uint32())
	question, err := paddedQuestion(id, "kubernetes.default.svc."+domain)
	if err != nil {
		return err
	}
	if _, err := conn.Write(question); err != nil {
		return err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return err
	}
	answer := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	const response = 0x80
	if len(answer) < headerLength || binary.BigEndian.Uint16(answer) != id || answer[2]&response == 0 {
		return errors.New("not a DNS answer")
	}
	return nil
}

// paddedQuestion builds the message with its length in front.
func paddedQuestion(id uint16, name string) ([]byte, error) {
	const (
		typeA, typeOPT, classINET = 1, 41, 1
		optionPadding             = 12
		udpPayload                = 4096
	)
	m := make([]byte, 2, 2+paddedSize)
	m = binary.BigEndian.AppendUint16(m, id)
	m = append(m, 0, 0)                   // a plain query; recursion is not wanted
	m = append(m, 0, 1, 0, 0, 0, 0, 0, 1) // one question, one additional record
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if len(label) == 0 || len(label) > 63 {
			return nil, fmt.Errorf("%s: not a domain name", name)
		}
		m = append(m, byte(len(label)))
		m = append(m, label...)
	}
	m = append(m, 0)
	m = binary.BigEndian.AppendUint16(m, typeA)
	m = binary.BigEndian.AppendUint16(m, classINET)
	// The OPT record (RFC 6891): root name, type, payload size, extended flags, then its options.
	m = append(m, 0)
	m = binary.BigEndian.AppendUint16(m, typeOPT)
	m = binary.BigEndian.AppendUint16(m, udpPayload)
	m = append(m, 0, 0, 0, 0)
	padding := 2 + paddedSize - len(m) - 2 - 4 // what is left after both lengths below
	m = binary.BigEndian.AppendUint16(m, uint16(padding+4))
	m = binary.BigEndian.AppendUint16(m, optionPadding)
	m = binary.BigEndian.AppendUint16(m, uint16(padding))
	m = append(m, make([]byte, padding)...)
	binary.BigEndian.PutUint16(m, uint16(len(m)-2))
	return m, nil
}
