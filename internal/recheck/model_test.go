package recheck

import (
	"errors"
	"fmt"
	"time"

	"github.com/imunhatep/kube-node-ready/internal/checklist"
)

var errRefused = errors.New("not now")

// model is a State with a clock and a Node: it does each step as internal/agent does. Its jitter is the mean.
type model struct {
	State
	node    Facts // as the API server has it
	now     time.Time
	failing []string // the checks that fail
	refused error    // what the API server answers to a write
	mute    bool     // Events are not sent
	made    []checklist.Options
	did     []string // at the time since start: what was written
	start   time.Time
}

func defaults() Settings {
	return Settings{Interval: time.Minute, FailureThreshold: 3, RecoveryThreshold: 3, Random: func() float64 { return 0.5 }}
}

// shows is a verified node that was gated, and has this condition.
func shows(status, reason string) Facts {
	return Facts{Verified: true, Gated: true, Shown: Shown{status, reason}}
}

func retainted(f Facts) Facts {
	f.Retainted = true
	return f
}

// found continues on a node that an agent has found verified.
func found(s Settings, node Facts) *model {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &model{State: New(s, node, false, false, start), node: node, now: start, start: start}
}

// read reads the Node.
func (m *model) read() Facts {
	facts := m.node
	facts.ReadAt = m.now
	return facts
}

// step does the next step when it is due.
func (m *model) step() (step Step) {
	step, at := m.Next(m.now)
	if at.After(m.now) {
		m.now = at
	}
	switch step {
	case Round:
		m.round()
	case Look:
		m.State = m.SeenBetweenRounds(m.read()).Looked(m.now)
	case Write:
		m.write()
	}
	return step
}

// runFor does what is due within d.
func (m *model) runFor(d time.Duration) {
	for end := m.now.Add(d); ; m.step() {
		if step, at := m.Next(m.now); at.After(end) || step == Verify {
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
			if step, at := m.Next(m.now); step != Write || at.After(m.now) {
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
	facts := m.read()
	m.State = m.Seen(facts).RoundEnded(Results{Options: options, Began: began, Failed: m.failing, Message: "no route"}, m.now)
}

func (m *model) write() {
	if m.now.Sub(m.facts.ReadAt) >= time.Minute {
		m.State = m.SeenBetweenRounds(m.read())
	}
	if m.facts.Untouchable != "" {
		m.State = m.WroteNothing()
		return
	}
	err := m.refused
	if condition, isDue := m.Condition(m.now); isDue {
		facts := m.facts
		if err == nil {
			m.node.Shown = Shown{condition.Status, condition.Reason}
			m.note(condition.Status + " " + condition.Reason)
			facts = m.read()
		}
		m.State = m.WroteCondition(facts, err, m.now)
	}
	if m.RemovesFailedTaint() {
		m.node.Retainted = false
		m.note("failed taint removed")
		m.State = m.Seen(m.read())
	}
	m.State = m.Wrote(err, !m.mute, m.now)
}

func (m *model) note(text string) {
	m.did = append(m.did, fmt.Sprintf("%s %s", m.now.Sub(m.start), text))
}

// last returns how the last round was made.
func (m *model) last() checklist.Options { return m.made[len(m.made)-1] }

// next returns how the next round would be made.
func (m *model) next() checklist.Options { return m.Round(m.now) }
