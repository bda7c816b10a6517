package checks

import (
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

// Read byte by byte as RFC 1035, RFC 6891 and RFC 7830 have it.
func TestPaddedQuestion(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kubernetes.default.svc.cluster.local", "kubernetes.default.svc.a.very.long.cluster.domain.example."} {
		m, err := paddedQuestion(0xbeef, name)
		require.NoError(t, err)
		require.Len(t, m, 2+2800, "so that a frame is full")
		assert.Equal(t, uint16(2800), binary.BigEndian.Uint16(m), "length")
		m = m[2:]
		assert.Equal(t, []byte{0xbe, 0xef, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1}, m[:12], "a plain query with one question and one additional record")
		asked, kind := questionOf(m)
		assert.Equal(t, strings.TrimSuffix(name, ".")+".", asked)
		assert.Equal(t, uint16(typeA), kind)
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

func TestPaddedQuestionRefusesWhatIsNoName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "a..b", strings.Repeat("a", 64) + ".b"} {
		_, err := paddedQuestion(1, name)
		require.EqualError(t, err, name+": not a domain name")
	}
}

func TestAskPadded(t *testing.T) {
	t.Parallel()
	header := func(id []byte, flags byte) []byte {
		return append(append([]byte{}, id...), flags, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	for _, test := range []struct {
		name   string
		answer func(id []byte) []byte
		err    string
	}{
		{"an answer", func(id []byte) []byte { return header(id, 0x80) }, ""},
		{"a long answer", func(id []byte) []byte { return append(header(id, 0x80), make([]byte, 3000)...) }, ""},
		{"the answer to another question", func(id []byte) []byte { return header([]byte{id[0], id[1] ^ 1}, 0x80) }, "not a DNS answer"},
		{"the question again", func(id []byte) []byte { return header(id, 0) }, "not a DNS answer"},
		{"too short", func(id []byte) []byte { return header(id, 0x80)[:11] }, "not a DNS answer"},
		{"nothing at all", func([]byte) []byte { return []byte{} }, "not a DNS answer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			questions := make(chan []byte, 1)
			address := serving(t, "127.0.0.1", func(conn net.Conn) {
				question, err := readStream(conn)
				if err != nil {
					return
				}
				questions <- question
				answer := test.answer(question[:2])
				_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
			})
			conn := connected(t, address)

			err := askPadded(conn, "corp.example")

			assert.Equal(t, test.err, text(err))
			question := <-questions
			assert.Len(t, question, 2800)
			name, _ := questionOf(question)
			assert.Equal(t, "kubernetes.default.svc.corp.example.", name)
		})
	}
}

func TestAskPaddedOfWhatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	t.Run("says nothing", func(t *testing.T) {
		t.Parallel()
		conn := connected(t, accepting(t, "127.0.0.1"))
		require.NoError(t, conn.SetDeadline(time.Now().Add(100*time.Millisecond)))
		require.ErrorIs(t, askPadded(conn, "cluster.local"), os.ErrDeadlineExceeded)
	})
	t.Run("stops half way", func(t *testing.T) {
		t.Parallel()
		conn := connected(t, serving(t, "127.0.0.1", func(conn net.Conn) {
			_, _ = readStream(conn)
			_, _ = conn.Write([]byte{0, 100, 1})
		}))
		require.ErrorIs(t, askPadded(conn, "cluster.local"), io.ErrUnexpectedEOF)
	})
	t.Run("was closed before", func(t *testing.T) {
		t.Parallel()
		conn := connected(t, accepting(t, "127.0.0.1"))
		require.NoError(t, conn.Close())
		require.ErrorIs(t, askPadded(conn, "cluster.local"), net.ErrClosed)
	})
	t.Run("is asked for no name", func(t *testing.T) {
		t.Parallel()
		conn := connected(t, accepting(t, "127.0.0.1"))
		require.EqualError(t, askPadded(conn, "a..b"), "kubernetes.default.svc.a..b: not a domain name")
	})
}

func connected(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
