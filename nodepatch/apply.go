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
)

const (
	// maxRepeated is how often the API server may refuse the same patch although the Node has changed in between (a taint
	// before ours that comes and goes). More often counts as a refusal.
	maxRepeated = 3
	// maxUndone is how many patches may be applied and leave the Node with the taint. A race is lost once, or twice.
	maxUndone = 3
	// fieldManager is the agent's name in managedFields, and the beginning of the controller's: what stands before the "/" of
	// the user agent.
	fieldManager = "kube-node-ready"
)

// change is what a patch does to a Node, and how to tell that nothing is left to do. Which changes use the last three fields:
//
//	Release                         giveUp
//	ReleaseCached                   giveUp, onlyConflicts
//	RemoveAgain                     endsWithCtx
//	AddFailedTaint, Remove…         none of them
type change struct {
	build         func(*Node) []Operation
	done          func(*Node) bool
	giveUp        func(*Node) error // why no other patch may follow, although done reports false; nil: nothing prevents it
	onlyConflicts bool              // another patch follows only on 409 and 422: after any other failure the caller tries again
	endsWithCtx   bool              // the end of ctx also ends a request in flight, and no retry goes on after it
}

// carryOut makes a change, and returns the Node as it is then. Where a patch was applied and the Node has the startup taint all
// the same, it starts over: for one Timeout, and despite the end of ctx, unless c.endsWithCtx.
func (p *Patcher) carryOut(ctx context.Context, base *Node, c change) (*Node, error) {
	node, err := p.apply(ctx, base, c)
	if err != nil || c.done(node) {
		return node, err
	}
	if !c.endsWithCtx {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), p.Timeout)
		defer cancel()
		c.endsWithCtx = true
	}
	for range maxUndone - 1 {
		// No operation of a JSON patch can test that a list has not grown.
		undone := errors.New("the startup taint was added while the node was patched")
		if node, err = p.readAgain(ctx, newWaits(), base, c, undone); err != nil || c.done(node) {
			return node, err
		}
		p.retried(undone)
		if node, err = p.apply(ctx, node, c); err != nil || c.done(node) {
			return node, err
		}
	}
	return nil, fmt.Errorf("node %s: the taint is back after each of %d patches: %s", base.Name, maxUndone, whoTaints(base, node))
}

// apply sends patches until one is applied, or none is needed any more, and returns the Node as it is then.
func (p *Patcher) apply(ctx context.Context, node *Node, c change) (*Node, error) {
	limited, cancel := context.WithTimeout(ctx, p.Deadline)
	defer cancel()
	inFlight := ctx
	if !c.endsWithCtx {
		inFlight = context.WithoutCancel(ctx) // a patch that is sent is waited for
	}
	waits := newWaits()
	var lastPatch []byte
	for repeated := 0; ctx.Err() == nil; repeated++ {
		patch, _ := json.Marshal(c.build(node)) // of strings: it cannot fail
		if !bytes.Equal(patch, lastPatch) {
			lastPatch, repeated = patch, 0
		}
		patched, err := p.inTime(inFlight, func(ctx context.Context) (*Node, error) { return p.Node.Patch(ctx, patch) })
		switch {
		case err == nil:
			return patched, nil
		case IsFinal(err):
			return nil, refused(err)
		case c.onlyConflicts && !isConflict(err):
			return nil, err
		}
		again, readErr := p.readAgain(limited, waits, node, c, err)
		switch {
		case readErr != nil || c.done(again):
			return again, readErr
		case statusCode(err) == http.StatusUnprocessableEntity &&
			(again.ResourceVersion == node.ResourceVersion || repeated == maxRepeated):
			return nil, refused(err) // no test can have failed
		}
		p.retried(err)
		node = again
	}
	return nil, ctx.Err()
}

// readAgain reads the Node after a patch of before has ended with failure: it may have been applied all the same. The error is
// why no other patch may follow.
func (p *Patcher) readAgain(ctx context.Context, waits backoff.BackOff, before *Node, c change, failure error) (*Node, error) {
	again, err := p.readAfter(ctx, waits, failure)
	switch {
	case err != nil:
		return nil, fmt.Errorf("patch of node %s: %w; cannot read the node again: %w", before.Name, failure, err)
	case again.UID != before.UID:
		return again, ErrReplaced
	case !c.done(again) && c.giveUp != nil:
		return again, c.giveUp(again) // asked once: it may list pods
	}
	return again, nil
}

func refused(err error) error { return fmt.Errorf("the API server refuses the patch: %w", err) }

// isConflict reports whether the Node may have changed since it was read.
func isConflict(err error) bool {
	code := statusCode(err)
	return code == http.StatusConflict || code == http.StatusUnprocessableEntity
}

func (p *Patcher) retried(err error) {
	if p.Retried != nil {
		p.Retried(err)
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
	others := slices.DeleteFunc(slices.Clone(now.ManagedFields), func(entry metav1.ManagedFieldsEntry) bool {
		isKnown := func(before metav1.ManagedFieldsEntry) bool {
			return before.Manager == entry.Manager && wroteTaints(before) && !entry.Time.After(before.Time.Time)
		}
		return strings.HasPrefix(entry.Manager, fieldManager) || !wroteTaints(entry) || slices.ContainsFunc(base.ManagedFields, isKnown)
	})
	if len(others) == 0 {
		return "an admission webhook or policy puts it back"
	}
	last := slices.MaxFunc(others, func(a, b metav1.ManagedFieldsEntry) int { return a.Time.Compare(b.Time.Time) })
	return fmt.Sprintf("%q puts it back (metadata.managedFields)", last.Manager)
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

// readAfter waits, at least as long as the API server asks for in err, and reads the Node. It retries
// failed reads until ctx ends.
func (p *Patcher) readAfter(ctx context.Context, waits backoff.BackOff, err error) (*Node, error) {
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

// IsFinal reports whether a retry would get the same answer: a client error other than "not now" or
// "not on this version of the object".
func IsFinal(err error) bool {
	code := statusCode(err)
	isNotNow := code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
	return code >= 400 && code < 500 && !isNotNow && !isConflict(err)
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
	pause, end := context.WithTimeout(ctx, d)
	defer end()
	<-pause.Done()
	return ctx.Err()
}
