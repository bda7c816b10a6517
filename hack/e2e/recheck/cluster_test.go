package recheck

import (
	"testing"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Without CoreDNS every node fails, and none is re-tainted: neither while it is away, nor when it is back.
func TestNoRetaintWithoutDNS(t *testing.T) {
	s := start(t)
	s.ScaleCoreDNS(0)
	began := time.Now()
	for _, node := range rechecked() {
		s.awaitFails(node, noDNS)
	}
	s.awaitBreaker("control-group", true)
	s.during(began, 45*time.Second, 10*time.Minute, func() {
		for _, node := range rechecked() {
			s.True(fails(s.Node(node), noDNS), node)
		}
	})
	s.NoError(s.Cluster.ScaleCoreDNS(s.Ctx, 2))
	s.awaitGood(rechecked()...)
	s.Empty(s.taints(), "nodes were re-tainted")
}

// While the API server is away, and when it is back, no node is re-tainted.
func TestNoRetaintWithoutAPIServer(t *testing.T) {
	s := start(t)
	resume := s.Pause("kube-apiserver")
	s.during(time.Now(), 40*time.Second, 2*time.Minute, func() {})
	resume()
	s.Until(func() (bool, error) {
		_, err := s.Cluster.Node(s.Ctx, harness.RealNode)
		return err == nil, nil
	}, "the API server does not answer")
	s.awaitGood(rechecked()...)
	s.awaitControlGroup() // of the next leader
	s.Empty(s.taints(), "nodes were re-tainted")
}

// during asserts something again and again, for so long in the short and in the long version.
func (s *suite) during(began time.Time, short, long time.Duration, assert func()) {
	s.T.Helper()
	if harness.Long() {
		short = long
	}
	s.Until(func() (bool, error) {
		assert()
		return time.Since(began) > short, nil
	})
}
