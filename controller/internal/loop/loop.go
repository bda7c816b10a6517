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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
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
	// lookUps is how many pods' Events are read a second, at most.
	lookUps = 5
	// afterError is when to try again what has failed.
	afterError = 5 * time.Second
)

// A Step acts on a plan. It returns when it wants to be called again although nothing changes; zero: no wish.
type Step interface {
	Act(ctx context.Context, plan fleet.Plan) (again time.Duration, err error)
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
	events map[types.UID][]corev1.Event
	readAt map[types.UID]string // the pod's resourceVersion when its Events were read: they are read again once it has changed

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
	if slices.ContainsFunc(plan.Statuses, func(status fleet.Status) bool { return status.State != fleet.Verified }) {
		wait = interval
	}
	for _, step := range append([]Step{lookUp{l}}, l.Steps...) {
		again, err := step.Act(ctx, plan)
		if err != nil && ctx.Err() == nil {
			l.Log.Warn("will retry", "error", err) // the other steps go on
			l.failed.Add(1)
			again = afterError
		}
		if again > 0 && (wait == 0 || again < wait) {
			wait = again
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
	plan := l.Settings.Decide(fleet.Objects{Nodes: nodes.Items, Pods: pods.Items, Events: l.events, Seen: l.seen}, now)
	if keep {
		l.seen = plan.Seen
		l.forget(pods.Items)
	}
	return plan, nil
}

// forget drops the Events of pods that are gone, or have changed.
func (l *Loop) forget(pods []corev1.Pod) {
	events, readAt := make(map[types.UID][]corev1.Event), make(map[types.UID]string)
	for i := range pods {
		uid := pods[i].UID
		if read, found := l.events[uid]; found && l.readAt[uid] == pods[i].ResourceVersion {
			events[uid], readAt[uid] = read, l.readAt[uid]
		}
	}
	l.events, l.readAt = events, readAt
}

// lookUp is the first step: it reads the Events of some pods that the plan asks for, once for each.
type lookUp struct{ *Loop }

func (l lookUp) Act(ctx context.Context, plan fleet.Plan) (again time.Duration, err error) {
	for _, pod := range plan.LookUp[:min(lookUps, len(plan.LookUp))] {
		events, err := PodEvents(ctx, l.Live, pod)
		if err != nil {
			return 0, err
		}
		l.mu.Lock()
		l.events[pod.UID], l.readAt[pod.UID] = events, pod.ResourceVersion
		l.mu.Unlock()
		again = time.Second
	}
	return again, nil
}

// PodEvents reads the Events about a pod from the API server. The list is empty, not nil, where there are none.
func PodEvents(ctx context.Context, live client.Reader, pod *corev1.Pod) ([]corev1.Event, error) {
	var list corev1.EventList
	err := live.List(ctx, &list, client.InNamespace(pod.Namespace), &client.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(pod.UID)),
		Limit:         100,
		Raw:           &metav1.ListOptions{ResourceVersion: "0"},
	})
	if err != nil {
		return nil, fmt.Errorf("events of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return append([]corev1.Event{}, list.Items...), nil
}
