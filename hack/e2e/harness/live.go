package harness

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// Live prints lines, and below them how far long work is: a line that changes on a terminal, and a
// line every 10 s elsewhere.
type Live struct {
	out      *os.File
	terminal bool

	mu     sync.Mutex
	latest time.Time // of the last line that stays
	shown  bool      // a changing line is on the screen
}

// NewLive prints to out.
func NewLive(out *os.File) *Live {
	info, err := out.Stat()
	return &Live{out: out, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0, latest: time.Now()}
}

// Line prints a line that stays.
func (l *Live) Line(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line(format, args...)
}

// Progress says how far the work is.
func (l *Live) Progress(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.terminal:
		_, _ = fmt.Fprint(l.out, "\r\033[K"+fmt.Sprintf(format, args...))
		l.shown = true
	case time.Since(l.latest) > 10*time.Second:
		l.line(format, args...)
	}
}

func (l *Live) line(format string, args ...any) {
	if l.shown {
		_, _ = fmt.Fprint(l.out, "\r\033[K")
		l.shown = false
	}
	_, _ = fmt.Fprintf(l.out, format+"\n", args...)
	l.latest = time.Now()
}
