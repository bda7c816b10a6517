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

// Recent is when things have happened last. The zero value is empty.
type Recent[K comparable] map[K]time.Time

// Add notes that it happens at now.
func (r *Recent[K]) Add(key K, now time.Time) {
	if *r == nil {
		*r = make(Recent[K])
	}
	(*r)[key] = now
}

// Forget forgets what has happened an age ago.
func (r Recent[K]) Forget(age time.Duration, now time.Time) {
	maps.DeleteFunc(r, func(_ K, at time.Time) bool { return now.Sub(at) >= age })
}

// noticeEvery is how often the same thing is reported.
const noticeEvery = time.Hour

// IsDue reports whether key is to be reported at now, once an hour, and notes that it is.
func (r *Recent[K]) IsDue(key K, now time.Time) bool {
	r.Forget(noticeEvery, now)
	if _, reported := (*r)[key]; reported {
		return false
	}
	r.Add(key, now)
	return true
}
