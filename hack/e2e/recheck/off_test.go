package recheck

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// One node is closed when the agents are uninstalled, when re-taint is switched off, and when rechecks are: it does not stay closed.
func TestNoNodeStaysClosed(t *testing.T) {
	s := start(t, 5, 5)
	node := inFleet(0, 0)
	s.redeploy()
	s.fail(node)
	s.awaitClosed(node, networkFailed)
	s.Kubectl("", "delete", "-n", harness.Namespace, "daemonset/"+harness.Name)
	s.awaitOpen(node)
	s.event(node, "FailedTaintRemoved", "no agent has checked the node")
	s.AwaitNode(node, func(n *corev1.Node) bool { return condition(n) == "Unknown NotRechecked" })

	for _, off := range [][]string{
		{"controller.retaint.enabled=false"},
		{"controller.retaint.enabled=false", "config.recheckInterval=", "config.connectivityMatrix=false"},
	} {
		s.Deploy(values...)
		s.close(node)
		s.Deploy(append(values, off...)...)
		s.awaitOpen(node)
		s.event(node, "FailedTaintRemoved", "nodes that fail their rechecks are not closed any more")
	}
	s.Equal([]string{closed, opened, closed, opened, closed, opened}, s.seen.taints()[node])
	s.Len(s.seen.taints(), 1)
}

// close closes a node as the controller does.
func (s *suite) close(node string) {
	s.Helper()
	s.Kubectl("", "taint", "node", node, failedTaint+"="+harness.Name+":NoSchedule")
}
