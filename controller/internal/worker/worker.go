// Package worker verifies nodes in controller mode: a worker pod for each gated node makes one round of the checks, and the
// controller releases the node by its verdict. What is to be done about a node is decided by a function of objects, of
// what the process remembers, and of the time.
package worker

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/loop"
	"github.com/imunhatep/kube-node-ready/internal/requirement"
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
	MaxWorkers    int           // first attempts that hold a slot at a time, and as many retries
	Round         time.Duration // the longest that a round takes
	Version       string
	Required      requirement.List // of the Node, which Reconciler.Require judges
}

// Reconciler makes nodes verified, one call for one node.
type Reconciler struct {
	Settings  Settings
	Client    client.Client // reads the caches
	Node      func(name string) nodepatch.NodeAPI
	Endpoints func(context.Context) ([]string, error)       // of the DNS service, as a worker reads them
	Require   func(context.Context, *nodepatch.Node) string // says what the Node does not show, or ""
	Asker     Asker
	Events    events.EventRecorder
	Now       func() clock.Now
	Timeout   time.Duration // of one request
	Log       *slog.Logger

	queue loop.Queue // of nodes
	slots *slots
	// patching has room for half of the nodes that are looked at together: those whose last patch did not help. The answer to the
	// next one may take as long as a request may.
	patching chan struct{}

	mu    sync.Mutex
	nodes map[string]memory // by the node's name
	// healed is when a third attempt or a later one has passed last: what kept other nodes from passing may be over, too.
	healed clock.Mark
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
	pods, err := r.pods(ctx, node.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	l, ended := r.recall(node, pods)
	decided := r.Settings.next(l)
	if _, inquires := decided.action.(inquiry); inquires {
		l.unmet = new(r.askUnmet(ctx, node))
		decided = r.Settings.next(l)
	}
	if _, creates := decided.action.(creation); !creates {
		r.slots.leave(node.Name)
	}
	r.reportFailures(node, ended)
	r.ask(ctx, l)
	decided, err = r.carryOut(ctx, l, decided)
	for _, pod := range decided.delete {
		err = errors.Join(err, r.deletePod(ctx, node.Name, pod))
	}
	if len(decided.delete) > 0 && decided.wait == 0 { // workers that are kept are not all deleted at once
		decided.wait = between(cacheDelay, 30*time.Second)
	}
	if err != nil {
		return reconcile.Result{Priority: new(0)}, err // controller-runtime warns of a wait beside an error, and ignores it
	}
	// No pause is slept through: another node that passes may end it.
	return reconcile.Result{RequeueAfter: min(decided.wait, firstRetry), Priority: new(0)}, nil
}

// carryOut carries out the action of a step, and returns what is left of the step.
func (r *Reconciler) carryOut(ctx context.Context, l look, decided step) (left step, err error) {
	switch action := decided.action.(type) {
	case release, removal:
		return r.patch(ctx, l, decided)
	case creation:
		decided.wait, err = r.create(ctx, l.node, action)
	case hold:
		r.hold(l, action)
		decided.wait = between(decided.wait, decided.wait*6/5) // nodes that wait for the same pod do not ask together
	case reset:
		r.raiseFate(l.node.Name, voided, slices.Collect(maps.Keys(l.memory.states))...)
	}
	return decided, err
}

// hold remembers a worker that waits for its node to meet REQUIRE, and reports it once.
func (r *Reconciler) hold(l look, action hold) {
	node, worker := l.node.Name, action.worker.Name
	if l.memory.states[worker].fate < held {
		r.Log.Error("node not verified", "node", node, "worker", worker, "reason", action.unmet)
		r.warn(l.node, action.worker, action.unmet)
	}
	r.raiseFate(node, held, worker)
}

// between returns a random time, so that nodes do not come back together.
func between(shortest, longest time.Duration) time.Duration {
	return shortest + rand.N(longest-shortest)
}

// pods returns the workers of a node that the cache shows.
func (r *Reconciler) pods(ctx context.Context, node string) (pods []*corev1.Pod, err error) {
	var list corev1.PodList
	err = r.Client.List(ctx, &list, client.MatchingFields{nodeIndex: node}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("workers in the cache: %w", err)
	}
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// create creates a worker, if there is a slot, and returns when to look again although nothing changes. A node without a slot is
// called once it has got one.
func (r *Reconciler) create(ctx context.Context, node *corev1.Node, wanted creation) (wait time.Duration, err error) {
	name, key := r.Settings.newName(), cryptorand.Text()
	if !r.slots.take(node.Name, name, wanted.attempt) {
		return 0, nil
	}
	endpoints, err := r.Endpoints(ctx)
	if err != nil {
		r.slots.giveBack(name)
		if errors.Is(err, errNoEndpoints) {
			return noEndpointsFor, nil
		}
		return 0, fmt.Errorf("worker for node %s: %w", node.Name, err)
	}
	r.remember(node.Name, func(m *memory) {
		if m.states == nil {
			m.states = make(map[string]workerState)
		}
		m.states[name] = workerState{first: r.Now().Mark(), own: true, key: key}
	})
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	if err = r.Client.Create(ctx, r.Settings.newPod(name, key, node, wanted, endpoints)); err != nil {
		r.noteFailedCreation(node.Name, name, err)
		return 0, fmt.Errorf("worker for node %s: %w", node.Name, err)
	}
	r.Log.Info("worker created", "node", node.Name, "worker", name, "attempt", wanted.attempt)
	return cacheDelay, nil // if the worker is deleted before the cache shows it, nothing changes there
}

// noteFailedCreation forgets a worker whose creation was refused. After any other error it may be there.
func (r *Reconciler) noteFailedCreation(node, worker string, err error) {
	answer, isAnswer := errors.AsType[*apierrors.StatusError](err)
	if !isAnswer || answer.ErrStatus.Code >= http.StatusInternalServerError {
		r.slots.doubt(worker)
		return
	}
	r.slots.giveBack(worker)
	r.remember(node, func(m *memory) { delete(m.states, worker) })
}

// deletePod deletes a worker, or keeps it for now. Its verdict does not count any more, even if it cannot be deleted.
func (r *Reconciler) deletePod(ctx context.Context, node string, pod *corev1.Pod) error {
	r.raiseFate(node, voided, pod.Name)
	if r.keepsWorkers(node) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("worker %s: %w", pod.Name, err)
	}
	r.raiseFate(node, deleted, pod.Name)
	r.Log.Debug("worker deleted", "node", node, "worker", pod.Name)
	return nil
}

// keepsWorkers reports whether the workers of a node are deleted later: it was released within the last minute, and other nodes
// wait for a slot. Their releases come first.
func (r *Reconciler) keepsWorkers(node string) bool {
	r.mu.Lock()
	releasedAt := r.nodes[node].releasedAt
	r.mu.Unlock()
	return r.slots.isWaitedFor() && r.Now().Since(releasedAt) < time.Minute
}

// reportFailures reports the attempts that have failed since the last look.
func (r *Reconciler) reportFailures(node *corev1.Node, ended []*corev1.Pod) {
	for _, pod := range ended {
		if pod.DeletionTimestamp != nil {
			continue
		}
		outcome, said := fleet.WorkerOutcome(pod)
		log := r.Log.With("node", node.Name, "worker", pod.Name, "attempt", fleet.Attempt(pod))
		switch outcome {
		case fleet.FailedRound:
			log.Error("node not verified", "failed", said.Failed, "reason", said.Message)
			r.warn(node, pod, said.Message)
		case fleet.Crashed:
			for _, status := range fleet.Containers(pod) {
				if exit := status.State.Terminated; exit != nil {
					log.Error("worker ended without a verdict", "reason", exit.Reason, "exit_code", exit.ExitCode, "detail", exit.Message)
				}
			}
			r.warn(node, pod, "worker "+pod.Name+" ended without a verdict: read its log")
		case fleet.Interrupted:
			log.Warn("worker was interrupted", "reason", pod.Status.Reason, "detail", pod.Status.Message)
		}
	}
}

// warn puts a warning about node into its Events. The recorder counts two about one node as one, unless they name two workers.
func (r *Reconciler) warn(node *corev1.Node, pod *corev1.Pod, message string) {
	r.Events.Eventf(node, pod, corev1.EventTypeWarning, verdict.NodeNotVerified, "Verify", "%s", verdict.Shorten(message))
}
