package controller

import (
	"slices"
	"strings"
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
	s.AwaitLog(broken, harness.Says("initial timeout exceeded"))
	s.Unverified(node)
	began := time.Now()
	s.awaitRecovered(node)
	t.Logf("released %s after INITIAL_TIMEOUT", time.Since(began).Round(time.Second))
	var events []corev1.Event // of this pod: another test may have had the node's agent renewed
	s.Until(func() (found bool, err error) {
		events, err = s.Cluster.Events(s.Ctx, node, "SandboxRenewed")
		events = slices.DeleteFunc(events, func(e corev1.Event) bool { return !strings.Contains(e.Message, broken.Name) })
		return len(events) > 0, err
	}, "no Event SandboxRenewed")
	s.Len(events, 1, "renewed again")
	s.Nil(events[0].Series, "renewed again")
	t.Log(events[0].Message)
}
