package verdict

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Any pod can have any termination message, and many accounts may write annotations, conditions, and Events.

func FuzzVerdict(f *testing.F) {
	f.Add(string(Verdict{Verified: true, Node: "n", Duration: "1s", Attempts: map[string]int{"dns": 1}, Version: "1"}.text()))
	f.Add(string(Verdict{Node: "n", Failed: []string{"dns", "taints"}, Message: strings.Repeat("\x00ü", 4096)}.text()))
	f.Add(`{"verified":true,"node":"n","failed":["dns"]}`)
	f.Add(`{"node":1}`)
	f.Add("null")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := Parse(text)
		if err != nil {
			assert.Equal(t, Verdict{}, v)
			return
		}
		assert.NotEmpty(t, v.Node)
		assert.Equal(t, v.Verified, len(v.Failed) == 0)
		assert.NotEmpty(t, Reason(v.Failed))
	})
}

// FuzzRecord reads the annotations node-ready/verification and node-ready/opened.
func FuzzRecord(f *testing.F) {
	record := Record{Time: "2026-01-02T03:04:05Z", Duration: "1s", Attempts: map[string]int{"dns": 2}, Removed: []string{"a/b=c:NoSchedule"},
		Version: "1", Worker: "w", BootID: "b", Required: []string{"label a"}}
	f.Add(record.String(), "", "b")
	f.Add(Record{Opened: time.Unix(1, 0).UTC()}.String(), "2026-01-02T03:04:05Z", "")
	f.Add(`{"opened":"9999-12-31T23:59:59.999999999-23:59","removed":[""]}`, "soon", "b")
	f.Add(`{"bootID":"`, "", "b")
	f.Add(`{"removed":null,"attempts":{"":-1}}`, "\x00", "\"")
	f.Add("null", "", "b")
	f.Fuzz(func(t *testing.T, text, opened, bootID string) {
		const failed = "node-ready/failed"
		_, _ = WasRebooted(text, bootID), IsOpened(text)
		r, err := ParseRecord(text)
		assert.True(t, err == nil || !WasGated(text, "", failed))
		assert.Equal(t, opened != "" || WasGated(text, "", failed), WasGated(text, opened, failed))
		require.NotEmpty(t, r.String(), "a record that was read can be written")
		again, err := ParseRecord(r.String())
		require.NoError(t, err)
		assert.Equal(t, r.String(), again.String())
		kept := Record{Removed: []string{}, BootID: "b"}.Keeping(text, failed)
		assert.LessOrEqual(t, len(kept.String()), maxRecord)
		assert.False(t, WasRebooted(kept.String(), "b"))
	})
}

func FuzzMessage(f *testing.F) {
	f.Add(SinceMessage(time.Unix(1, 0), "dns: a: NXDOMAIN (check); service: b"))
	f.Add(TimeoutMessage(time.Minute, ""))
	f.Add(ReasonMessage(Silent, "kubelet is gone"))
	f.Add(RecheckMessage("peers: none"))
	f.Add("since : ; dns: (")
	f.Add(strings.Repeat("ü", MaxMessage))
	f.Fuzz(func(t *testing.T, text string) {
		m := ParseMessage(text)
		assert.True(t, m.Reason == NotVerified || MeaningOf(m.Reason).Reason != "", m.Reason)
		_, _ = ParseNoPod(text)
		assert.LessOrEqual(t, len(Shorten(text)), MaxMessage)
		assert.True(t, !utf8.ValidString(text) || utf8.ValidString(Shorten(text)))
	})
}
