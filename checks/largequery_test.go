package checks

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Byte by byte as RFC 1035, RFC 6891 and RFC 7830 have it.
func TestLargeQuery(t *testing.T) {
	t.Parallel()
	for _, domain := range []string{"cluster.local", "a.very.long.cluster.domain.example."} {
		m, err := largeQuery(domain, 2800)
		require.NoError(t, err)
		require.Len(t, m, 2800)
		assert.Equal(t, []byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 1}, m[2:12], "a query without recursion, with one question and one additional record")
		name, recordType := questionOf(m)
		assert.Equal(t, "kubernetes.default.svc."+strings.TrimSuffix(domain, ".")+".", name)
		assert.Equal(t, uint16(typeA), recordType)
		rest := m[questionEnd(m):]
		assert.Equal(t, []byte{0, 41}, rest[1:3], "OPT")
		assert.Zero(t, rest[0], "of the root")
		assert.Equal(t, []byte{0, 0, 0, 0}, rest[5:9], "extended response code, version, flags")
		require.Equal(t, len(rest)-11, int(binary.BigEndian.Uint16(rest[9:])), "length of the options")
		assert.Equal(t, uint16(12), binary.BigEndian.Uint16(rest[11:]), "padding")
		require.Equal(t, len(rest)-15, int(binary.BigEndian.Uint16(rest[13:])), "length of the padding")
		assert.Equal(t, make([]byte, len(rest)-15), rest[15:])
	}
}

func TestLargeQuerySize(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ segment, limit, want int }{
		{0, 65535, 2800}, // not known
		{1200, 65535, 2800},
		{1448, 65535, 2896},
		{1448, 2800, 2800},
		{8949, 65535, 17898},
		{40000, 65535, 65535},
		{40000, 2800, 2800},
	} {
		assert.Equal(t, test.want, largeQuerySize(test.segment, test.limit))
	}
	query, err := largeQuery("cluster.local", 65535)
	require.NoError(t, err)
	assert.Len(t, query, 65535)
}

func TestExchangeLargeQuery(t *testing.T) {
	t.Parallel()
	header := func(id []byte, flags byte) []byte {
		return append(append([]byte{}, id...), flags, formErr, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	for _, test := range []struct {
		name  string
		reply func(id []byte) []byte
		err   string
	}{
		{"a reply", func(id []byte) []byte { return header(id, 0x80) }, ""},
		{"a long reply", func(id []byte) []byte { return append(header(id, 0x80), make([]byte, 3000)...) }, ""},
		{"the reply to another query", func(id []byte) []byte { return header([]byte{id[0], id[1] ^ 1}, 0x80) }, "does not answer as a DNS server: not a DNS reply"},
		{"NOERROR, and no question", func(id []byte) []byte { return []byte{id[0], id[1], 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0} }, "does not answer as a DNS server: not a DNS reply"},
		{"the query again", func(id []byte) []byte { return header(id, 0) }, "does not answer as a DNS server: not a DNS reply"},
		{"too short", func(id []byte) []byte { return header(id, 0x80)[:11] }, "does not answer as a DNS server: not a DNS reply"},
		{"an empty message", func([]byte) []byte { return []byte{} }, "does not answer as a DNS server: not a DNS reply"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			queries := make(chan []byte, 1)
			address := servingEthernet(t, func(conn net.Conn) {
				query, err := readStream(conn)
				if err != nil {
					return
				}
				queries <- query
				writeStream(conn, test.reply(query[:2]))
			})
			conn := connected(t, address)

			err := exchangeLargeQuery(limited(t, enough), conn, "corp.example", maxMessage)

			assert.Equal(t, test.err, text(err))
			query := receive(t, queries)
			assert.Len(t, query, 2*1448, "with the two bytes of its length more than two packets")
			name, _ := questionOf(query)
			assert.Equal(t, "kubernetes.default.svc.corp.example.", name)
		})
	}
}

func TestExchangeLargeQueryWithoutAReply(t *testing.T) {
	t.Parallel()
	t.Run("silence", func(t *testing.T) {
		t.Parallel()
		conn := connected(t, accepting(t, "127.0.0.1"))
		require.ErrorIs(t, exchangeLargeQuery(limited(t, 100*time.Millisecond), conn, "cluster.local", maxMessage), os.ErrDeadlineExceeded)
	})
	t.Run("a shutdown ends the wait", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		conn := connected(t, serving(t, "127.0.0.1", func(conn net.Conn) {
			_, _ = readStream(conn)
			cancel()
			_, _ = io.Copy(io.Discard, conn)
		}))
		require.ErrorIs(t, exchangeLargeQuery(ctx, conn, "cluster.local", maxMessage), os.ErrDeadlineExceeded)
	})
	t.Run("half a reply", func(t *testing.T) {
		t.Parallel()
		conn := connected(t, serving(t, "127.0.0.1", func(conn net.Conn) {
			_, _ = readStream(conn)
			_, _ = conn.Write([]byte{0, 100, 1})
		}))
		require.ErrorIs(t, exchangeLargeQuery(limited(t, enough), conn, "cluster.local", maxMessage), io.ErrUnexpectedEOF)
	})
	t.Run("closed before", func(t *testing.T) {
		t.Parallel()
		conn := connected(t, accepting(t, "127.0.0.1"))
		require.NoError(t, conn.Close())
		require.ErrorIs(t, exchangeLargeQuery(limited(t, enough), conn, "cluster.local", maxMessage), net.ErrClosed)
	})
	t.Run("no name to ask for", func(t *testing.T) {
		t.Parallel()
		conn := connected(t, accepting(t, "127.0.0.1"))
		require.EqualError(t, exchangeLargeQuery(limited(t, enough), conn, "a..b", maxMessage), "kubernetes.default.svc.a..b: not a domain name")
	})
}

func connected(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
