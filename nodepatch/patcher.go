package nodepatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrReplaced means that the Node was deleted and created again since it was read: the checks have verified the old one.
var ErrReplaced = errors.New("the node was deleted and created again under the same name")

// ErrBlocked means that a client has added a taint that blocks the release, or has taken away what it demands: what was verified
// does not count any more.
var ErrBlocked = errors.New("a foreign taint was added, or a requirement was lost, while the node was patched")

// ErrOutdated means that the Node was started again since base was read, or released and is to be verified again.
var ErrOutdated = errors.New("the node was rebooted or released since it was read")

// NodeAPI reads and patches one Node.
type NodeAPI interface {
	Get(ctx context.Context) (*Node, error)
	// Patch applies a JSON patch and returns the patched Node.
	Patch(ctx context.Context, patch []byte) (*Node, error)
}

// Patcher changes one Node.
type Patcher struct {
	Node     NodeAPI
	Timeout  time.Duration // of one request
	Deadline time.Duration // of all attempts of one patch together
	// Retried is called before each retry with the error of the last attempt, unless it is nil.
	Retried func(err error)
}

// Get reads the Node within Timeout.
func (p *Patcher) Get(ctx context.Context) (*Node, error) { return p.inTime(ctx, p.Node.Get) }

// Release makes the Node verified, starting from base, the Node as last read, and returns the released Node and the taints
// that it has removed. It reads the Node before every retry, and does not retry if the Node is verified by then.
//
// Once ctx has ended it sends no new patch, but it waits for the answer to one in flight.
//
// If the startup taint was added while the node was patched, it retries even after cancellation, for one Timeout: the
// Node has the label, which ends this pod and keeps the next one away.
//
// The error is that of a patch that the API server refuses, ErrReplaced, ErrBlocked, ctx's own, or the last one once Deadline has
// passed.
func (p *Patcher) Release(ctx context.Context, base *Node, r Release) (released *Node, removed []Taint, err error) {
	c := releasing(r, &removed)
	giveUp := c.giveUp
	c.giveUp = func(node *Node) error {
		if isLabelled := r.Keys.hasLabel(node.Labels) && !r.Keys.hasLabel(base.Labels); isLabelled {
			return nil // one patch was applied: nobody is left to remove the startup taint later, and a foreign one stays
		}
		return giveUp(node)
	}
	released, err = p.carryOut(ctx, base, c)
	return released, removed, err
}

// ReleaseCached is Release for a base from a cache, which may be behind: it changes only a Node that has not changed since it was
// read, because no operation of a JSON patch can test that no taint was added. It sends another patch only if the Node has
// changed: the caller has other nodes. It returns the Node as it is then, also beside ErrBlocked, ErrReplaced, and ErrOutdated,
// which no other method returns.
func (p *Patcher) ReleaseCached(ctx context.Context, base *Node, r Release) (now *Node, removed []Taint, err error) {
	c := releasing(r, &removed)
	build, giveUp := c.build, c.giveUp
	c.onlyConflicts = true
	c.build = func(node *Node) []Operation { return append([]Operation{testVersion(node)}, build(node)...) }
	c.giveUp = func(node *Node) error {
		isReleasedSince := node.Annotations[Annotation] != base.Annotations[Annotation] || r.Keys.hasLabel(base.Labels)
		isRebooted := node.Status.NodeInfo.BootID != base.Status.NodeInfo.BootID
		if isRebooted || isReleasedSince && !r.Keys.hasLabel(node.Labels) {
			return ErrOutdated
		}
		if why := Untouchable(node); why != "" {
			return fmt.Errorf("node %s is not changed: %s", node.Name, why)
		}
		return giveUp(node)
	}
	now, err = p.carryOut(ctx, base, c)
	return now, removed, err
}

// releasing is the change that a release makes. It sets removed.
func releasing(r Release, removed *[]Taint) change {
	return change{
		build: func(node *Node) []Operation {
			*removed = matching(node.Spec.Taints, r.Keys.Removes)
			return Build(node, r)
		},
		done: func(node *Node) bool { return r.Keys.IsVerified(node.Labels, node.Spec.Taints) },
		giveUp: func(node *Node) error {
			if r.Keys.ForeignTaint(node.Spec.Taints) != nil || r.Unmet != nil && r.Unmet(node) != "" {
				return ErrBlocked
			}
			return nil
		},
	}
}

// RemoveAgain removes what a release removes from a Node that was released before, if the startup taint was added again since,
// within ctx. It leaves a Node alone that was replaced, is being deleted, or has lost the label: somebody has asked for a new
// verification. removed is empty where there was nothing to remove. It returns the Node if that is verified, or nil. It
// returns the same errors as Release.
func (p *Patcher) RemoveAgain(ctx context.Context, uid types.UID, k Keys) (verified *Node, removed []Taint, err error) {
	node, err := p.Get(ctx)
	if err != nil || node.UID != uid {
		return nil, nil, err
	}
	removed = matching(node.Spec.Taints, k.Removes)
	done := func(node *Node) bool {
		return node.DeletionTimestamp != nil || !k.hasLabel(node.Labels) || !slices.ContainsFunc(node.Spec.Taints, k.Removes)
	}
	if !done(node) {
		node, err = p.carryOut(ctx, node, change{done: done, endsWithCtx: true, build: func(node *Node) []Operation {
			ops := append(testUID(node), unchanged("/metadata/labels", node.Labels, k.Label))
			return append(ops, removeTaints(node, k.Removes)...)
		}})
	}
	if err != nil || !k.IsVerified(node.Labels, node.Spec.Taints) {
		return nil, nil, err
	}
	return node, removed, nil
}

// AddFailedTaint adds the failed taint with a value to a Node that has the startup taint and no failed taint, and
// reports whether the Node has one now. It reads the Node first. The errors are those of Release.
func (p *Patcher) AddFailedTaint(ctx context.Context, k Keys, value string) (added bool, err error) {
	node, err := p.Get(ctx)
	if err != nil {
		return false, err
	}
	done := func(node *Node) bool {
		taints := node.Spec.Taints
		return k.HasFailedTaint(taints) || len(k.StartupTaints(taints)) == 0 || node.DeletionTimestamp != nil
	}
	if !done(node) {
		build := func(node *Node) []Operation { return BuildFailedTaint(node, k, value) }
		node, err = p.carryOut(ctx, node, change{build: build, done: done})
	}
	return err == nil && k.HasFailedTaint(node.Spec.Taints), err
}

// Retaint adds the failed taint with a value to base, a released node as last read, unless it has changed since: then the API
// server answers 422. It does not retry: the caller decides again.
func (p *Patcher) Retaint(ctx context.Context, base *Node, k Keys, value string) error {
	patch, _ := json.Marshal(BuildRetaint(base, k, value)) // of strings: it cannot fail
	_, err := p.inTime(ctx, func(ctx context.Context) (*Node, error) { return p.Node.Patch(ctx, patch) })
	return err
}
