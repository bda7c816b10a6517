package nodepatch

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// Wait reads the Node with get, from the API server's cache, until done reports true of it, or until has passed (zero: no limit),
// and returns it as last read: every 2 s for 10 s, then more and more rarely, down to every 8 s after 40 s, while its
// taints do not change. Each pause is ±20 %, so that thousands of nodes do not ask together.
//
// The error is ErrReplaced, ctx's own, or that of a failed read.
func (p *Patcher) Wait(ctx context.Context, get func(context.Context) (*Node, error), node *Node, until time.Time,
	done func(*Node) bool) (*Node, error) {
	for since := time.Now(); !done(node); {
		pause := min(max(time.Since(since)/5, 2*time.Second), 8*time.Second)
		pause = time.Duration((0.8 + 0.4*rand.Float64()) * float64(pause))
		if !until.IsZero() {
			pause = min(pause, time.Until(until))
		}
		if pause <= 0 {
			break
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
		again, err := p.inTime(ctx, get)
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return nil, err
		}
		if again.UID != node.UID {
			return nil, ErrReplaced
		}
		if !slices.Equal(again.Spec.Taints, node.Spec.Taints) {
			since = time.Now()
		}
		node = again
	}
	return node, nil
}

// StartupTaintDue returns until when a startup taint may still be added to node: some platforms add it only after the
// node has joined, and one that came after the label would stay. A Node with our annotation has been released before
// and is not waited for.
//
// serverNow is the API server's clock: this node's own may not be set yet. If it is zero or before the Node's
// creation, the Node counts as new.
func StartupTaintDue(node *Node, window time.Duration, serverNow time.Time) time.Time {
	now := time.Now() // with a monotonic reading: the clock may be set while we wait
	if _, released := node.Annotations[Annotation]; released {
		return now
	}
	var age time.Duration
	if !serverNow.IsZero() && !node.CreationTimestamp.IsZero() {
		age = max(0, serverNow.Sub(node.CreationTimestamp.Time))
	}
	return now.Add(window - age)
}
