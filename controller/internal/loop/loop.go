// Package loop runs the decisions about the fleet: it reads the caches, decides, and hands the plan to the steps that act on it.
package loop

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// batch collects the changes of a moment: a thousand nodes that join are not a thousand decisions.
	batch = 250 * time.Millisecond
	// interval is when to decide again although nothing has changed: durations pass.
	interval = 10 * time.Second
	// betweenLookUps is the time between two lists of the pods' Events.
	betweenLookUps = 10 * time.Second
	// pageOfEvents bounds what a list of Events holds in memory.
	pageOfEvents = 500
	// afterError is when to try again what has failed.
	afterError = 5 * time.Second
)

// A Step acts on a plan. It returns when it wants to be called again although nothing changes; zero: no wish.
type Step interface {
	Act(ctx context.Context, plan fleet.Plan) (requeueAfter time.Duration, err error)
}

// Loop owns what the process remembers of the fleet. Only the leader's has seen anything.
type Loop struct {
	Settings fleet.Settings
	Cache    client.Reader // of nodes and the agents' pods
	Live     client.Reader // of Events, which are not cached
	Steps    []Step
	Log      *slog.Logger

	mu     sync.Mutex
	seen   fleet.Memory
	events map[types.UID]events // of pods that do not start
	looked time.Time            // when the Events were listed

	failed atomic.Uint64 // decisions and steps
}

// SetupWithManager lets every change of a node or pod that matters lead to a decision.
func (l *Loop) SetupWithManager(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).Named("fleet").
		Watches(&corev1.Node{}, soon()).
		Watches(&corev1.Pod{}, soon()).
		WithEventFilter(Changed()).
		Complete(l)
}

// soon decides about the whole fleet once for all the changes of a moment.
func soon() handler.EventHandler {
	enqueue := func(q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.AddAfter(reconcile.Request{}, batch)
	}
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q queue) { enqueue(q) },
		UpdateFunc: func(_ context.Context, _ event.UpdateEvent, q queue) { enqueue(q) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q queue) { enqueue(q) },
	}
}

// Reconcile decides about the fleet, and acts.
func (l *Loop) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	plan, err := l.plan(ctx, time.Now(), true)
	if err != nil {
		l.failed.Add(1)
		return reconcile.Result{}, err
	}
	var wait time.Duration // none: in a fleet of verified nodes nothing happens as time passes
	if slices.ContainsFunc(plan.Statuses, fleet.Status.ChangesWithTime) {
		wait = interval
	}
	for _, step := range append([]Step{lookUp{l}}, l.Steps...) {
		requeueAfter, err := step.Act(ctx, plan)
		if err != nil && ctx.Err() == nil {
			l.Log.Warn("will retry", "error", err) // the other steps go on
			l.failed.Add(1)
			requeueAfter = afterError
		}
		if requeueAfter > 0 && (wait == 0 || requeueAfter < wait) {
			wait = requeueAfter
		}
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// Errors returns how many decisions and steps have failed.
func (l *Loop) Errors() uint64 { return l.failed.Load() }

// Now returns the plan for the caches as they are, without an effect; false where this process is not the leader.
func (l *Loop) Now(ctx context.Context) (fleet.Plan, bool, error) {
	plan, err := l.plan(ctx, time.Now(), false)
	return plan, plan.Seen.Began(), err
}

func (l *Loop) plan(ctx context.Context, now time.Time, keep bool) (fleet.Plan, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !keep && !l.seen.Began() {
		return fleet.Plan{}, nil
	}
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := l.Cache.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fleet.Plan{}, fmt.Errorf("nodes in the cache: %w", err)
	}
	if err := l.Cache.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fleet.Plan{}, fmt.Errorf("pods in the cache: %w", err)
	}
	read := make(map[types.UID][]corev1.Event, len(l.events))
	for uid, of := range l.events {
		read[uid] = of.list
	}
	plan := l.Settings.Decide(fleet.Objects{Nodes: nodes.Items, Pods: pods.Items, Events: read, Seen: l.seen}, now)
	if keep {
		l.seen = plan.Seen
	}
	return plan, nil
}
