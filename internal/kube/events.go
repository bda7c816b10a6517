package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Types of an Event (core/v1).
const (
	EventNormal  = "Normal"
	EventWarning = "Warning"
)

const (
	// eventNamespace is where the API server stores Events about cluster-scoped objects.
	eventNamespace = "default"
	component      = "kube-node-ready"
	maxMessage     = 1024 // bytes; the API's limit for the note of an Event
)

// Events writes Events about one node. They queue while the API is unreachable. Not safe for concurrent use.
type Events struct {
	core     rest.Interface
	node     string
	instance string // the pod, as namespace/name
	timeout  time.Duration
	log      *logrus.Entry
	queue    [][]byte // JSON
}

// NewEvents returns the queue for a node; one attempt to send it takes at most timeout.
func NewEvents(core rest.Interface, node, instance string, timeout time.Duration, log *logrus.Entry) *Events {
	return &Events{core: core, node: node, instance: instance, timeout: timeout, log: log}
}

// Add queues an Event. The oldest one is dropped when more than 8 wait.
func (e *Events) Add(eventType, reason, message string) {
	now := metav1.Now()
	if len(e.queue) == 8 {
		e.queue = e.queue[1:]
	}
	// No type of k8s.io/api, for the reason given at nodepatch.Node.
	body, _ := json.Marshal(map[string]any{ // of strings and numbers: it cannot fail
		"metadata": map[string]string{"name": fmt.Sprintf("%s.%x", e.node, now.UnixNano()), "namespace": eventNamespace},
		// kubelet's Events about its node have the node's name as uid: kubectl describe looks for both.
		"involvedObject": map[string]string{"apiVersion": "v1", "kind": "Node", "name": e.node, "uid": e.node},
		"type":           eventType, "reason": reason, "message": Shorten(message),
		"firstTimestamp": now, "lastTimestamp": now, "count": 1,
		"source":             map[string]string{"component": component, "host": e.node},
		"reportingComponent": component, "reportingInstance": e.instance,
	})
	e.queue = append(e.queue, body)
}

// Shorten cuts a message to the 1,024 bytes that the API allows in an Event.
func Shorten(message string) string {
	if len(message) > maxMessage {
		return strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	return message
}

// Flush sends the queue in order and reports whether it is empty. What cannot be sent now stays for the next time.
func (e *Events) Flush(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	for len(e.queue) > 0 {
		err := e.core.Post().Namespace(eventNamespace).Resource("events").
			SetHeader("Content-Type", "application/json").Body(e.queue[0]).Do(ctx).Error()
		switch {
		case err == nil, apierrors.IsAlreadyExists(err): // the reply was lost
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
			e.log.WithError(err).Warn("event refused: apply the Role and its binding from the chart in namespace default (events, create)")
		default:
			e.log.WithError(err).Debug("event not sent, will retry")
			return false
		}
		e.queue = e.queue[1:]
	}
	return true
}
