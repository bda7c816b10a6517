// Package report writes what no agent can: the condition of a node whose agent does not run or does not speak, and Events.
package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// NewLimit returns how many conditions are written, at most: 5 a second.
func NewLimit() *rate.Limiter { return rate.NewLimiter(5, 5) }

// NodeNotStarted is the reason of the Event that only the controller sends.
const NodeNotStarted = "NodeNotStarted"

// Reporter is the step of the loop that writes conditions and Events.
type Reporter struct {
	REST          rest.Interface // of the core group
	ConditionType string
	Events        events.EventRecorder
	// ServerTime returns the time by the API server's clock.
	ServerTime func() time.Time
	Timeout    time.Duration // of one request
	Limit      *rate.Limiter // of the conditions
	Log        *slog.Logger
}

// Act writes some of the plan's conditions, and its Events. What fails is tried again with the next plan.
func (r *Reporter) Act(ctx context.Context, plan fleet.Plan) (requeueAfter time.Duration, err error) {
	// Any of them: one that the API server refuses must not keep the others waiting.
	for _, which := range rand.Perm(len(plan.Conditions)) {
		if !r.Limit.Allow() || ctx.Err() != nil {
			return time.Second, err
		}
		failure := r.write(ctx, plan.Conditions[which])
		if apierrors.IsConflict(failure) { // the node has changed since, perhaps in nothing that another decision follows
			requeueAfter, failure = 5*time.Second, nil
		}
		err = errors.Join(err, failure)
	}
	return requeueAfter, err
}

func (r *Reporter) write(ctx context.Context, condition fleet.Condition) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	node := condition.Node
	client := nodepatch.Client{REST: r.REST, Name: node.Name, IfUnchanged: true}
	_, err := client.SetCondition(ctx, fleet.PatchNode(node), nodepatch.Condition{
		Type: r.ConditionType, Status: string(condition.Status), Reason: condition.Reason.String(),
		Message: verdict.Shorten(condition.Message),
	}, r.ServerTime())
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("condition of node %s: %w", node.Name, err)
	}
	r.Log.Info("condition written", "node", node.Name, "status", condition.Status, "reason", condition.Reason,
		"detail", condition.Message)
	if condition.Event {
		event := verdict.NodeTimedOut
		switch {
		case condition.Rechecked:
			event = verdict.RecheckFailed
		case condition.Reason.Meaning().Controller:
			event = NodeNotStarted
		}
		// The recorder counts two about one object as one, whatever their messages, unless their actions differ: the action is the
		// reason, therefore.
		reason := condition.Reason.String()
		message := verdict.ReasonMessage(reason, condition.Message)
		r.Events.Eventf(node, nil, corev1.EventTypeWarning, event, reason, "%s", verdict.Shorten(message))
	}
	return nil
}
