// Package worker verifies nodes in controller mode: a worker pod for each gated node makes one round of the checks, and the
// controller releases the node by its verdict. What is to be done about a node is decided by a function of objects, of
// what the process remembers, and of the time.
package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Settings are what the operator has decided.
type Settings struct {
	Fleet         fleet.Settings
	AgentName     string
	Namespace     string // of the workers
	Template      *corev1.PodTemplateSpec
	ClusterDomain string        // of the cluster's DNS, "" where it is not known
	MaxWorkers    int           // at a time
	VerdictPort   int           // where a worker tells its verdict
	Round         time.Duration // the longest that a round takes
	Version       string
}

// Reconciler makes nodes verified, one call for one node.
type Reconciler struct {
	Settings
	Client    client.Client // reads the caches
	Node      func(name string) nodepatch.NodeAPI
	Endpoints func(context.Context) ([]string, error)       // of the DNS service, as a worker reads them
	Require   func(context.Context, *nodepatch.Node) string // says what the Node does not show, or ""
	Events    events.EventRecorder
	Now       func() clock.Now
	Timeout   time.Duration     // of one request
	Transport http.RoundTripper // to the workers, nil: that of net/http
	Log       *slog.Logger

	queue loop.Queue // of nodes
	mu    sync.Mutex
	nodes map[string]memory // by the node's name
	slots slots
}

// Reconcile takes the next step about a node.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	node := new(corev1.Node)
	err := r.Client.Get(ctx, request.NamespacedName, node)
	if apierrors.IsNotFound(err) {
		r.forget(request.Name) // its workers are deleted with it
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("node in the cache: %w", err)
	}
	workers, err := r.workers(ctx, node.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := r.Now()
	seen := r.observe(node.Name, workers, now)
	decided := r.next(node, workers, seen, now)
	r.hold(ctx, node, workers, seen, &decided)
	if decided.create == 0 {
		r.leaveSlots(node.Name)
	}
	if decided.void {
		for name := range seen.workers {
			r.rememberWorker(node.Name, name, func(s *workerState) { s.void = true })
		}
	}
	r.reportFailures(node, workers, seen, now)
	r.ask(ctx, node, workers, seen)
	err = r.act(ctx, node, seen, &decided)
	for _, worker := range decided.delete {
		err = errors.Join(err, r.deletePod(ctx, node.Name, worker))
	}
	if len(decided.delete) > 0 && decided.wait == 0 { // workers that are kept are not all deleted at once
		decided.wait = wait.Jitter(cacheDelay, 5)
	}
	if err != nil {
		return reconcile.Result{Priority: new(0)}, err // controller-runtime warns of a wait beside an error, and ignores it
	}
	// No pause is slept through: another node that passes may end it.
	return reconcile.Result{RequeueAfter: min(decided.wait, firstRetry), Priority: new(0)}, nil
}

// act takes a step, except that it deletes nothing: it may add workers to delete.
func (r *Reconciler) act(ctx context.Context, node *corev1.Node, seen memory, decided *step) (err error) {
	switch {
	case decided.release != nil, decided.removeTaint:
		err = r.patch(ctx, node, seen, decided)
	case decided.create > 0:
		decided.wait, err = r.create(ctx, node, *decided)
	}
	return err
}

// workers returns the workers of a node that the cache shows.
func (r *Reconciler) workers(ctx context.Context, node string) (workers []*corev1.Pod, err error) {
	var list corev1.PodList
	err = r.Client.List(ctx, &list, client.MatchingFields{nodeIndex: node}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("workers in the cache: %w", err)
	}
	for i := range list.Items {
		if isWorker(&list.Items[i]) {
			workers = append(workers, &list.Items[i])
		}
	}
	return workers, nil
}

// create creates a worker, if there is a slot, and returns when to look again although nothing changes. A node without a slot is
// called once it has got one.
func (r *Reconciler) create(ctx context.Context, node *corev1.Node, decided step) (wait time.Duration, err error) {
	name, key := r.takeSlot(node.Name, decided.create), rand.Text()
	if name == "" {
		return 0, nil
	}
	endpoints, err := r.Endpoints(ctx)
	asked := err == nil
	if asked {
		r.remember(node.Name, func(m *memory) {
			if m.workers == nil {
				m.workers = make(map[string]workerState)
			}
			m.workers[name] = workerState{first: clock.Own(), key: key}
		})
		ctx, cancel := context.WithTimeout(ctx, r.Timeout)
		defer cancel()
		err = r.Client.Create(ctx, r.newPod(name, key, node, decided, endpoints))
	}
	if err != nil {
		answer, answered := errors.AsType[*apierrors.StatusError](err)
		r.mu.Lock()
		if !asked || answered && answer.ErrStatus.Code < http.StatusInternalServerError {
			delete(r.nodes[node.Name].workers, name)
			delete(r.slots.holders, name)
		} else if worker := r.slots.holders[name]; worker.unseen { // it may be there, and the cache shows it in time
			worker.limit = pendingFor
			r.slots.holders[name] = worker
		}
		r.mu.Unlock()
		if errors.Is(err, errNoEndpoints) {
			return noEndpointsFor, nil
		}
		return 0, fmt.Errorf("worker for node %s: %w", node.Name, err)
	}
	r.Log.Info("worker created", "node", node.Name, "worker", name, "attempt", decided.create)
	return cacheDelay, nil // if the worker is deleted before the cache shows it, nothing changes there
}

// deletePod deletes a worker, or keeps it for now. Its verdict does not count any more, even if it cannot be deleted.
func (r *Reconciler) deletePod(ctx context.Context, node string, pod *corev1.Pod) error {
	r.rememberWorker(node, pod.Name, func(s *workerState) { s.void = true })
	if r.keepsWorkers(node) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("worker %s: %w", pod.Name, err)
	}
	r.rememberWorker(node, pod.Name, func(s *workerState) { s.deleted = true })
	r.Log.Debug("worker deleted", "node", node, "worker", pod.Name)
	return nil
}

// reportFailures reports the attempts that have failed since the last look.
func (r *Reconciler) reportFailures(node *corev1.Node, workers []*corev1.Pod, seen memory, now clock.Now) {
	for _, worker := range workers {
		if seen.workers[worker.Name].ended != now.Mark() || worker.DeletionTimestamp != nil {
			continue
		}
		outcome, said := fleet.WorkerOutcome(worker)
		log := r.Log.With("node", node.Name, "worker", worker.Name, "attempt", fleet.Attempt(worker))
		switch outcome {
		case fleet.FailedRound:
			log.Error("node not verified", "failed", said.Failed, "reason", said.Message)
			r.warn(node, worker, said.Message)
		case fleet.Crashed:
			for _, status := range worker.Status.ContainerStatuses {
				if ended := status.State.Terminated; ended != nil {
					log.Error("worker ended without a verdict", "reason", ended.Reason, "exit_code", ended.ExitCode, "detail", ended.Message)
				}
			}
			r.warn(node, worker, "worker "+worker.Name+" ended without a verdict: read its log")
		case fleet.Interrupted:
			log.Warn("worker was interrupted", "reason", worker.Status.Reason, "detail", worker.Status.Message)
		}
	}
}

// warn puts a warning about node into its Events. The recorder counts two about one node as one, unless they name two workers.
func (r *Reconciler) warn(node *corev1.Node, worker *corev1.Pod, message string) {
	r.Events.Eventf(node, worker, corev1.EventTypeWarning, verdict.NodeNotVerified, "Verify", "%s", kube.Shorten(message))
}
