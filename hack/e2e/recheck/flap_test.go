package recheck

import (
	"testing"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// A node that works for a while and fails for longer is re-tainted at most once each time, and loses the taint again.
func TestFlappingNode(t *testing.T) {
	if !harness.Long() {
		t.Skip("takes eleven minutes: E2E=long")
	}
	s := start(t)
	node := nodes[0]
	const up, down, times = 90 * time.Second, 4 * time.Minute, 2
	for range times {
		s.dropForwarded(node, dropPods()...)
		s.during(time.Now(), down, down, func() {})
		s.repair(node)
		s.during(time.Now(), up, up, func() {})
	}
	changes := s.taints()[node]
	t.Logf("up %s, down %s: %.0f changes of the failed taint an hour", up, down, float64(len(changes))/time.Since(s.Began).Hours())
	s.LessOrEqual(len(changes), 2*times)
	s.Len(s.taints(), 1, "another node was touched")
	s.awaitGood(node)
}
