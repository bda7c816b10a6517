package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

const (
	// EventNormal is the type of an Event (core/v1) about what is in order.
	EventNormal = "Normal"
	// EventWarning is the type of an Event that somebody should read.
	EventWarning = "Warning"
	// eventNamespace is where the API server stores Events about cluster-scoped objects.
	eventNamespace = "default"
	component      = "kube-node-ready"
)

// Events writes Events about one node. They queue while the API is unreachable: nobody waits for them, except in Flush. Add and
// Flush belong to one goroutine, and Run to another.
type Events struct {
	core     rest.Interface
	node     string
	instance string // the pod, as namespace/name
	timeout  time.Duration
	log      *logrus.Entry
	queue    chan event
	last     event // that was added
}

type event struct {
	body []byte        // JSON
	sent chan struct{} // closed when the API server has answered; nil: there is no Event
}

// NewEvents returns the queue for a node; one attempt to send an Event takes at most timeout.
func NewEvents(core rest.Interface, node, instance string, timeout time.Duration, log *logrus.Entry) *Events {
	return &Events{core: core, node: node, instance: instance, timeout: timeout, log: log, queue: make(chan event, 8)}
}

// Run sends the Events in their order until ctx ends. While one cannot be sent, it tries again after 1 s, and more and more
// rarely, down to every 30 s.
func (e *Events) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-e.queue:
			attempt := func() error { return e.send(ctx, next.body) }
			_ = backoff.Retry(attempt, backoff.WithContext(checks.Exponential(), ctx)) // fails only with ctx
			close(next.sent)
		}
	}
}

// Add queues an Event. The oldest one is dropped when more than 8 wait.
func (e *Events) Add(eventType, reason, message string) {
	now := metav1.Now()
	// No type of k8s.io/api, for the reason given at nodepatch.Node.
	body, _ := json.Marshal(map[string]any{ // of strings and numbers: it cannot fail
		"metadata": map[string]string{"name": fmt.Sprintf("%s.%x", e.node, now.UnixNano()), "namespace": eventNamespace},
		// kubelet's Events about its node have the node's name as uid: kubectl describe looks for both.
		"involvedObject": map[string]string{"apiVersion": "v1", "kind": "Node", "name": e.node, "uid": e.node},
		"type":           eventType, "reason": reason, "message": verdict.Shorten(message),
		"firstTimestamp": now, "lastTimestamp": now, "count": 1,
		"source":             map[string]string{"component": component, "host": e.node},
		"reportingComponent": component, "reportingInstance": e.instance,
	})
	e.last = event{body, make(chan struct{})}
	if len(e.queue) == cap(e.queue) {
		select {
		case <-e.queue:
		default: // Run has taken one since
		}
	}
	e.queue <- e.last // there is room: nobody else adds
}

// Flush waits until all Events are sent, or ctx ends.
func (e *Events) Flush(ctx context.Context) {
	if e.last.sent == nil {
		return
	}
	select {
	case <-e.last.sent:
	case <-ctx.Done():
	}
}

// send makes one attempt to send an Event. An error means that another one may succeed.
func (e *Events) send(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	err := e.core.Post().Namespace(eventNamespace).Resource("events").
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	switch {
	case err == nil, apierrors.IsAlreadyExists(err): // the reply was lost
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		e.log.WithError(err).Warn("event refused: apply the Role and its binding from the chart in namespace default (events, create)")
	default:
		e.log.WithError(err).Debug("event not sent, will retry")
		return err
	}
	return nil
}
