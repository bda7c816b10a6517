package nodepatch

import (
	"context"
	"time"
)

// latePoll is how often a young Node is read while its taint has not come yet.
const latePoll = 3 * time.Second

// AwaitTaint waits for the taint of a young Node that does not bear it yet: some platforms put
// taints on only after the node has joined, and one that came after the label would stay for ever.
// It returns the Node as it was read last: with the taint, or older than window.
//
// A Node that bears our annotation has been open before and is not waited for. An age that makes
// no sense (this node's clock is not set yet) counts as 0. A read that fails is made again.
// The error is ErrReplaced or ctx's own.
func (p *Patcher) AwaitTaint(ctx context.Context, node *Node, r Request, window time.Duration) (*Node, error) {
	age := time.Since(node.CreationTimestamp.Time)
	if age < 0 || node.CreationTimestamp.IsZero() {
		age = 0
	}
	// Measured from here on by the monotonic clock, whatever is done to the other one.
	end := time.Now().Add(window - age)
	for {
		if _, before := node.Annotations[r.Annotation]; before || len(Taints(node, r)) > 0 || !time.Now().Before(end) {
			return node, nil
		}
		if err := sleep(ctx, min(latePoll, time.Until(end))); err != nil {
			return nil, err
		}
		again, err := p.get(ctx)
		switch {
		case err != nil:
		case again.UID != node.UID:
			return nil, ErrReplaced
		default:
			node = again
		}
	}
}
