// Package reboot lets nodes be verified again that were started again since their release.
package reboot

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// admitsFor is how long a kubelet that starts may admit its pods again. It rejects those that select a label that is gone.
	admitsFor = time.Minute
	// patchFor bounds the request about one node: the loop waits for it.
	patchFor = 3 * time.Second
)

// boot is a start of a node.
type boot struct {
	node types.UID
	id   string
}

// Unlabeler is a step of the loop: it removes the label of verified nodes that were started again since their release.
type Unlabeler struct {
	Settings fleet.Settings
	Node     func(name string) nodepatch.NodeAPI
	Limit    *rate.Limiter // of the labels
	Log      *slog.Logger

	since map[boot]clock.Mark // when a node was first seen that is verified, but not in this boot
}

// Act implements loop.Step. What fails is tried again with the next plan, which may decide otherwise.
func (u *Unlabeler) Act(ctx context.Context, plan fleet.Plan) (requeueAfter time.Duration, err error) {
	due := u.observe(plan)
	if len(u.since) > 0 {
		requeueAfter = admitsFor
	}
	for _, which := range rand.Perm(len(due)) { // any of them: a node that cannot be patched holds no other node
		if ctx.Err() != nil || !u.Limit.Allow() {
			return time.Second, err
		}
		err = errors.Join(err, u.unlabel(ctx, due[which]))
	}
	return requeueAfter, err
}

// observe notes the nodes that were started again, and returns those whose label is to be removed now.
func (u *Unlabeler) observe(plan fleet.Plan) (due []*corev1.Node) {
	since := make(map[boot]clock.Mark)
	for _, status := range plan.Statuses {
		node := status.Node
		isOurs := status.Rebooted && status.State == fleet.Verified && status.Untouchable == ""
		if !isOurs || !u.Settings.Rules.Select(node) {
			continue
		}
		now := boot{node.UID, node.Status.NodeInfo.BootID}
		since[now] = cmp.Or(u.since[now], plan.At.Mark())
		if fleet.IsNodeReady(node) && plan.At.HasLasted(since[now], admitsFor) {
			due = append(due, node)
		}
	}
	u.since = since
	return due
}

func (u *Unlabeler) unlabel(ctx context.Context, node *corev1.Node) error {
	// Without a Deadline there is one attempt: a retry would start from a Node that may have been verified again since.
	patcher := nodepatch.Patcher{Node: u.Node(node.Name), Timeout: patchFor}
	removed, err := patcher.RemoveLabel(ctx, fleet.PatchNode(node), u.Settings.Keys)
	if removed {
		u.Log.Info("node rebooted since it was verified: label removed, its checks start again", "node", node.Name)
	}
	return err
}
