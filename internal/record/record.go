// Package record is the annotation of a released or opened node: what the agent or the controller has written there, and what
// follows from it.
package record

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// maxRecord is how long the chart's policy lets an annotation be.
const maxRecord = 16 << 10

// Record is the value of the annotation of a released node: how it was verified. Both the agent and the controller write it. An
// opened node has one, too: an agent has removed its startup taint, and nothing is proven.
type Record struct {
	Time     string         `json:"time,omitempty"`     // of the release, RFC 3339; empty where nothing is proven
	Opened   time.Time      `json:"opened,omitzero"`    // when an agent has opened the node (ON_TIMEOUT=open)
	Duration string         `json:"duration,omitempty"` // of the verification, as time.ParseDuration reads it
	Attempts map[string]int `json:"attempts,omitempty"` // of each check; a worker that still runs has not said them
	Removed  []string       `json:"removed"`            // taints, as kubectl taint writes them; see Keeping
	Version  string         `json:"version"`            // of the program that has released the node
	Worker   types.UID      `json:"worker,omitempty"`   // whose verdict counted: it never counts again
	BootID   string         `json:"bootID,omitempty"`   // of the boot that was verified
	Required []string       `json:"required,omitempty"` // what the node has met, as REQUIRE says it
}

// String returns the record as compact JSON.
func (r Record) String() string {
	text, _ := json.Marshal(r) // of strings and numbers: it cannot fail
	return string(text)
}

// Parse reads what String has returned. The error is that of a text that something else has written.
func Parse(text string) (r Record, err error) {
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Record{}, err
	}
	return r, nil
}

// WasRebooted reports whether a node that runs in a boot was verified in another one. A record without a boot id says nothing: an
// earlier version has written it. The chart's policy reads the text in the same way.
func WasRebooted(text, bootID string) bool {
	_, verified, found := strings.Cut(text, `"bootID":"`)
	return found && bootID != "" && !strings.HasPrefix(verified, bootID+`"`)
}

// IsOpened reports whether the record is of a node that an agent has opened, and not released since.
func IsOpened(text string) bool { return strings.Contains(text, `"opened":"`) }

// Keeping returns the record with the startup taints that the release before removed, if this one has removed none: a node that
// is verified again was gated all the same. What is too long for the policy is left out: the requirements, then the taints of the
// release before.
func (r Record) Keeping(before, failedTaintKey string) Record {
	own := r.Removed
	if len(startupTaints(own, failedTaintKey)) == 0 && len(before) <= maxRecord {
		last, _ := Parse(before) // an invalid one names none
		r.Removed = append(slices.Clip(own), startupTaints(last.Removed, failedTaintKey)...)
	}
	if len(r.String()) > maxRecord {
		r.Required = nil
	}
	if len(r.String()) > maxRecord { // somebody has written the last one
		r.Removed = own
	}
	return r
}

// Remember adds the lost requirements (those that are false in met) to the record in text, and returns the new text. It preserves
// the fields of a newer version. It returns "" if there is nothing to write because text is not a record, already names them, or
// would exceed the policy's limit.
func Remember(text string, met map[string]bool) string {
	record, err := Parse(text)
	var fields map[string]json.RawMessage
	if err != nil || json.Unmarshal([]byte(text), &fields) != nil || fields == nil {
		return ""
	}
	lost := slices.DeleteFunc(slices.Sorted(maps.Keys(met)), func(requirement string) bool {
		return met[requirement] || slices.Contains(record.Required, requirement)
	})
	fields["required"], _ = json.Marshal(append(record.Required, lost...)) // of strings: it cannot fail
	longer, _ := json.Marshal(fields)                                      // of valid JSON: it cannot fail
	if len(lost) == 0 || len(longer) > maxRecord {
		return ""
	}
	return string(longer)
}

// WasGated reports whether a node had a startup taint, under its present or a former key: its record tells of it (the failed
// taint does not count), or opened, the annotation that says when somebody has opened it, is not empty. A node that never had a
// startup taint is never to be re-tainted.
func WasGated(text, opened, failedTaintKey string) bool {
	record, err := Parse(text)
	return opened != "" || err == nil && len(startupTaints(record.Removed, failedTaintKey)) > 0
}

func startupTaints(removed []string, failedTaintKey string) []string {
	return slices.DeleteFunc(slices.Clone(removed), func(taint string) bool { return TaintKey(taint) == failedTaintKey })
}

// TaintKey returns the key of a taint as kubectl taint writes it: KEY=VALUE:EFFECT.
func TaintKey(taint string) string {
	key, _, _ := strings.Cut(strings.ReplaceAll(taint, "=", ":"), ":")
	return key
}
