package nodepatch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxUnchanged is how often the very same patch may be refused although the Node has changed in
// between (a taint in front of ours that comes and goes). More than that is a refusal.
const maxUnchanged = 3

// ErrReplaced means that the Node was deleted and created again since it was read: what has been
// verified was the other one.
var ErrReplaced = errors.New("the node was deleted and created again under the same name")

// Refused means that the API server will not apply the patch, and trying again does not help.
type Refused struct{ Err error }

func (r *Refused) Error() string { return fmt.Sprintf("the API server refuses the patch: %v", r.Err) }
func (r *Refused) Unwrap() error { return r.Err }

// NodeAPI is the access to one Node that the Patcher needs.
type NodeAPI interface {
	Get(ctx context.Context) (*Node, error)
	// Patch applies a JSON patch and returns the Node as it is then.
	Patch(ctx context.Context, patch []byte) (*Node, error)
}

// errTaintedAgain means that somebody has put a taint with our key on between read and patch: no
// operation of a JSON patch can test that a list has not grown.
var errTaintedAgain = errors.New("the taint was put on meanwhile")

// Patcher applies a Request to a Node.
type Patcher struct {
	Node     NodeAPI
	Timeout  time.Duration // of one request
	Deadline time.Duration // of all tries together
	// Retried is told why the patch is built and sent again, each time that it is.
	Retried func(err error)
}

// Apply patches the Node so that it is Open, starting from base, the Node as it was read last. The
// Node is read again before every further try, and nothing is sent to one that is Open already.
//
// Once ctx has ended nothing more is sent, but a patch that is on its way is waited for: its answer
// says what the Node is now.
//
// A Node on which a patch has left our taint, because it came meanwhile, is patched once more, whether ctx has ended or not: it bears
// the label, which ends this pod and keeps the next one away.
//
// The error is a *Refused, ErrReplaced, ctx's own, or the last one when the deadline has passed.
func (p *Patcher) Apply(ctx context.Context, base *Node, r Request) error {
	return p.apply(ctx, base,
		func(node *Node) []Operation { return Build(node, r) },
		func(node *Node) bool { return Open(node, r) })
}

// Fail puts the failed taint of r on the Node, with a value, unless it bears that already. It reads the Node first. The errors are
// those of Apply.
func (p *Patcher) Fail(ctx context.Context, r Request, value string) error {
	node, err := p.get(ctx)
	if err != nil || Failed(node, r) {
		return err
	}
	return p.apply(ctx, node,
		func(node *Node) []Operation { return BuildFailed(node, r, value) },
		func(node *Node) bool { return Failed(node, r) })
}

// apply builds and sends patches until the Node is done.
func (p *Patcher) apply(ctx context.Context, base *Node, build func(*Node) []Operation, done func(*Node) bool) error {
	limited, cancel := context.WithTimeout(ctx, p.Deadline)
	defer cancel()
	waits := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMultiplier(2),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))

	var lastPatch []byte
	unchanged := 0
	for node := base; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		patch, err := json.Marshal(build(node))
		if err != nil {
			return fmt.Errorf("patch of node %s: %w", node.Name, err)
		}
		if unchanged++; !bytes.Equal(patch, lastPatch) {
			lastPatch, unchanged = patch, 0
		}
		patched, err := p.send(ctx, patch)
		if err == nil && done(patched) {
			return nil
		}
		if err == nil {
			err = errTaintedAgain
			ctx = context.WithoutCancel(ctx)
			limited, cancel = context.WithTimeout(ctx, p.Deadline)
			defer cancel()
		}
		if final(err) {
			return &Refused{err}
		}

		// After a lost answer it is not known either what became of the patch: look.
		again, readErr := p.readAgain(limited, waits, err)
		switch {
		case readErr != nil:
			return fmt.Errorf("patch of node %s: %w; then, reading it again: %w", node.Name, err, readErr)
		case again.UID != node.UID:
			return ErrReplaced
		case done(again):
			return nil
		case statusCode(err) == http.StatusUnprocessableEntity && (again.ResourceVersion == node.ResourceVersion || unchanged == maxUnchanged):
			return &Refused{err} // none of the tests can have failed
		}
		p.Retried(err)
		node = again
	}
}

// send makes one try. What is under way when ctx ends is finished within the time limit.
func (p *Patcher) send(ctx context.Context, patch []byte) (*Node, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.Timeout)
	defer cancel()
	return inTime(p.Node.Patch(ctx, patch))
}

// inTime says of an error that it is the end of a request's time limit.
func inTime(node *Node, err error) (*Node, error) {
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("no answer in time: %w", err)
	}
	return node, err
}

// readAgain waits, after err at least as long as the API server has asked for, and reads the Node,
// as often as it takes within ctx.
func (p *Patcher) readAgain(ctx context.Context, waits backoff.BackOff, err error) (*Node, error) {
	var last error
	for {
		if over := sleep(ctx, max(waits.NextBackOff(), retryAfter(err))); over != nil {
			return nil, cmp.Or(last, over)
		}
		var node *Node
		if node, err = p.get(ctx); err == nil || final(err) {
			return node, err
		}
		last = err
	}
}

// retryAfter is how long the API server has asked to wait, 0 where it has not.
func retryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second
}

func (p *Patcher) get(ctx context.Context) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	return inTime(p.Node.Get(ctx))
}

// final tells whether the API server's answer will be the same again: a client error other than
// those that say "not now" or "not on what is there now".
func final(err error) bool {
	switch code := statusCode(err); code {
	case http.StatusConflict, http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// statusCode returns the HTTP status of the API server's answer, or 0 where err is none. It is the
// code that counts: an admission webhook may put any reason beside it.
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
