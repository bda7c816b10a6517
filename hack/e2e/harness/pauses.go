package harness

import (
	"fmt"
	"time"
)

// Pause is a pause of the agent: what its log has announced, and how long it was.
type Pause struct {
	Check             string // which is tried again; "" between two rounds
	Announced, Lasted time.Duration
}

// IsShorter reports whether something has ended the pause early. The times in the log are those of lines.
func (p Pause) IsShorter() bool { return p.Lasted < p.Announced*9/10 }

// Pauses returns the pauses in a log, as far as an attempt has followed.
func Pauses(lines []LogLine) (all []Pause, err error) {
	var pause *Pause // until the next attempt
	var since time.Time
	for _, line := range lines {
		if line.Attempt > 0 && pause != nil {
			took, err := time.ParseDuration(line.Took)
			if err != nil {
				return nil, fmt.Errorf("attempt %d of %s: %w", line.Attempt, line.Check, err)
			}
			pause.Lasted = line.Time.Add(-took).Sub(since)
			all, pause = append(all, *pause), nil
		}
		if text := line.RetryIn + line.NextRoundIn; text != "" { // a line has one of them
			announced, err := time.ParseDuration(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", line.Msg, err)
			}
			pause, since = &Pause{Check: line.Check, Announced: announced}, line.Time
		}
	}
	return all, nil
}
