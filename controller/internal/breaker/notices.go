package breaker

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Withheld is a node to which a rule lets nothing be done.
type Withheld struct {
	Node *corev1.Node
	Rule Rule
	Text string // the rule's numbers
}

// noticeEvery is how often the same thing is reported.
const noticeEvery = time.Hour

// Notices has the same thing reported once an hour. The zero value has reported nothing.
type Notices[K comparable] struct{ reported map[K]time.Time }

// IsDue reports whether key is to be reported at now, and remembers that it is.
func (n *Notices[K]) IsDue(key K, now time.Time) bool {
	if n.reported == nil {
		n.reported = make(map[K]time.Time)
	}
	maps.DeleteFunc(n.reported, func(_ K, at time.Time) bool { return now.Sub(at) >= noticeEvery })
	if _, reported := n.reported[key]; reported {
		return false
	}
	n.reported[key] = now
	return true
}
