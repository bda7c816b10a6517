package verdict

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/checks"
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

func TestWasGated(t *testing.T) {
	for text, gated := range map[string]bool{
		Record{Removed: []string{"node-ready/unverified=true:NoSchedule"}}.String():                                    true,
		Record{Removed: []string{"former:NoSchedule"}}.String():                                                        true,
		Record{Removed: []string{"node-ready/failed=network:NoSchedule", "node-ready/unverified:NoSchedule"}}.String(): true,
		Record{Removed: []string{"node-ready/failed=network:NoSchedule"}}.String():                                     false,
		Record{Removed: []string{"node-ready/failed:NoSchedule"}}.String():                                             false,
		Record{Removed: []string{}}.String():                                                                           false,
		Record{}.String():                                                                                              false,
		"":                                                                                                             false,
		"written by hand":                                                                                              false,
	} {
		assert.Equal(t, gated, WasGated(text, "", "node-ready/failed"), text)
	}
	assert.True(t, WasGated(Record{Removed: []string{}}.String(), "2026-11-24T19:00:00Z", "node-ready/failed"), "somebody has opened it before its release")
}

func TestWasRebooted(t *testing.T) {
	for text, rebooted := range map[string]bool{
		Record{BootID: "a"}.String():  true,
		Record{BootID: "b"}.String():  false,
		Record{BootID: "b2"}.String(): true,
		Record{}.String():             false, // of an earlier version
		"":                            false,
		"written by hand":             false,
	} {
		assert.Equal(t, rebooted, WasRebooted(text, "b"), text)
		assert.False(t, WasRebooted(text, ""), "kubelet has not reported it")
	}
}

// A node that is verified again was gated all the same. Neither the failed taint nor a list that grows is kept.
func TestRecordKeepsThatTheNodeWasGated(t *testing.T) {
	const startup, failed = "node-ready/unverified=true:NoSchedule", "node-ready/failed=dns:NoSchedule"
	for _, test := range []struct{ before, removed, want []string }{
		{[]string{startup}, []string{}, []string{startup}},
		{[]string{failed, startup}, []string{failed}, []string{failed, startup}},
		{[]string{"former:NoSchedule"}, []string{startup}, []string{startup}},
		{[]string{failed}, []string{}, []string{}},
		{nil, []string{}, []string{}},
	} {
		got := Record{Removed: test.removed}.Keeping(Record{Removed: test.before}.String(), "node-ready/failed")
		assert.Equal(t, test.want, got.Removed)
	}
	assert.Contains(t, Record{Removed: []string{}}.Keeping("", "node-ready/failed").String(), `"removed":[]`)
}

// The policy allows 16 KiB: too many requirements are left out, and a long record does not hide that the node was gated.
func TestRecordOfRequirements(t *testing.T) {
	const startup, failed = "node-ready/unverified=true:NoSchedule", "node-ready/failed"
	long := slices.Repeat([]string{"label example.com/name"}, 600)
	record := Record{Removed: []string{startup}, BootID: "a", Required: long}
	assert.Equal(t, record, record.Keeping("", failed))
	assert.Equal(t, Record{Removed: []string{startup}}, Record{}.Keeping(record.String(), failed))
	assert.False(t, WasRebooted(record.String(), "a"))
	assert.Empty(t, Record{Required: append(long, long...)}.Keeping("", failed).Required)
	assert.Empty(t, Record{}.Keeping(Record{Removed: append(long, long...)}.String(), failed).Removed)
}

// Only a record is extended, and only as far as the policy allows.
func TestRemember(t *testing.T) {
	record := Record{Time: "2026-01-02T03:04:05Z", Removed: []string{"a:NoSchedule"}, Worker: "w", BootID: "b", Required: []string{"label a"}}
	want := record
	want.Required = []string{"label a", "label b", "label c"}
	lost := map[string]bool{"label c": false, "label a": false, "label b": false, "label d": true}
	assert.JSONEq(t, want.String(), Remember(record.String(), lost))
	longer := Remember(`{"later":{"a":[1]},`+strings.TrimPrefix(record.String(), "{"), lost)
	assert.JSONEq(t, `{"later":{"a":[1]},`+strings.TrimPrefix(want.String(), "{"), longer, "of a newer version")
	assert.True(t, WasRebooted(longer, "another"))
	assert.False(t, WasRebooted(longer, "b"))
	assert.Empty(t, Remember(record.String(), map[string]bool{"label a": false, "label d": true}), "nothing is new")
	assert.Empty(t, Remember(record.String(), nil))
	assert.Empty(t, Remember("", map[string]bool{"label b": false}), "there is no record")
	assert.Empty(t, Remember("null", map[string]bool{"label b": false}), "nor is this one")
	assert.Empty(t, Remember("written by hand", map[string]bool{"label b": false}))
	assert.Empty(t, Remember(record.String(), map[string]bool{strings.Repeat("x", maxRecord): false}))
}

func TestMessages(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 1, 5, 0, time.FixedZone("", 3600))
	const failures, text = "dns: google.com: NXDOMAIN (no internet?); service: none", "google.com: NXDOMAIN"
	for message, want := range map[string]Message{
		SinceMessage(start, failures):                      {start.UTC(), "DNSFailed,ServiceFailed", text},
		TimeoutMessage(5*time.Minute, failures):            {time.Time{}, "DNSFailed,ServiceFailed", text},
		TimeoutMessage(5*time.Minute, ""):                  {time.Time{}, NotVerified, "not verified within 5m0s"},
		RecheckMessage("peers: none answers (check)"):      {time.Time{}, PeersFailed, "none answers"},
		ReasonMessage(Silent, "kubelet is gone"):           {time.Time{}, Silent, "kubelet is gone"},
		ReasonMessage("DNSFailed,ServiceFailed", failures): {time.Time{}, "DNSFailed,ServiceFailed", text},
		failures: {time.Time{}, "DNSFailed,ServiceFailed", text},
		"node: label pool: the node has none (check)": {time.Time{}, NodeFailed, "label pool: the node has none"},
		"patch: refused": {time.Time{}, NotVerified, "patch: refused"},
		"":               {time.Time{}, NotVerified, ""},
	} {
		assert.Equal(t, want, ParseMessage(message), message)
	}
	why, remedy := ParseNoPod(NoPodMessage("the label a=b keeps the agent away", "remove the label"))
	assert.Equal(t, []string{"the label a=b keeps the agent away", "remove the label"}, []string{why, remedy})
	why, remedy = ParseNoPod("no remedy")
	assert.Equal(t, []string{"no remedy", ""}, []string{why, remedy})
}

func TestReason(t *testing.T) {
	for want, failed := range map[string][]string{
		"NotVerified":             nil,
		"DNSFailed":               {"dns"},
		"DNSFailed,ServiceFailed": {"service", "dns"},
		"DNSFailed,APIFailed,NetworkFailed,ServiceFailed,PeersFailed": {"dns", "api", "network", "service", "peers"},
	} {
		assert.Equal(t, want, Reason(failed))
		assert.True(t, IsAgents(want))
	}
	for _, check := range checks.Names() {
		assert.NotEqual(t, NotVerified, Reason([]string{check}), "a check without a reason")
	}
}

func TestReasonsOfOthers(t *testing.T) {
	assert.True(t, IsAgents("Verified"))
	assert.True(t, IsAgents("TaintsOfOthers"))
	for _, reason := range []string{"", "NoPod", "ImagePull", "Silent", "DNS", "DNSFailedToo"} {
		assert.False(t, IsAgents(reason), reason)
	}
}
