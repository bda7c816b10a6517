package verification

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const initialTimeout = 5 * time.Minute

var (
	errBroken  = errors.New("broken")
	errRefused = errors.New("not now")
)

// model is a State with a clock and a Node: it applies events and writes as internal/agent does. Its jitter is the mean.
type model struct {
	State
	now, start time.Time
	node       Facts    // as the API server has it
	refused    error    // what the API server answers to a write
	lost       bool     // the answer to the patch that opens the node is lost
	did        []string // at the time since start: what was written
	opened     []time.Duration
	t          *testing.T
}

func settings() Settings {
	return Settings{InitialTimeout: initialTimeout, Opens: true, Random: func() float64 { return 0.5 },
		Keys: nodepatch.Keys{TaintKey: "node-ready/unverified", Label: "node-ready/verified", LabelValue: "true",
			WaitFor: []string{"cni.example/"}}}
}

func newModel(s Settings) *model {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := &model{now: start, start: start, node: Facts{UID: "a", Locked: true}}
	m.State = Begin(s, m.node, "", start)
	return m
}

func (m *model) apply(event Event) { m.State = m.After(event, m.now) }

// attempts makes an attempt of each check, of which each fails with err, or passes if that is nil.
func (m *model) attempts(err error, names ...string) {
	for _, name := range names {
		m.apply(Attempted{checks.Attempt{Check: name, Err: err}})
	}
}

// fails makes a round in which these checks fail.
func (m *model) fails(names ...string) { m.ends(false, names...) }

// ends makes a round in which these checks fail, and none after which the release fails. The condition may have to be corrected.
func (m *model) ends(corrects bool, names ...string) {
	m.attempts(errBroken, names...)
	failed := Failed{Err: errBroken, Facts: m.node, Corrects: corrects}
	if len(names) > 0 {
		failed.Round = round.Failure{Checks: names, Reasons: []string{strings.Join(names, ",") + " broken"}}
		failed.Err = failed.Round
	}
	m.apply(failed)
	if m.IsDue(m.now) {
		m.tick()
	}
}

// runFor lets time pass.
func (m *model) runFor(d time.Duration) {
	end := m.now.Add(d)
	for steps := 0; !m.Next().IsZero() && !m.Next().After(end); steps++ {
		if steps > 10_000 {
			panic("endless: a Tick stays due")
		}
		m.now = later(m.now, m.Next())
		m.tick()
	}
	m.now = end
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (m *model) tick() {
	m.apply(Tick{})
	show := m.Shows(m.now)
	if show.Finding.Message == "" {
		return
	}
	if show.Open {
		m.open()
	}
	if m.refused == nil {
		m.note("[%s] %s", strings.Join(show.Finding.Failed, ","), show.Finding.Message)
	}
	m.apply(Wrote{m.now, m.refused})
}

func (m *model) open() {
	opened := Opened{Before: m.node}
	if m.node.Locked && m.refused == nil {
		m.node.Locked, m.node.Opened = false, m.now
		opened.Why = "failed"
		m.opened = append(m.opened, m.now.Sub(m.start))
		m.note("opened")
		if !m.lost {
			opened.Now = m.node
		}
	}
	m.apply(opened)
}

func (m *model) roundOf(names ...string) round.Failure { return round.Failure{Checks: names} }

func (m *model) note(format string, args ...any) {
	m.did = append(m.did, fmt.Sprintf("%s "+format, append([]any{m.now.Sub(m.start)}, args...)...))
}
