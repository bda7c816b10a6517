package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The CNI works again, but the sandbox of the agent was made before: it has an address and no route. The controller deletes the
// pod once, and the next agent releases the node.
func TestFreshSandbox(t *testing.T) {
	s := start(t)
	node := nodes[1]
	s.awaitNoAgent(node)
	restore := s.withoutRoute(node)
	s.Gate(node)
	broken := s.AgentPod(node)
	s.AwaitLog(broken, harness.FailedCheck("network"))
	restore()
	s.AwaitLog(broken, harness.Says("initial timeout passed"))
	s.Unverified(node)
	began := time.Now()
	s.awaitRecovered(node)
	t.Logf("released %s after INITIAL_TIMEOUT", time.Since(began).Round(time.Second))
	var events []corev1.Event
	s.Until(func() (found bool, err error) {
		events, err = s.Events(s.Ctx, node, "SandboxRenewed")
		return len(events) > 0, err
	}, "no Event SandboxRenewed")
	s.Len(events, 1, "renewed again")
	s.Nil(events[0].Series, "renewed again")
	s.Contains(events[0].Message, broken.Name)
	t.Log(events[0].Message)
}
