package recheck

import (
	"errors"
	"fmt"
	"time"

	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/condition"
)

var errRefused = errors.New("not now")

// model is a State with a clock and a Node: it does each step as internal/agent does. Its jitter is the mean.
type model struct {
	State
	node    Facts // as the API server has it
	now     time.Time
	failing []string // the checks that fail
	unknown bool     // a check cannot look
	refused error    // what the API server answers to a write
	removes bool     // another client removes the condition at once
	made    []checklist.Options
	did     []string // at the time since start: what was written
	start   time.Time
	steps   int
}

func defaults() Settings {
	return Settings{Interval: time.Minute, FailureThreshold: 3, RecoveryThreshold: 3, Random: func() float64 { return 0.5 }}
}

// shows is a verified node that was gated, and has this condition.
func shows(status, reason string) Facts {
	return Facts{Verified: true, Gated: true, Shown: Shown{status, condition.Parse(reason)}}
}

func retainted(f Facts) Facts {
	f.Retainted = true
	return f
}

// found continues on a node that an agent has found verified.
func found(s Settings, node Facts) *model {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &model{State: Found(s, node, start), node: node, now: start, start: start}
}

// read reads the Node.
func (m *model) read() Facts {
	facts := m.node
	facts.ReadAt = m.now
	return facts
}

func (m *model) look() { m.State = m.AfterLook(m.read(), m.now) }

// step does the next action when it is due.
func (m *model) step() (action Action) {
	if m.steps++; m.steps > 100_000 {
		panic("endless: the action that the test waits for is never due")
	}
	action, at := m.Next(m.now)
	if at.After(m.now) {
		m.now = at
	}
	switch action {
	case Round:
		m.round()
	case Look:
		m.look()
	case Write:
		m.write()
	}
	return action
}

// runFor does what is due within d.
func (m *model) runFor(d time.Duration) {
	for end := m.now.Add(d); ; m.step() {
		if action, at := m.Next(m.now); at.After(end) || action == Verify {
			m.now = end
			return
		}
	}
}

// untilRound takes the steps before the next round, and counts them.
func (m *model) untilRound() (steps int) {
	for m.step() != Round {
		steps++
	}
	return steps
}

// rounds makes rounds, and writes what each has found: of which each is a check that fails, or "".
func (m *model) rounds(failing ...string) {
	for _, check := range failing {
		m.failing = nil
		if check != "" {
			m.failing = []string{check}
		}
		m.untilRound()
		for {
			if action, at := m.Next(m.now); action != Write || at.After(m.now) {
				break
			}
			m.step()
		}
	}
}

func (m *model) round() {
	began := m.now
	options := m.Round(began)
	m.made = append(m.made, options)
	m.now = began.Add(time.Second)
	m.State = m.AfterRound(Results{Options: options, Began: began, Failed: m.failing, Message: "no route", Unknown: m.unknown}, m.read(), m.now)
}

func (m *model) write() {
	if m.now.Sub(m.facts.ReadAt) >= time.Minute {
		m.look()
	}
	show, read := m.Shows(m.now), m.facts
	var written Written
	if show.Condition != nil {
		written.Err = m.refused
	}
	if show.Condition != nil && m.refused == nil {
		m.node.Shown = Shown{show.Condition.Status, condition.Parse(show.Condition.Reason)}
		m.note(show.Condition.Status + " " + show.Condition.Reason)
		if m.removes {
			m.node.Shown = Shown{}
		}
		written.Condition, read = true, m.read()
	}
	if show.IsProven && read.Retainted {
		m.node.Retainted, read.Retainted = false, false
		m.note("failed taint removed")
	}
	m.State = m.AfterWrite(written, read, m.now)
}

func (m *model) note(text string) {
	m.did = append(m.did, fmt.Sprintf("%s %s", m.now.Sub(m.start), text))
}

// last returns how the last round was made.
func (m *model) last() checklist.Options { return m.made[len(m.made)-1] }

// next returns how the next round would be made.
func (m *model) next() checklist.Options { return m.Round(m.now) }
