package ownnode

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Node is the Node of this agent as it has seen it. One goroutine at a time uses it.
type Node struct {
	*Access
	seen Seen
	// reusable is the report of a read just before the checks. The api check would send the same request, and reuses it:
	// that saves one of five requests on every new node. nil once it is used.
	reusable       *checks.Report
	startupDue     time.Time // until when a late startup taint may be added; zero before it is known
	needsFreshRead bool      // a foreign taint was seen, so the release starts from a fresh read
	isReplaced     bool      // the Node was deleted and created again, so nothing that was verified before counts
}

// Seen is a Node as it was read last.
type Seen struct {
	UID  types.UID       // "" before the first read
	Node *nodepatch.Node // nil before, and after Forget
	At   time.Time       // when; zero for a read from the API server's cache, on which no patch is built
}

// New returns a Node that was not read yet.
func New(access *Access) *Node { return &Node{Access: access} }

// Reset forgets everything that was seen.
func (n *Node) Reset() { *n = Node{Access: n.Access} }

// Forget drops the last read because it is old. If another Node is read next, it is known by its uid.
func (n *Node) Forget() {
	n.seen.Node, n.seen.At, n.reusable, n.needsFreshRead = nil, time.Time{}, nil, true
}

// RequireFreshRead makes BeforeRelease read the Node again.
func (n *Node) RequireFreshRead() { n.needsFreshRead = true }

// OrReplaced returns ErrReplaced, once, if another Node of the same name was read since Reset, and else err. From then on, what
// was seen is that of the other Node.
func (n *Node) OrReplaced(err error) error {
	if n.isReplaced {
		n.isReplaced = false
		return nodepatch.ErrReplaced
	}
	return err
}

// Seen returns the Node as it was read last.
func (n *Node) Seen() Seen { return n.seen }

// Last returns the Node as it was read last, or nil.
func (n *Node) Last() *nodepatch.Node { return n.seen.Node }

// Keep takes the answer of the API server to a patch as the last read.
func (n *Node) Keep(node *nodepatch.Node) { n.keep(node, time.Now()) }

// keep takes a Node as it was read at a time, zero from the cache. What was seen of a Node with another uid is forgotten.
func (n *Node) keep(node *nodepatch.Node, at time.Time) {
	if n.seen.UID != "" && n.seen.UID != node.UID {
		*n = Node{Access: n.Access, isReplaced: true}
	}
	n.seen.UID, n.seen.Node, n.seen.At = node.UID, node, at
}

// ReadFirst reads the node before the checks, whose first ReadForCheck returns the same report.
func (n *Node) ReadFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.CheckTimeout)
	defer cancel()
	start := time.Now()
	report, err := n.read(ctx)
	if err == nil {
		report.Took = n.seen.At.Sub(start)
		n.reusable = &report
	}
	return err
}

// ReadForCheck is the request of the api check. The patch is built on the answer.
func (n *Node) ReadForCheck(ctx context.Context) (checks.Report, error) {
	if report := n.reusable; report != nil {
		n.reusable = nil
		if n.isRecent() {
			return *report, nil
		}
	}
	n.Kube.CloseIdleConnections()
	return n.read(ctx)
}

// read reads the node with a request that is larger than a packet.
func (n *Node) read(ctx context.Context) (checks.Report, error) {
	node, report, err := checklist.ReadNode(ctx, n.cfg.NodeName, n.Client.Get)
	if err == nil {
		n.keep(node, time.Now())
	}
	return report, err
}

// isRecent reports whether the Node is judged and released as it was read: CHECK_TIMEOUT may be minutes.
func (n *Node) isRecent() bool {
	return time.Since(n.seen.At) < min(3*time.Second, n.cfg.CheckTimeout)
}

// Recent returns the Node, and reads it again if that was long ago.
func (n *Node) Recent(ctx context.Context) (*nodepatch.Node, error) {
	if !n.isRecent() {
		node, err := n.Patcher.Get(ctx)
		if err != nil {
			return nil, err
		}
		n.keep(node, time.Now())
	}
	return n.seen.Node, nil
}

// Refresh reads the Node again. It forgets the last read if that fails, and returns an error only if the Node is another one.
func (n *Node) Refresh(ctx context.Context) error {
	n.seen.At = time.Time{}
	if _, err := n.Recent(ctx); err != nil {
		n.Forget()
	}
	return n.OrReplaced(nil)
}

// BeforeRelease returns the Node that the release is built on. It reads it again if it may have been changed unseen.
func (n *Node) BeforeRelease(ctx context.Context) (*nodepatch.Node, error) {
	if n.needsFreshRead {
		n.needsFreshRead, n.seen.At = false, time.Time{}
	}
	node, err := n.Recent(ctx)
	return node, n.OrReplaced(err)
}

// Wait reads the node until it is done, or until the deadline (zero: no limit).
func (n *Node) Wait(ctx context.Context, deadline time.Time, done func(*nodepatch.Node) bool) error {
	node, err := n.Patcher.Wait(ctx, n.Client.GetCached, n.seen.Node, deadline, done)
	switch {
	case err == nil:
		n.keep(node, time.Time{})
	case errors.Is(err, nodepatch.ErrReplaced):
		*n = Node{Access: n.Access, isReplaced: true}
	}
	return err
}

// StartupTaintDue returns until when a late startup taint may be added.
func (n *Node) StartupTaintDue() time.Time {
	if n.startupDue.IsZero() {
		n.startupDue = nodepatch.StartupTaintDue(n.seen.Node, n.cfg.LateTaintWindow, n.Kube.ServerTime())
	}
	return n.startupDue
}

// ForeignTaint returns a taint that must be gone before the checks start, or nil. A prefix may cover the agent's own taints too,
// which only the agent removes.
func (n *Node) ForeignTaint() *nodepatch.Taint {
	if n.seen.Node == nil {
		return nil
	}
	return n.Keys.ForeignTaint(n.seen.Node.Spec.Taints)
}

// KeepCached keeps a released node as read from the API server's cache, or returns the error of that read. A node that is not
// verified is read again, from etcd: the cache may be behind the release.
func (n *Node) KeepCached(ctx context.Context, node *nodepatch.Node, err error) error {
	if err == nil && !n.IsVerified(node) {
		node, err = n.Client.Get(ctx)
	}
	if err == nil {
		n.keep(node, time.Now())
	}
	return err
}

// RemoveFailedTaint removes the failed taint from the Node, and from the Node as it was seen last.
func (n *Node) RemoveFailedTaint(ctx context.Context) error {
	err := n.Patcher.RemoveFailedTaint(ctx, n.seen.Node, n.Keys)
	if err == nil {
		node := *n.seen.Node
		node.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), n.Keys.IsFailed)
		n.seen.Node = &node
	}
	return err
}
