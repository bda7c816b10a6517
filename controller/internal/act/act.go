// Package act is what runs beside the loop and acts on its plans: each part decides every 10 s in a goroutine of its own, so that
// it delays neither a report nor a release, nor another part.
package act

import (
	"context"
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/controlgroup"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// interval is how often an actor decides.
const interval = 10 * time.Second

// Actor is what these parts share. Not safe for concurrent use.
type Actor struct {
	// Plan returns the last plan of the loop, none where this process is not the leader.
	Plan         func() (fleet.Plan, error)
	ControlGroup func() controlgroup.State
	Now          func() clock.Now
	Timeout      time.Duration // of all requests about one decision
	Events       events.EventRecorder
	// SetBreaker says for each rule for every node whether it holds now.
	SetBreaker func(rule string, holds bool)
	Log        *slog.Logger
}

// Run lets act decide on the last plan, and act on it, until ctx ends.
func (a *Actor) Run(ctx context.Context, act func(context.Context, fleet.Plan, clock.Now)) error {
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) { a.Once(ctx, act) }, interval)
	return nil
}

// Once is one decision of Run. What fails is decided again the next time.
func (a *Actor) Once(ctx context.Context, act func(context.Context, fleet.Plan, clock.Now)) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	plan, err := a.Plan()
	if err != nil || plan.At.IsZero() {
		return // the loop logs the error
	}
	act(ctx, plan, a.Now())
}

// MayAct reports whether plan is young enough for something to be done to a node.
func (a *Actor) MayAct(plan fleet.Plan) bool {
	fresh := plan.IsFresh(a.Now())
	if !fresh {
		a.Log.Warn("the controller changes no node: its last view of the cluster is too old", "age", a.Now().Since(plan.At.Mark()))
	}
	return fresh
}

// Withheld is a node to which a rule lets nothing be done.
type Withheld struct {
	Node *corev1.Node
	Rule breaker.Rule
	Text string // the rule's numbers
}

// Recent is when things have happened last. The zero value is empty.
type Recent[K comparable] map[K]clock.Mark

// Add notes that it happens at now.
func (r *Recent[K]) Add(key K, now clock.Now) {
	if *r == nil {
		*r = make(Recent[K])
	}
	(*r)[key] = now.Mark()
}

// Forget forgets what has happened an age ago.
func (r Recent[K]) Forget(age time.Duration, now clock.Now) {
	maps.DeleteFunc(r, func(_ K, at clock.Mark) bool { return now.Since(at) >= age })
}

// noticeEvery is how often the same thing is reported.
const noticeEvery = time.Hour

// IsDue reports whether key is to be reported at now, once an hour, and notes that it is.
func (r *Recent[K]) IsDue(key K, now clock.Now) bool {
	r.Forget(noticeEvery, now)
	if _, reported := (*r)[key]; reported {
		return false
	}
	r.Add(key, now)
	return true
}
