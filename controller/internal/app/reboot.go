package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// admitsFor is how long a kubelet that starts may admit its pods again. It rejects those that select a label that is gone.
const admitsFor = time.Minute

// rebooted is a step of the loop: it removes the label of verified nodes that were started again since their release. They are
// verified again then.
type rebooted struct {
	since    map[types.UID]clock.Mark // when such a node was seen first, by the uid and the boot id
	settings fleet.Settings
	node     func(name string) nodepatch.NodeAPI
	limit    interface{ Allow() bool }
	log      *slog.Logger
}

// Act implements loop.Step. What fails is tried again with the next plan, which may decide otherwise.
func (r *rebooted) Act(ctx context.Context, plan fleet.Plan) (requeueAfter time.Duration, err error) {
	var due []*corev1.Node
	since := make(map[types.UID]clock.Mark)
	for _, status := range plan.Statuses {
		isOurs := status.Rebooted && status.State == fleet.Verified && status.Untouchable == ""
		if node := status.Node; isOurs && r.settings.Rules.Select(node) {
			boot := node.UID + types.UID(node.Status.NodeInfo.BootID)
			requeueAfter, since[boot] = admitsFor, cmp.Or(r.since[boot], plan.At.Mark())
			if fleet.IsNodeReady(node) && plan.At.HasLasted(since[boot], admitsFor) {
				due = append(due, node)
			}
		}
	}
	r.since = since
	for _, which := range rand.Perm(len(due)) { // any of them: a node that cannot be patched holds no other node
		node := due[which]
		if ctx.Err() != nil || !r.limit.Allow() {
			return time.Second, err
		}
		// The loop waits for it. Without a Deadline there is one attempt.
		patcher := nodepatch.Patcher{Node: r.node(node.Name), Timeout: 3 * time.Second, Retried: func(error) {}}
		removed, failure := patcher.RemoveLabel(ctx, fleet.PatchNode(node), r.settings.Request)
		if err = errors.Join(err, failure); removed {
			r.log.Info("node rebooted since it was verified: label removed, its checks start again", "node", node.Name)
		}
	}
	return requeueAfter, err
}
