// Package ownnode reads and changes the Node of this agent, and remembers what it has seen of it.
package ownnode

import (
	"context"
	"sync/atomic"

	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/nodecheck"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// patchAttempts is the time limit of all attempts of one patch together, in CHECK_TIMEOUTs.
const patchAttempts = 10

// Access reads and changes the Node. Any goroutine may use it.
type Access struct {
	cfg     config.Config
	Kube    *kube.Client
	Client  nodepatch.Client
	Patcher *nodepatch.Patcher
	Keys    nodepatch.Keys
	// sawForeignTaint means that an answer to this process has shown a foreign taint since the round has begun, gone or not. What
	// passes beside it proves nothing.
	sawForeignTaint atomic.Bool
}

// NewAccess returns the access to the Node that cfg names. It calls retried before each further attempt of a patch.
func NewAccess(cfg config.Config, client *kube.Client, retried func(error)) *Access {
	a := &Access{cfg: cfg, Kube: client, Keys: cfg.Keys()}
	a.Client = nodepatch.Client{REST: client.Core, Name: cfg.NodeName, Seen: a.see}
	a.Patcher = &nodepatch.Patcher{Node: a.Client, Timeout: cfg.CheckTimeout,
		Deadline: patchAttempts * cfg.CheckTimeout, Retried: retried}
	return a
}

// see looks at each Node that an answer shows.
func (a *Access) see(node *nodepatch.Node) {
	if a.Keys.ForeignTaint(node.Spec.Taints) != nil {
		a.sawForeignTaint.Store(true)
	}
}

// SawForeignTaint reports whether an answer has shown a foreign taint since ForgetForeignTaint.
func (a *Access) SawForeignTaint() bool { return a.sawForeignTaint.Load() }

// ForgetForeignTaint forgets which foreign taints were seen, and reports whether there were any.
func (a *Access) ForgetForeignTaint() (were bool) { return a.sawForeignTaint.Swap(false) }

// IsVerified reports whether the node needs no verification.
func (a *Access) IsVerified(node *nodepatch.Node) bool {
	if a.cfg.RecheckInterval > 0 {
		return a.Keys.StaysVerified(node.Labels, node.Spec.Taints)
	}
	return a.Keys.IsVerified(node.Labels, node.Spec.Taints)
}

// Unmet says what node does not show although REQUIRE demands it, or "".
func (a *Access) Unmet(ctx context.Context, node *nodepatch.Node) string {
	return nodecheck.Requirements{List: a.cfg.Require, Client: a.Kube, Timeout: a.cfg.CheckTimeout}.Unmet(ctx, node)
}

// IsAgents reports whether an agent has added this failed taint, before or after a restart.
func (a *Access) IsAgents(taint nodepatch.Taint) bool {
	return a.Keys.IsFailed(taint) && verdict.IsFailureValue(taint.Value)
}

// SetCondition writes the condition with a client of the Node, and returns the Node as it is then.
func (a *Access) SetCondition(ctx context.Context, client nodepatch.Client, node *nodepatch.Node, c nodepatch.Condition) (
	*nodepatch.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.CheckTimeout)
	defer cancel()
	c.Type = a.cfg.ConditionType
	return client.SetCondition(ctx, node, c, a.Kube.ServerTime())
}
