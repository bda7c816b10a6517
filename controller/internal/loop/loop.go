// Package loop runs the decisions about the fleet: it reads the caches, decides, and hands the plan to the steps that act on it.
package loop

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// batch collects the changes of a moment: a thousand nodes that join are not a thousand decisions.
	batch = 250 * time.Millisecond
	// interval is when to decide again although nothing has changed: durations pass.
	interval = 10 * time.Second
	// stepFor is how long a step may take: nobody acts on a plan that is older than 30 s, and no step takes the time of another.
	stepFor = 6 * time.Second
	// betweenLookUps is the time between two lists of the pods' Events.
	betweenLookUps = 10 * time.Second
	// unreadFor is how long a pod waits for Events that cannot be read.
	unreadFor = 2 * time.Minute
	// afterError is when to try again what has failed.
	afterError = 5 * time.Second
)

// A Step acts on a plan. It returns when it wants to be called again although nothing changes; zero: no wish.
type Step interface {
	Act(ctx context.Context, plan fleet.Plan) (requeueAfter time.Duration, err error)
}

// actFunc is a Step's method.
type actFunc func(ctx context.Context, plan fleet.Plan) (requeueAfter time.Duration, err error)

// Loop owns what the process remembers of the fleet. Only the leader's has seen anything. One goroutine decides.
type Loop struct {
	Settings fleet.Settings
	Cache    client.Reader            // of nodes and the agents' pods
	Live     client.Reader            // of Events, which are not cached
	Unmet    func() map[string]string // in controller mode, else nil: see fleet.Objects
	Now      func() clock.Now
	Steps    []Step
	Log      *slog.Logger

	events map[types.UID]podEvents // of pods that do not start
	looked clock.Mark              // when the Events were listed
	unread clock.Mark              // since when not all of them can be read, zero: they can

	last   atomic.Pointer[decision]
	failed atomic.Uint64 // decisions and steps
}

// decision is the last plan, and why there is no newer one.
type decision struct {
	plan fleet.Plan
	err  error
}

// SetupWithManager lets every change of a node or pod that matters lead to a decision.
func (l *Loop) SetupWithManager(manager ctrl.Manager) error {
	// Once about the whole fleet for all the changes of a moment.
	soon := OnChange(func(q Queue, _ client.Object, _ bool) { q.AddAfter(reconcile.Request{}, batch) })
	return ctrl.NewControllerManagedBy(manager).Named("fleet").
		Watches(&corev1.Node{}, soon, builder.WithPredicates(Changed())).
		Watches(&corev1.Pod{}, soon).
		WithOptions(controller.Options{
			RecoverPanic: new(false), // a plan that is never made again would look like a quiet fleet
			RateLimiter:  workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](batch, afterError),
		}).
		Complete(l)
}

// Reconcile decides about the fleet, publishes the plan, and acts.
func (l *Loop) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	last, _ := l.Last()
	plan, err := l.decide(ctx, last.Seen)
	if err != nil {
		l.last.Store(&decision{last, err})
		l.failed.Add(1)
		return reconcile.Result{}, err
	}
	l.last.Store(&decision{plan: plan})
	wait := l.take(ctx, plan, l.lookUp)
	for _, step := range l.Steps {
		wait = sooner(wait, l.take(ctx, plan, step.Act))
	}
	if slices.ContainsFunc(plan.Statuses, fleet.Status.ChangesWithTime) {
		wait = sooner(wait, max(batch, interval-l.Now().Since(plan.At.Mark()))) // whatever time the steps have taken
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// take takes a step, and returns when to decide again. A step that fails does not keep the others from theirs.
func (l *Loop) take(ctx context.Context, plan fleet.Plan, act actFunc) time.Duration {
	limited, cancel := context.WithTimeout(ctx, stepFor)
	defer cancel()
	requeueAfter, err := act(limited, plan)
	if err != nil && ctx.Err() == nil {
		l.Log.Warn("a step of the controller failed, will retry", "error", err)
		l.failed.Add(1)
		return afterError
	}
	return requeueAfter
}

// sooner returns the shorter of two waits. Zero is no wait: in a fleet of verified nodes nothing happens as time passes.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Errors returns how many decisions and steps have failed.
func (l *Loop) Errors() uint64 { return l.failed.Load() }

// Last returns the last plan, none where this process is not the leader. The error is why there is no newer one.
func (l *Loop) Last() (fleet.Plan, error) {
	if last := l.last.Load(); last != nil {
		return last.plan, last.err
	}
	return fleet.Plan{}, nil
}

func (l *Loop) decide(ctx context.Context, seen fleet.Memory) (fleet.Plan, error) {
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := l.Cache.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fleet.Plan{}, fmt.Errorf("nodes in the cache: %w", err)
	}
	if err := l.Cache.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fleet.Plan{}, fmt.Errorf("pods in the cache: %w", err)
	}
	read := make(map[types.UID][]corev1.Event, len(l.events))
	for uid, found := range l.events {
		read[uid] = found.list
	}
	objects := fleet.Objects{Nodes: nodes.Items, Pods: pods.Items, Events: read, Seen: seen}
	if l.Unmet != nil {
		objects.Unmet = l.Unmet()
	}
	return l.Settings.Decide(objects, l.Now()), nil
}

// Queue is what a controller takes its requests from.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// OnChange lets add put requests into the queue for each object that is there or has changed, or is gone.
func OnChange(add func(q Queue, object client.Object, gone bool)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q Queue) { add(q, e.Object, false) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q Queue) { add(q, e.ObjectNew, false) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q Queue) { add(q, e.Object, true) },
	}
}

// Changed filters the changes of Nodes that decisions need: not kubelet's heartbeats, of which 5,000 nodes send 17 a second. They
// change nothing of a Node in the cache but its resourceVersion.
func Changed() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		node, _ := e.ObjectOld.(*corev1.Node) // nothing else is filtered
		before := *node
		before.ResourceVersion = e.ObjectNew.GetResourceVersion()
		return !reflect.DeepEqual(&before, e.ObjectNew) // a third of the time of equality.Semantic
	}}
}
