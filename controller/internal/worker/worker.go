// Package worker verifies nodes in controller mode: a worker pod for each gated node runs one round of the checks, and the
// controller releases the node by its verdict.
//
// Settings.next decides on the next step for a node. It is a pure function of a view: the cached objects, the memory of this
// process, and the time. Reconciler.perform takes the step. The state that outlives a call has two owners: memories, for each
// node, and slots, which bound how many workers start. Each of them has a lock; that of slots comes first where both are held.
// Workers that were asked for their verdict answer on goroutines of their own.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

// Settings are the settings of the operator.
type Settings struct {
	Fleet         fleet.Settings
	AgentName     string
	Namespace     string // of the workers
	Template      *corev1.PodTemplateSpec
	ClusterDomain string        // of the cluster's DNS, or "" if it is unknown
	MaxWorkers    int           // first attempts that hold a slot at a time, and as many retries
	Round         time.Duration // the longest time that a round takes
	Version       string
	Required      requirement.List // of the Node, which Reconciler.Require judges
}

// Reconciler verifies nodes, one call for one node.
type Reconciler struct {
	Settings  Settings
	Client    client.Client // reads the caches
	Node      func(name string) nodepatch.NodeAPI
	Endpoints func(context.Context) ([]string, error)       // of the DNS service, as a worker reads them
	Require   func(context.Context, *nodepatch.Node) string // returns the unmet requirements, or ""
	Asker     Asker
	Events    events.EventRecorder
	Now       func() clock.Now
	Timeout   time.Duration // of one request
	Log       *slog.Logger

	queue    loop.Queue // of nodes, set once
	memories *memories
	slots    *slots
	// patching limits the patches of nodes whose last patch did not help to half of the nodes that are reconciled together. The
	// answer to the next one may take as long as a request may.
	patching chan struct{}
}

// Reconcile takes the next step for a node.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	node := new(corev1.Node)
	err := r.Client.Get(ctx, request.NamespacedName, node)
	if apierrors.IsNotFound(err) { // its workers are deleted with it
		r.slots.withdraw(request.Name)
		r.memories.nodeGone(request.Name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("node in the cache: %w", err)
	}
	pods, err := r.pods(ctx, node.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	v, ended := r.memories.observe(node, pods)
	decided := r.Settings.next(v)
	if _, inquires := decided.action.(inquiry); inquires {
		v.unmet = new(r.Require(ctx, fleet.PatchNode(node)))
		r.memories.nodeLacks(node.Name, *v.unmet)
		decided = r.Settings.next(v)
	}
	if _, creates := decided.action.(creation); !creates {
		r.slots.withdraw(node.Name)
	}
	r.reportFailures(node, ended)
	r.ask(ctx, v)
	decided, err = r.perform(ctx, v, decided)
	for _, pod := range decided.delete {
		err = errors.Join(err, r.deletePod(ctx, node.Name, pod))
	}
	if len(decided.delete) > 0 && decided.wait == 0 { // workers that are kept are not all deleted at once
		decided.wait = jitter(cacheDelay, 30*time.Second)
	}
	if err != nil {
		return reconcile.Result{Priority: new(0)}, err // controller-runtime warns of a wait beside an error, and ignores it
	}
	// A pause is never slept through: another node that passes may end it.
	return reconcile.Result{RequeueAfter: min(decided.wait, firstRetry), Priority: new(0)}, nil
}

// perform performs the action of a step. It returns the workers to delete and the wait that follow.
func (r *Reconciler) perform(ctx context.Context, v view, decided step) (after step, err error) {
	switch action := decided.action.(type) {
	case release, removal:
		return r.patch(ctx, v, decided)
	case creation:
		decided.wait, err = r.create(ctx, v.node, action)
	case hold:
		if v.memory.workers[action.worker.Name].fate < held { // reported once
			r.Log.Error("node not verified", "node", v.node.Name, "worker", action.worker.Name, "reason", *v.unmet)
			r.warn(v.node, action.worker, *v.unmet)
		}
		r.memories.raiseFate(v.node.Name, action.worker.Name, held)
		decided.wait = jitter(decided.wait, decided.wait*6/5) // nodes that wait for the same pod do not ask together
	case reset:
		for worker := range v.memory.workers {
			r.memories.raiseFate(v.node.Name, worker, voided)
		}
	}
	return decided, err
}

// jitter returns a random duration, so that nodes do not come back together.
func jitter(shortest, longest time.Duration) time.Duration {
	return shortest + rand.N(longest-shortest)
}

// Unmet returns the unmet requirements of nodes whose workers have passed, by the nodes' names.
func (r *Reconciler) Unmet() map[string]string { return r.memories.unmet() }

// reportFailures reports the attempts that have failed since the last call.
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

// warn sends a warning about node as an Event. The recorder merges two about one node unless they name different workers.
func (r *Reconciler) warn(node *corev1.Node, pod *corev1.Pod, message string) {
	r.Events.Eventf(node, pod, corev1.EventTypeWarning, verdict.NodeNotVerified, "Verify", "%s", verdict.Shorten(message))
}
