package verdict

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// write writes v as a worker does, where kubelet has put a file, and returns what is in it.
func write(t *testing.T, v Verdict) string {
	path := filepath.Join(t.TempDir(), "termination-log")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("x", 5000)), 0o600))
	require.NoError(t, v.Write(path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func TestWriteAndParse(t *testing.T) {
	for text, v := range map[string]Verdict{
		`{"verified":true,"node":"node1","duration":"240ms","attempts":{"api":1,"dns":2},"version":"1.2.3"}`: {
			Verified: true, Node: "node1", Duration: "240ms", Attempts: map[string]int{"dns": 2, "api": 1}, Version: "1.2.3"},
		`{"verified":false,"node":"node1","duration":"31s","attempts":{"dns":6},"failed":["dns"],"message":"dns: timeout (ask)","version":"dev"}`: {
			Node: "node1", Duration: "31s", Attempts: map[string]int{"dns": 6}, Failed: []string{"dns"}, Message: "dns: timeout (ask)", Version: "dev"},
	} {
		assert.Equal(t, text, write(t, v))
		got, err := Parse(text)
		require.NoError(t, err)
		assert.Equal(t, v, got)
	}
}

// kubelet would cut a longer one itself, to what is no JSON.
func TestLongMessage(t *testing.T) {
	v := Verdict{Node: strings.Repeat("n", 253), Duration: "1s", Attempts: map[string]int{"dns": 1, "api": 1, "network": 1, "service": 1},
		Failed: []string{"dns", "api", "network", "service"}, Version: "dev"}
	for name, unit := range map[string]string{"ASCII": "a", "quotes": `"`, "runes": "é", "escapes": "<\x00"} {
		t.Run(name, func(t *testing.T) {
			cut := false
			for n := 1; n < 5000; n += 97 {
				v.Message = strings.Repeat(unit, n)
				text := write(t, v)
				require.LessOrEqual(t, len(text), maxBytes)
				got, err := Parse(text)
				require.NoError(t, err)
				kept, isCut := strings.CutSuffix(got.Message, "...")
				require.True(t, strings.HasPrefix(v.Message, kept))
				require.Equal(t, isCut, kept != v.Message)
				if isCut {
					require.Greater(t, len(text), maxBytes-12, "no more than it must")
				}
				cut = cut || isCut
			}
			assert.True(t, cut)
		})
	}
	v.Message = strings.Repeat("\xff", 5000)
	_, err := Parse(write(t, v))
	require.NoError(t, err)
}

func TestNoVerdict(t *testing.T) {
	for _, text := range []string{
		"", "panic: runtime error", "{}", `{"verified":true}`, `{"verified":true,"node":"n"} x`, `[]`, `{"verified":"true","node":"n"}`,
		`{"verified":true,"node":"n","failed":["dns"]}`, `{"verified":false,"node":"n"}`,
	} {
		_, err := Parse(text)
		assert.ErrorContains(t, err, "not the verdict of a worker", text)
	}
}

// Outside a pod there is no such file, and none is made.
func TestNoTerminationLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	assert.ErrorContains(t, Verdict{}.Write(path), "termination message: open "+path)
	assert.NoFileExists(t, path)
}

func TestMessages(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 1, 5, 0, time.FixedZone("", 3600))
	const failures, text = "dns: google.com: NXDOMAIN (no internet?); service: none", "google.com: NXDOMAIN"
	for message, want := range map[string]Message{
		SinceMessage(start, failures):                      {start.UTC(), "DNSFailed,ServiceFailed", text},
		TimeoutMessage(5*time.Minute, failures):            {time.Time{}, "DNSFailed,ServiceFailed", text},
		TimeoutMessage(5*time.Minute, ""):                  {time.Time{}, "NotVerified", "not verified within 5m0s"},
		RecheckMessage("peers: none answers (check)"):      {time.Time{}, "PeersFailed", "none answers"},
		ReasonMessage("Silent", "kubelet is gone"):         {time.Time{}, "Silent", "kubelet is gone"},
		ReasonMessage("DNSFailed,ServiceFailed", failures): {time.Time{}, "DNSFailed,ServiceFailed", text},
		failures: {time.Time{}, "DNSFailed,ServiceFailed", text},
		"node: label pool: the node has none (check)": {time.Time{}, "NodeFailed", "label pool: the node has none"},
		"patch: refused": {time.Time{}, "NotVerified", "patch: refused"},
		"":               {time.Time{}, "NotVerified", ""},
	} {
		assert.Equal(t, want, ParseMessage(message), message)
	}
}
