// Package renewal gives an agent a fresh sandbox: it deletes the pod of an agent that fails for a reason that a broken sandbox
// can cause, and the DaemonSet creates another one. In daemonset mode the leader runs a Renewer (renewal.go). Retaint and
// remediation ask InDoubt (sandbox.go), and change no node that may fail only because of its agent's sandbox.
//
// What must stay true:
//   - InDoubt and Due are pure. They read from objects when a failure began and when the pod was renewed last, by the API
//     server's clock, so that another leader decides the same. Only Renewer.act deletes pods, at most one with each decision.
//   - A doubt ends by itself, even if no renewal succeeds, because re-taint and remediation wait for its end.
//   - No pod is deleted while the same checks fail in the controller's own pod, nor on a node that is cordoned or being deleted.
package renewal

import (
	"context"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// SandboxRenewed is the reason of the Event.
const SandboxRenewed = "SandboxRenewed"

// Renewer deletes at most one pod with each decision.
type Renewer struct {
	act.Actor
	Settings breaker.Settings
	Client   client.Writer

	refused act.Recent[types.UID] // deletions that the log has
}

// Start decides and acts until ctx ends. The manager calls it when this process has become the leader.
func (r *Renewer) Start(ctx context.Context) error { return r.Run(ctx, r.act) }

func (r *Renewer) act(ctx context.Context, plan fleet.Plan, now clock.Now) {
	due := Due(r.Settings, plan, r.ControlGroup(), now)
	if len(due) == 0 || !r.MayAct(plan) {
		return
	}
	status := due[rand.IntN(len(due))] // any of them: a pod that cannot be deleted holds no other
	pod, log := status.Pod, r.Log.With("node", status.Node.Name, "pod", status.Pod.Name, "reason", status.Reason)
	// A pod that has changed may have recovered.
	unchanged := client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}
	if err := r.Client.Delete(ctx, pod.DeepCopy(), unchanged); err != nil {
		if !apierrors.IsConflict(err) && r.refused.IsDue(status.Node.UID, now) {
			log.Warn("cannot delete the agent's pod, will retry", "error", err)
		}
		return
	}
	condition := r.Settings.Fleet.Condition(status.Node)
	log.Warn("agent's pod deleted: the next pod gets a fresh sandbox", "detail", condition.Message)
	r.Event(status.Node, corev1.EventTypeNormal, SandboxRenewed,
		"pod "+pod.Name+" was deleted, the next one gets a fresh sandbox: "+condition.Reason+": "+condition.Message)
}

// Due returns the nodes whose agent's pod must be deleted now. The condition shows since when the agent fails, and the pod when
// it was renewed last.
func Due(s breaker.Settings, plan fleet.Plan, group baseline.State, now clock.Now) (due []fleet.Status) {
	// What failed in an outage has the time to recover.
	if s.NotProvenFor(s.Fleet.Rechecks.RecoversAfter(), group, now) != "" {
		return nil
	}
	for _, status := range plan.Statuses {
		// An outage may reach this node first: wait for the next round of the baseline checks.
		isOutage := group.Began.Before(status.Since) || group.Began.Before(status.Recheck.FailedAt)
		if isOutage || !isRenewable(s.Fleet, status, now) {
			continue
		}
		created, failed := status.Pod.CreationTimestamp.Time, s.Fleet.Condition(status.Node).LastTransitionTime.Time
		if created.Before(failed) || now.IsOlder(created, pause(created.Sub(failed))) {
			due = append(due, status)
		}
	}
	return due
}

// pause returns how old a pod must be that was created so long after the failure: 10 minutes the second one, then 20, 40, 40.
func pause(after time.Duration) time.Duration {
	return min(max(10*time.Minute, 2*after), 40*time.Minute)
}
