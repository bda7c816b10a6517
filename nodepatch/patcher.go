package nodepatch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// maxUnchanged is how often the API server may refuse the same patch although the Node has changed in
// between (a taint before ours that comes and goes). More often counts as a refusal.
const maxUnchanged = 3

// maxUndone is how many patches may be applied and leave the Node with the taint. A race is lost once, or twice.
const maxUndone = 3

// fieldManager is the agent's name in managedFields: what stands before the "/" of its user agent.
const fieldManager = "kube-node-ready"

// ErrReplaced means that the Node was deleted and created again since it was read: the checks have
// verified the old one.
var ErrReplaced = errors.New("the node was deleted and created again under the same name")

// ErrBlocked means that a client has added a taint that blocks the release: what was verified does not count any more.
var ErrBlocked = errors.New("a foreign taint was added while the node was patched")

// Refused means that the API server will not apply the patch, and a retry does not help.
type Refused struct{ Err error }

func (r *Refused) Error() string { return fmt.Sprintf("the API server refuses the patch: %v", r.Err) }
func (r *Refused) Unwrap() error { return r.Err }

// NodeAPI reads and patches one Node.
type NodeAPI interface {
	Get(ctx context.Context) (*Node, error)
	// GetCached reads the Node from the API server's cache, which may be behind by some seconds.
	GetCached(ctx context.Context) (*Node, error)
	// Patch applies a JSON patch and returns the patched Node.
	Patch(ctx context.Context, patch []byte) (*Node, error)
}

// errTaintedAgain means that a client has added a startup taint between read and patch: no operation
// of a JSON patch can test that a list has not grown.
var errTaintedAgain = errors.New("the startup taint was added while the node was patched")

// Patcher changes one Node.
type Patcher struct {
	Node     NodeAPI
	Timeout  time.Duration // of one request
	Deadline time.Duration // of all attempts of one patch together
	// Retried is called before each retry with the error of the last attempt.
	Retried func(err error)
}

// change is what a patch does to a Node, and how to tell that nothing is left to do.
type change struct {
	build  func(*Node) []Operation
	done   func(*Node) bool
	blocks func(Taint) bool // ends it with ErrBlocked; nil: nothing does
	within bool             // the end of ctx also ends a request in flight, and no retry goes on after it
}

// Release makes the Node verified, starting from base, the Node as last read, and returns the taints that it has
// removed. It reads the Node before every retry, and sends nothing to a Node that is already verified.
//
// Once ctx has ended it sends no new patch, but it waits for the answer to one in flight.
//
// If the startup taint was added while the node was patched, it retries even after cancellation, for one Timeout: the
// Node has the label, which ends this pod and keeps the next one away.
//
// The error is a *Refused, ErrReplaced, ErrBlocked, ctx's own, or the last error once Deadline has passed.
func (p *Patcher) Release(ctx context.Context, base *Node, r Request) (removed []Taint, err error) {
	err = p.apply(ctx, base, change{
		build: func(node *Node) []Operation {
			removed = r.removed(node)
			return Build(node, r)
		},
		done:   func(node *Node) bool { return IsVerified(node, r) },
		blocks: r.Blocks,
	})
	return removed, err
}

// RemoveAgain removes what a release removes from a Node that was released before, if the startup taint was added
// again since, within ctx. It leaves a Node alone that was replaced, is being deleted, or has lost the label: somebody has asked
// for a new verification. removed is empty where there was nothing to remove. The errors are those of Release.
func (p *Patcher) RemoveAgain(ctx context.Context, uid types.UID, r Request) (removed []Taint, err error) {
	node, err := p.Get(ctx)
	if err != nil || node.UID != uid {
		return nil, err
	}
	last, removed := node, r.removed(node)
	done := func(node *Node) bool {
		last = node
		return node.DeletionTimestamp != nil || !hasLabel(node, r) || IsVerified(node, r)
	}
	if !done(node) {
		build := func(node *Node) []Operation { return buildTaintRemoval(node, r) }
		err = p.apply(ctx, node, change{build: build, done: done, within: true})
	}
	if err != nil || !IsVerified(last, r) {
		return nil, err
	}
	return removed, nil
}

// AddFailedTaint adds r's failed taint with a value to a Node that has the startup taint and no failed taint, and
// reports whether the Node has one now. It reads the Node first. The errors are those of Release.
func (p *Patcher) AddFailedTaint(ctx context.Context, r Request, value string) (added bool, err error) {
	node, err := p.Get(ctx)
	if err != nil {
		return false, err
	}
	last := node
	done := func(node *Node) bool {
		last = node
		return HasFailedTaint(node, r) || len(StartupTaints(node, r)) == 0 || node.DeletionTimestamp != nil
	}
	if !done(node) {
		err = p.apply(ctx, node, change{build: func(node *Node) []Operation { return BuildFailedTaint(node, r, value) }, done: done})
	}
	return err == nil && HasFailedTaint(last, r), err
}

// RemoveFailedTaint removes r's failed taint and nothing else, starting from base. The errors are those of Release.
func (p *Patcher) RemoveFailedTaint(ctx context.Context, base *Node, r Request) error {
	return p.apply(ctx, base, change{
		build: func(node *Node) []Operation { return buildFailedTaintRemoval(node, r) },
		done:  func(node *Node) bool { return !HasFailedTaint(node, r) },
	})
}

// apply builds and sends patches until the change is done.
func (p *Patcher) apply(ctx context.Context, base *Node, c change) error {
	limited, cancel := context.WithTimeout(ctx, p.Deadline)
	defer cancel()
	inFlight := ctx
	if !c.within {
		inFlight = context.WithoutCancel(ctx) // a patch that is sent is waited for
	}
	waits := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))

	var lastPatch []byte
	unchanged, undone := 0, 0
	for node := base; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		patch, err := json.Marshal(c.build(node))
		if err != nil {
			return fmt.Errorf("patch of node %s: %w", node.Name, err)
		}
		if unchanged++; !bytes.Equal(patch, lastPatch) {
			lastPatch, unchanged = patch, 0
		}
		patched, err := p.send(inFlight, patch)
		if err == nil && c.done(patched) {
			return nil
		}
		if err == nil {
			switch undone++; {
			case undone == 1 && !c.within:
				limited, cancel = context.WithTimeout(context.WithoutCancel(ctx), p.Timeout)
				defer cancel()
				ctx, inFlight = limited, limited
			case undone == maxUndone:
				return fmt.Errorf("node %s: the taint is back after each of %d patches: %s", node.Name, undone, whoTaints(base, patched))
			}
			err = errTaintedAgain
		}
		if IsFinal(err) {
			return &Refused{err}
		}

		// Also after a lost reply: the patch may have been applied.
		again, readErr := p.readAgain(limited, waits, err)
		switch {
		case readErr != nil:
			return fmt.Errorf("patch of node %s: %w; then, reading it again: %w", node.Name, err, readErr)
		case again.UID != node.UID:
			return ErrReplaced
		case c.done(again):
			return nil
		case c.blocks != nil && slices.ContainsFunc(again.Spec.Taints, c.blocks):
			return ErrBlocked
		case statusCode(err) == http.StatusUnprocessableEntity &&
			(again.ResourceVersion == node.ResourceVersion || unchanged == maxUnchanged):
			return &Refused{err} // no test can have failed
		}
		p.Retried(err)
		node = again
	}
}

// whoTaints names the client that has written the taints since base was read, as far as managedFields tell.
func whoTaints(base, now *Node) string {
	writers := func(node *Node) map[string]time.Time {
		times := make(map[string]time.Time)
		for _, entry := range node.ManagedFields {
			if entry.FieldsV1 != nil && entry.Time != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:taints"`) {
				times[entry.Manager] = entry.Time.Time
			}
		}
		return times
	}
	before, last := writers(base), ""
	var at time.Time
	for manager, wrote := range writers(now) {
		old, known := before[manager]
		if manager != fieldManager && (!known || wrote.After(old)) && wrote.After(at) {
			last, at = manager, wrote
		}
	}
	if last == "" {
		return "an admission webhook or policy puts it back"
	}
	return fmt.Sprintf("%q puts it back (metadata.managedFields)", last)
}

// send makes one attempt.
func (p *Patcher) send(ctx context.Context, patch []byte) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	return inTime(p.Node.Patch(ctx, patch))
}

// inTime names the time limit in the error of a request that has exceeded it.
func inTime(node *Node, err error) (*Node, error) {
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("no answer in time: %w", err)
	}
	return node, err
}

// readAgain waits, at least as long as the API server asks for in err, and reads the Node. It retries
// failed reads until ctx ends.
func (p *Patcher) readAgain(ctx context.Context, waits backoff.BackOff, err error) (*Node, error) {
	var last error
	for {
		if over := sleep(ctx, max(waits.NextBackOff(), retryAfter(err))); over != nil {
			return nil, cmp.Or(last, over)
		}
		var node *Node
		if node, err = p.Get(ctx); err == nil || IsFinal(err) {
			return node, err
		}
		last = err
	}
}

// retryAfter is how long the API server asks to wait, 0 if it does not.
func retryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second
}

// Get reads the Node within Timeout.
func (p *Patcher) Get(ctx context.Context) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	return inTime(p.Node.Get(ctx))
}

// IsFinal reports whether a retry would get the same answer: a client error other than "not now" or
// "not on this version of the object".
func IsFinal(err error) bool {
	switch code := statusCode(err); code {
	case http.StatusConflict, http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// statusCode returns the HTTP status in the API server's answer, or 0 if err is something else. The
// code decides, because an admission webhook may set any reason.
func statusCode(err error) int32 {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code
	}
	return 0
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
