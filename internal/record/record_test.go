package record

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

// Many accounts may write annotations.
//
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
		r, err := Parse(text)
		assert.True(t, err == nil || !WasGated(text, "", failed))
		assert.Equal(t, opened != "" || WasGated(text, "", failed), WasGated(text, opened, failed))
		require.NotEmpty(t, r.String(), "a record that was read can be written")
		again, err := Parse(r.String())
		require.NoError(t, err)
		assert.Equal(t, r.String(), again.String())
		kept := Record{Removed: []string{}, BootID: "b"}.Keeping(text, failed)
		assert.LessOrEqual(t, len(kept.String()), maxRecord)
		assert.False(t, WasRebooted(kept.String(), "b"))
	})
}
