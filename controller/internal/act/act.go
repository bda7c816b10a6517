// Package act is what runs beside the loop and acts on its plans: each part decides every 10 s in a goroutine of its own, so that
// it delays neither a report nor a release, nor another part.
package act

import (
	"context"
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"

	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// interval is how often an actor decides.
const interval = 10 * time.Second

// Actor is what these parts share. Not safe for concurrent use.
type Actor struct {
	// Plan returns the last plan of the loop, none where this process is not the leader.
	Plan         func() (fleet.Plan, error)
	ControlGroup func() baseline.State
	Now          func() clock.Now
	Timeout      time.Duration // of all requests about one decision
	Events       events.EventRecorder
	Action       string // of its Events
	// SetBreakers tells the metrics which of the rules for every node hold now, with their numbers.
	SetBreakers func(rules []breaker.Rule, holding map[breaker.Rule]string)
	Log         *slog.Logger

	reported Recent[string] // rules, each with a scope
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

// Event sends an Event about an object.
func (a *Actor) Event(about runtime.Object, kind, reason, message string) {
	a.Events.Eventf(about, nil, kind, reason, a.Action, "%s", verdict.Shorten(message))
}

// Withheld is a node to which a rule lets nothing be done.
type Withheld struct {
	Node  *corev1.Node
	Scope string // what the rule is reported about once an hour; "": all nodes
	Rule  breaker.Rule
	Text  string // the rule's numbers
}

// ReportWithheld logs that a rule withholds the action, and sends an Event: once an hour for each rule and scope.
func (a *Actor) ReportWithheld(w Withheld, reason string, now clock.Now) {
	if a.reported.IsDue(string(w.Rule)+" "+w.Scope, now) {
		a.Log.Info("action withheld", "event", reason, "node", w.Node.Name, "scope", w.Scope, "rule", w.Rule, "detail", w.Text)
		a.Event(w.Node, corev1.EventTypeWarning, reason, string(w.Rule)+": "+w.Text)
	}
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
