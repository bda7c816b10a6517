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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxUnchanged is how often the API server may refuse the same patch although the Node has changed in between (a taint
	// before ours that comes and goes). More often counts as a refusal.
	maxUnchanged = 3
	// maxUndone is how many patches may be applied and leave the Node with the taint. A race is lost once, or twice.
	maxUndone = 3
	// fieldManager is the agent's name in managedFields, and the beginning of the controller's: what stands before the "/" of
	// the user agent.
	fieldManager = "kube-node-ready"
)

// ErrReplaced means that the Node was deleted and created again since it was read: the checks have verified the old one.
var ErrReplaced = errors.New("the node was deleted and created again under the same name")

// ErrBlocked means that a client has added a taint that blocks the release: what was verified does not count any more.
var ErrBlocked = errors.New("a foreign taint was added while the node was patched")

// ErrOutdated means that the Node was started again since base was read, or released and is to be verified again.
var ErrOutdated = errors.New("the node was started again, or released, since it was read")

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
	voids  func(*Node) error // an error ends it: the Node has changed in a way that no retry may ignore; nil: nothing does
	within bool              // the end of ctx also ends a request in flight, and no retry goes on after it
}

func (c change) void(node *Node) error {
	if c.voids == nil {
		return nil
	}
	return c.voids(node)
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
	_, err = p.apply(ctx, base, releasing(r, &removed))
	return removed, err
}

// ReleaseCached is Release for a base from a cache, which may be behind: it changes only a Node that has not changed since it was
// read, because no operation of a JSON patch can test that no taint was added. It returns the released Node, too. Besides
// those of Release the error may be ErrOutdated.
func (p *Patcher) ReleaseCached(ctx context.Context, base *Node, r Request) (released *Node, removed []Taint, err error) {
	c := releasing(r, &removed)
	build, voids := c.build, c.voids
	c.build = func(node *Node) []Operation {
		return append([]Operation{testVersion(node)}, build(node)...)
	}
	c.voids = func(node *Node) error {
		annotation, before := node.Annotations[r.Annotation], base.Annotations[r.Annotation]
		if node.Status.NodeInfo.BootID != base.Status.NodeInfo.BootID || annotation != before && !hasLabel(node, r) {
			return ErrOutdated
		}
		if why := Untouchable(node); why != "" {
			return fmt.Errorf("node %s is left alone: %s", node.Name, why)
		}
		return voids(node)
	}
	released, err = p.apply(ctx, base, c)
	return released, removed, err
}

// releasing is the change that a release makes. It sets removed.
func releasing(r Request, removed *[]Taint) change {
	return change{
		build: func(node *Node) []Operation {
			*removed = r.removed(node)
			return Build(node, r)
		},
		done: func(node *Node) bool { return IsVerified(node, r) },
		voids: func(node *Node) error {
			if r.Blocks != nil && slices.ContainsFunc(node.Spec.Taints, r.Blocks) {
				return ErrBlocked
			}
			return nil
		},
	}
}

// RemoveAgain removes what a release removes from a Node that was released before, if the startup taint was added
// again since, within ctx. It leaves a Node alone that was replaced, is being deleted, or has lost the label: somebody has asked
// for a new verification. removed is empty where there was nothing to remove. The errors are those of Release.
func (p *Patcher) RemoveAgain(ctx context.Context, uid types.UID, r Request) (removed []Taint, err error) {
	node, err := p.Get(ctx)
	if err != nil || node.UID != uid {
		return nil, err
	}
	removed = r.removed(node)
	done := func(node *Node) bool {
		return node.DeletionTimestamp != nil || !hasLabel(node, r) || IsVerified(node, r)
	}
	if !done(node) {
		node, err = p.apply(ctx, node, change{done: done, within: true, build: func(node *Node) []Operation {
			ops := append(testUID(node), unchanged("/metadata/labels", node.Labels, r.Label))
			return append(ops, removeTaints(node, r.Removes)...)
		}})
	}
	if err != nil || !IsVerified(node, r) {
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
	done := func(node *Node) bool {
		return HasFailedTaint(node, r) || len(StartupTaints(node, r)) == 0 || node.DeletionTimestamp != nil
	}
	if !done(node) {
		build := func(node *Node) []Operation { return BuildFailedTaint(node, r, value) }
		node, err = p.apply(ctx, node, change{build: build, done: done})
	}
	return err == nil && HasFailedTaint(node, r), err
}

// Retaint adds r's failed taint with a value to base, a released node as last read, unless it has changed since: then the API
// server answers 422. It does not retry: the caller decides again.
func (p *Patcher) Retaint(ctx context.Context, base *Node, r Request, value string) error {
	patch, err := json.Marshal(BuildRetaint(base, r, value))
	if err != nil {
		return fmt.Errorf("patch of node %s: %w", base.Name, err)
	}
	_, err = p.inTime(ctx, func(ctx context.Context) (*Node, error) { return p.Node.Patch(ctx, patch) })
	return err
}

// RemoveFailedTaint removes r's failed taint and nothing else, starting from base. The errors are those of Release.
func (p *Patcher) RemoveFailedTaint(ctx context.Context, base *Node, r Request) error {
	_, err := p.apply(ctx, base, change{
		build: func(node *Node) []Operation { return append(testUID(node), removeTaints(node, r.isFailed)...) },
		done:  func(node *Node) bool { return !HasFailedTaint(node, r) },
	})
	return err
}

// apply builds and sends patches until the change is done, and returns the Node as it is then.
func (p *Patcher) apply(ctx context.Context, base *Node, c change) (*Node, error) {
	limited, cancel := context.WithTimeout(ctx, p.Deadline)
	defer cancel()
	inFlight := ctx
	if !c.within {
		inFlight = context.WithoutCancel(ctx) // a patch that is sent is waited for
	}
	waits := newWaits()
	var lastPatch []byte
	unchanged, undone := 0, 0
	for node := base; ; {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		patch, err := json.Marshal(c.build(node))
		if err != nil {
			return nil, fmt.Errorf("patch of node %s: %w", node.Name, err)
		}
		if unchanged++; !bytes.Equal(patch, lastPatch) {
			lastPatch, unchanged = patch, 0
		}
		patched, err := p.inTime(inFlight, func(ctx context.Context) (*Node, error) { return p.Node.Patch(ctx, patch) })
		if err == nil && c.done(patched) {
			return patched, nil
		}
		if err == nil {
			switch undone++; {
			case undone == 1 && !c.within:
				limited, cancel = context.WithTimeout(context.WithoutCancel(ctx), p.Timeout)
				defer cancel()
				ctx, inFlight = limited, limited
			case undone == maxUndone:
				who := whoTaints(base, patched)
				return nil, fmt.Errorf("node %s: the taint is back after each of %d patches: %s", node.Name, undone, who)
			}
			// No operation of a JSON patch can test that a list has not grown.
			err = errors.New("the startup taint was added while the node was patched")
		}
		if IsFinal(err) {
			return nil, &Refused{err}
		}

		// Also after a lost reply: the patch may have been applied.
		again, readErr := p.readAgain(limited, waits, err)
		switch {
		case readErr != nil:
			return nil, fmt.Errorf("patch of node %s: %w; then, reading it again: %w", node.Name, err, readErr)
		case again.UID != node.UID:
			return nil, ErrReplaced
		case c.done(again):
			return again, nil
		case c.void(again) != nil:
			return nil, c.void(again)
		case statusCode(err) == http.StatusUnprocessableEntity &&
			(again.ResourceVersion == node.ResourceVersion || unchanged == maxUnchanged):
			return nil, &Refused{err} // no test can have failed
		}
		p.Retried(err)
		node = again
	}
}

// newWaits returns the waits between attempts.
func newWaits() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
}

// whoTaints names the client that has written the taints since base was read, as far as managedFields tell.
func whoTaints(base, now *Node) string {
	wroteTaints := func(entry metav1.ManagedFieldsEntry) bool {
		return entry.FieldsV1 != nil && entry.Time != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:taints"`)
	}
	last, at := "", time.Time{}
	for _, entry := range now.ManagedFields {
		isKnown := func(before metav1.ManagedFieldsEntry) bool {
			return before.Manager == entry.Manager && wroteTaints(before) && !entry.Time.After(before.Time.Time)
		}
		if !strings.HasPrefix(entry.Manager, fieldManager) && wroteTaints(entry) && entry.Time.After(at) &&
			!slices.ContainsFunc(base.ManagedFields, isKnown) {
			last, at = entry.Manager, entry.Time.Time
		}
	}
	if last == "" {
		return "an admission webhook or policy puts it back"
	}
	return fmt.Sprintf("%q puts it back (metadata.managedFields)", last)
}

// inTime sends a request within Timeout, and names that limit in the error if it is exceeded.
func (p *Patcher) inTime(ctx context.Context, send func(context.Context) (*Node, error)) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	node, err := send(ctx)
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
		retryAfter, _ := apierrors.SuggestsClientDelay(err) // in seconds
		if over := sleep(ctx, max(waits.NextBackOff(), time.Duration(retryAfter)*time.Second)); over != nil {
			return nil, cmp.Or(last, over)
		}
		var node *Node
		if node, err = p.Get(ctx); err == nil || IsFinal(err) {
			return node, err
		}
		last = err
	}
}

// Get reads the Node within Timeout.
func (p *Patcher) Get(ctx context.Context) (*Node, error) { return p.inTime(ctx, p.Node.Get) }

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
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
