package faults

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// atOnce is how many nodes are raced for at a time.
const atOnce = 6

// Two well-behaved writers keep changing their own taints on the node, in front of the startup taint and
// behind it, while the agent releases it. The first patch of every agent is held until both have
// written once more, so that no race is missed; whatever comes after that is left to chance.
func TestFaultTaintRace(t *testing.T) {
	s := begin(t, "taint race: two writers of other taints", "verified; nothing foreign is lost")
	nodes := harness.Pick(60, 1000)
	began := time.Now()
	var done, sent, refused atomic.Int64
	queue := make(chan int, nodes)
	for i := range nodes {
		queue <- i
	}
	close(queue)
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for i := range queue {
				patches := s.race(fmt.Sprintf("faults-race-%d", i))
				sent.Add(int64(len(patches)))
				for _, patch := range patches {
					if patch.Code != http.StatusOK {
						refused.Add(1)
					}
				}
				if n := done.Add(1); n%100 == 0 {
					t.Logf("%d of %d nodes after %s", n, nodes, time.Since(began).Round(time.Second))
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d nodes: %d patches sent, %d of them refused and built again", nodes, sent.Load(), refused.Load())
	s.GreaterOrEqual(refused.Load(), int64(nodes)/2, "hardly any race: the test shows nothing")
}

// race verifies one node under two writers, and returns the patches that were sent.
func (s *suite) race(name string) []Asked {
	s.create(gated(name))
	defer func() { _ = s.remove(s.Ctx, name) }()
	front, behind := harness.NewWriter(s.Suite, name, "front"), harness.NewWriter(s.Suite, name, "behind")
	writing, stop := context.WithCancel(s.Ctx)
	defer stop()
	var writers sync.WaitGroup
	writers.Go(func() { front.Run(writing, front.Update) })
	writers.Go(func() { behind.Run(writing, behind.Patch) })
	s.proxy.On(Patch(name), First(1, func(w http.ResponseWriter, r *http.Request, forward func() (Answer, error)) {
		front.AwaitAnother(r.Context())
		behind.AwaitAnother(r.Context())
		Pass(w, r, forward)
	}))

	a := s.agent(name).with(patient)
	began := time.Now()
	p := a.start()
	if now, _, err := s.Cluster.AwaitNode(s.Ctx, name, func(node *corev1.Node) bool {
		_, labelled := node.Labels[harness.Label]
		if labelled && harness.HasTaint(node, harness.Taint) {
			s.row.Lose("%s is labelled and still tainted", name)
		}
		return harness.Verified(node)
	}); err != nil {
		s.row.Lose("%s was never verified: %v %v", name, now, err)
	}
	s.row.Recovered(time.Since(began))
	stop()
	writers.Wait()
	now := s.Node(name)
	if !fullyVerified(now) {
		s.row.Lose("%s: a part of the verification", name)
	}
	wanted := map[string]string{
		"label foreign/label": "kept", "annotation foreign/annotation": "kept",
		"taint foreign/front NoSchedule": "1", "taint foreign/behind NoExecute": "2",
	}
	front.Wants(wanted)
	behind.Wants(wanted)
	s.row.Keeps(now, wanted)
	for _, lost := range append(front.Lost(), behind.Lost()...) {
		s.row.Lose("%s of %s", lost, name)
	}
	p.kill()
	return s.proxy.Asked(Patch(name))
}
