package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The types of an Event that the API knows.
const (
	eventNormal  = "Normal"
	eventWarning = "Warning"
)

// The reasons of our Events, a closed set.
const (
	reasonVerified    = "NodeVerified"
	reasonNotVerified = "NodeNotVerified"
	reasonTimedOut    = "NodeVerificationTimedOut"
)

const (
	// eventNamespace is where the API puts events about objects without a namespace, and nowhere else.
	eventNamespace = "default"
	component      = "kube-node-ready"
	maxMessage     = 1024 // bytes; what the API allows in the note of an Event
	maxQueued      = 8
	// repeatAfter is when a failure that goes on is reported again; after that twice as long, and
	// so on: a node that fails for an hour has a handful of Events.
	repeatAfter = 5 * time.Minute
)

// events puts Events on the node. They are queued until the API takes them: a node whose path to
// the API is broken tells when it is back.
type events struct {
	rest rest.Interface
	node string
	// instance is the pod, as namespace/name.
	instance string
	timeout  time.Duration
	log      *logrus.Entry

	mu     sync.Mutex
	queue  []event
	since  time.Time // start of the verification under way
	failed map[string]repeat
}

// repeat says when a failure is due again.
type repeat struct {
	at    time.Time
	after time.Duration
}

func newEvents(core rest.Interface, cfg config, log *logrus.Entry) *events {
	name, _ := os.Hostname() // a pod's is its name
	return &events{rest: core, node: cfg.nodeName, instance: cfg.podNamespace + "/" + name, timeout: cfg.checkTimeout, log: log}
}

// startOver begins to count failures anew.
func (e *events) startOver(since time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.since, e.failed = since, make(map[string]repeat)
}

// failing queues a Warning, unless the same checks were reported a short while ago.
func (e *events) failing(err error) {
	// Without the texts, which differ from round to round: ports, or the number of a request.
	key := patchName
	if _, checked := errors.AsType[notVerified](err); checked {
		key = brief(err)
	}
	e.mu.Lock()
	now := time.Now()
	last, seen := e.failed[key]
	due := !seen || !now.Before(last.at)
	if due {
		after := repeatAfter
		if seen {
			after = 2 * last.after
		}
		e.failed[key] = repeat{now.Add(after), after}
	}
	since := e.since
	e.mu.Unlock()
	if due {
		e.add(eventWarning, reasonNotVerified,
			fmt.Sprintf("since %s: %v", since.UTC().Format(time.RFC3339), err))
	}
}

// add queues an Event.
func (e *events) add(eventType, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	message = shorten(message)
	now := metav1.Now()
	if len(e.queue) == maxQueued {
		e.queue = e.queue[1:]
	}
	e.queue = append(e.queue, event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s.%x", e.node, now.UnixNano()),
			Namespace: eventNamespace,
		},
		// Node Events of kubelet bear the node's name as uid, and so kubectl describe looks for both.
		InvolvedObject: eventObject{APIVersion: "v1", Kind: "Node", Name: e.node, UID: e.node},
		Type:           eventType, Reason: reason, Message: message,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source:             eventSource{Component: component, Host: e.node},
		ReportingComponent: component, ReportingInstance: e.instance,
	})
}

func shorten(message string) string {
	if len(message) > maxMessage {
		return strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
	}
	return message
}

// flush sends what is queued, in order, and tells whether nothing is left. What cannot be sent now stays for the next time.
func (e *events) flush(ctx context.Context) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	for len(e.queue) > 0 {
		err := e.send(ctx, e.queue[0])
		switch {
		case err == nil, apierrors.IsAlreadyExists(err): // an answer was lost
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
			e.log.WithError(err).Warn("event refused: apply the Role and its binding from the chart in namespace default (events, create)")
		default:
			e.log.WithError(err).Debug("event not sent: keeping it for the next time")
			return false
		}
		e.queue = e.queue[1:]
	}
	return true
}

func (e *events) send(ctx context.Context, ev event) error {
	body, err := json.Marshal(ev)
	if err != nil {
		return err
	}
	return e.rest.Post().Namespace(eventNamespace).Resource("events").
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
}

// event is what the agent writes of an Event (core/v1). It is no type of k8s.io/api for the reason
// given at nodepatch.Node.
type event struct {
	metav1.ObjectMeta  `json:"metadata"`
	InvolvedObject     eventObject `json:"involvedObject"`
	Type               string      `json:"type"`
	Reason             string      `json:"reason"`
	Message            string      `json:"message"`
	FirstTimestamp     metav1.Time `json:"firstTimestamp"`
	LastTimestamp      metav1.Time `json:"lastTimestamp"`
	Count              int         `json:"count"`
	Source             eventSource `json:"source"`
	ReportingComponent string      `json:"reportingComponent"`
	ReportingInstance  string      `json:"reportingInstance"`
}

type eventObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

type eventSource struct {
	Component string `json:"component"`
	Host      string `json:"host"`
}
