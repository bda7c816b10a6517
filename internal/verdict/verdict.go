// Package verdict is what agents, workers and the controller tell each other: a worker's verdict on its node, the record of a
// release, and the messages of Events.
package verdict

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// maxBytes is what kubelet keeps of a container's termination message.
const maxBytes = 4096

// Verdict is the outcome of a worker's round. As compact JSON it is the worker's termination message.
type Verdict struct {
	Verified bool           `json:"verified"`
	Node     string         `json:"node"`
	Duration string         `json:"duration"` // of the round, as time.ParseDuration reads it
	Attempts map[string]int `json:"attempts"` // of each check
	Failed   []string       `json:"failed,omitempty"`
	Message  string         `json:"message,omitempty"` // how the checks fail, with the remedies to try first
	Version  string         `json:"version"`
}

// Parse reads a termination message. The error says that it is not the verdict of a worker.
func Parse(text string) (Verdict, error) {
	var v Verdict
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return Verdict{}, fmt.Errorf("not the verdict of a worker: %w", err)
	}
	if v.Node == "" || v.Verified != (len(v.Failed) == 0) {
		return Verdict{}, errors.New("not the verdict of a worker: it names no node, or both passes and fails")
	}
	return v, nil
}

// Write writes the verdict to path, which must exist: kubelet mounts a container's termination log.
func (v Verdict) Write(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("termination message: %w", err)
	}
	_, err = file.Write(v.text())
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("termination message: %w", err)
	}
	return nil
}

// text returns the verdict as JSON of at most maxBytes: as much of the message as there is room for.
func (v Verdict) text() []byte {
	text, _ := json.Marshal(v) // of strings and numbers: it cannot fail
	message := v.Message
	for n := len(message); len(text) > maxBytes; {
		n -= 1 + (len(text)-maxBytes)/6 // one byte is six at most as JSON
		v.Message = strings.ToValidUTF8(message[:n], "") + "..."
		text, _ = json.Marshal(v)
	}
	return text
}

// Answer is what a worker with this key says once it has passed. The key proves that it is that worker who answers.
func Answer(key string) string { return strings.TrimSpace("verified " + key) }
