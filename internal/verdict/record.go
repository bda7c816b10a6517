package verdict

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Record is the value of the annotation of a released node: how it was verified. Both the agent and the controller write it.
type Record struct {
	Time     string         `json:"time"`               // of the release, RFC 3339
	Duration string         `json:"duration"`           // of the verification, as time.ParseDuration reads it
	Attempts map[string]int `json:"attempts,omitempty"` // of each check; a worker that still runs has not said them
	Removed  []string       `json:"removed"`            // taints, as kubectl taint writes them, by all releases of the Node
	Version  string         `json:"version"`            // of the program that has released the node
	Worker   types.UID      `json:"worker,omitempty"`   // whose verdict counted: it never counts again
}

// String returns the record as compact JSON.
func (r Record) String() string {
	text, _ := json.Marshal(r) // of strings and numbers: it cannot fail
	return string(text)
}

// ParseRecord reads what String has returned. The error is that of a text that something else has written.
func ParseRecord(text string) (r Record, err error) {
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Record{}, err
	}
	return r, nil
}

// After adds what earlier releases of the Node have removed, which its annotation tells: a node that is verified again was gated.
func (r Record) After(annotation string) Record {
	before, _ := ParseRecord(annotation)
	for _, taint := range before.Removed {
		if !slices.Contains(r.Removed, taint) {
			r.Removed = append(r.Removed, taint)
		}
	}
	return r
}

// WasGated reports whether a release that this record tells of removed a startup taint, under its present or a former key; the
// failed taint is none. A node that never had one is never to be re-tainted.
func WasGated(text, failedTaintKey string) bool {
	record, err := ParseRecord(text)
	return err == nil && slices.ContainsFunc(record.Removed, func(taint string) bool {
		key, _, _ := strings.Cut(taint, ":")
		key, _, _ = strings.Cut(key, "=")
		return key != failedTaintKey
	})
}
