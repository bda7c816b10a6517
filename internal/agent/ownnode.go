package agent

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/nodecheck"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// nodeAccess reads and changes the Node of this agent, for the reporter and for the step that runs beside it. Only
// sawForeignTaint changes.
type nodeAccess struct {
	cfg     config.Config
	kube    *kube.Client
	node    nodepatch.Client
	patcher *nodepatch.Patcher
	keys    nodepatch.Keys
	// sawForeignTaint means that an answer to this process has shown a foreign taint since the round has begun, gone or not: what
	// passes beside it proves nothing. The reporter reads the Node, too.
	sawForeignTaint atomic.Bool
}

// see looks at each Node that an answer shows.
func (n *nodeAccess) see(node *nodepatch.Node) {
	if n.keys.ForeignTaint(node.Spec.Taints) != nil {
		n.sawForeignTaint.Store(true)
	}
}

// isVerified reports whether the node needs no verification.
func (n *nodeAccess) isVerified(node *nodepatch.Node) bool {
	if n.cfg.RecheckInterval > 0 {
		return n.keys.StaysVerified(node.Labels, node.Spec.Taints)
	}
	return n.keys.IsVerified(node.Labels, node.Spec.Taints)
}

// unmet says what node does not show although REQUIRE demands it, or "".
func (n *nodeAccess) unmet(ctx context.Context, node *nodepatch.Node) string {
	return nodecheck.Requirements{List: n.cfg.Require, Client: n.kube, Timeout: n.cfg.CheckTimeout}.Unmet(ctx, node)
}

// isAgents reports whether an agent has added this failed taint, before or after a restart.
func (n *nodeAccess) isAgents(taint nodepatch.Taint) bool {
	return n.keys.IsFailed(taint) && verdict.IsFailureValue(taint.Value)
}

// setCondition writes the condition with a client of the Node, and returns the Node as it is then.
func (n *nodeAccess) setCondition(ctx context.Context, client nodepatch.Client, node *nodepatch.Node, c nodepatch.Condition) (
	*nodepatch.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.CheckTimeout)
	defer cancel()
	c.Type = n.cfg.ConditionType
	return client.SetCondition(ctx, node, c, n.kube.ServerTime())
}

// ownNode is the Node of this agent as it has seen it. A step, which the reporter runs beside its own goroutine, owns it while it
// runs.
type ownNode struct {
	access *nodeAccess
	seen   seen
	// proven is the uid of the Node whose checks have passed in this process, "" once one fails. It survives into the next
	// verification.
	proven types.UID
}

// seen is one Node as the agent has seen it. A Node of another uid begins empty.
type seen struct {
	uid  types.UID       // "" before the first read
	node *nodepatch.Node // as last read, nil before, and after forget
	at   time.Time       // when; zero for a read from the API server's cache, on which no patch is built
	// reusable is the report of a read just before the checks. The api check would send the same request, and reuses it:
	// that saves one of five requests on every new node. nil once it is used.
	reusable   *checks.Report
	startupDue time.Time // until when a late startup taint may be added; zero before it is known
	// needsFreshRead means that a foreign taint was seen: the release starts from a fresh read.
	needsFreshRead bool
	// isReplaced means that the Node was deleted and created again: nothing that was verified before counts.
	isReplaced bool
}

// keep takes a Node as it was read at a time, zero from the cache.
func (s *seen) keep(node *nodepatch.Node, at time.Time) {
	if s.uid != "" && s.uid != node.UID {
		*s = seen{isReplaced: true}
	}
	s.uid, s.node, s.at = node.UID, node, at
}

// forget drops what was read, because it is old. Another Node that is read next is known by its uid.
func (s *seen) forget() { s.node, s.at, s.reusable, s.needsFreshRead = nil, time.Time{}, nil, true }

// read reads the node with a request that is larger than a packet. The patch is built on the answer.
func (o *ownNode) read(ctx context.Context) (checks.Report, error) {
	node, report, err := checklist.ReadNode(ctx, o.access.cfg.NodeName, o.access.node.Get)
	if err == nil {
		o.seen.keep(node, time.Now())
	}
	return report, err
}

// isRecent reports whether the Node is judged and released as it was read: CHECK_TIMEOUT may be minutes.
func (o *ownNode) isRecent() bool {
	return time.Since(o.seen.at) < min(3*time.Second, o.access.cfg.CheckTimeout)
}

// recent returns the Node, and reads it again if that was long ago.
func (o *ownNode) recent(ctx context.Context) (*nodepatch.Node, error) {
	if !o.isRecent() {
		node, err := o.access.patcher.Get(ctx)
		if err != nil {
			return nil, err
		}
		o.seen.keep(node, time.Now())
	}
	return o.seen.node, nil
}

// wait reads the node until it is done, or until the deadline (zero: no limit).
func (o *ownNode) wait(ctx context.Context, deadline time.Time, done func(*nodepatch.Node) bool) error {
	node, err := o.access.patcher.Wait(ctx, o.access.node.GetCached, o.seen.node, deadline, done)
	switch {
	case err == nil:
		o.seen.keep(node, time.Time{})
	case errors.Is(err, nodepatch.ErrReplaced):
		o.seen = seen{isReplaced: true}
	}
	return err
}

// foreignTaint returns a taint that must be gone before the checks start, or nil. A prefix may cover the agent's own taints too,
// which nobody else removes.
func (o *ownNode) foreignTaint() *nodepatch.Taint {
	if o.seen.node == nil {
		return nil
	}
	return o.access.keys.ForeignTaint(o.seen.node.Spec.Taints)
}

// keepCached keeps a released node as read from the API server's cache, or returns the error of that read. A node that is not
// verified is read again, from etcd: the cache may be behind the release.
func (o *ownNode) keepCached(ctx context.Context, node *nodepatch.Node, err error) error {
	if err == nil && !o.access.isVerified(node) {
		node, err = o.access.node.Get(ctx)
	}
	if err == nil {
		o.seen.keep(node, time.Now())
	}
	return err
}

// remaining returns the taints that still repel pods after the release.
func remaining(taints []nodepatch.Taint, keys nodepatch.Keys) []nodepatch.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(taint nodepatch.Taint) bool {
		return keys.Removes(taint) || (taint.Effect != "NoSchedule" && taint.Effect != "NoExecute")
	})
}

// removeFailedTaint removes the failed taint from the Node, and from the Node as it was seen last.
func (o *ownNode) removeFailedTaint(ctx context.Context) error {
	err := o.access.patcher.RemoveFailedTaint(ctx, o.seen.node, o.access.keys)
	if err == nil {
		o.seen.node.Spec.Taints = slices.DeleteFunc(o.seen.node.Spec.Taints, o.access.keys.IsFailed)
	}
	return err
}
