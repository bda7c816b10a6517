package recheck

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// second is another release, installed with Helm. Its node has a real kubelet, too.
const (
	second     = "second"
	secondName = second + "-" + harness.Name
	secondNode = "node5"
)

// others are the nodes that the first release must not touch.
func others() []string { return []string{secondNode} }

// Another release re-taints its own node, and says so in the taint. Its node loses the taint when its agents are uninstalled, when re-taint is
// switched off, when rechecks are, and when the release is uninstalled: then nothing of it is left.
func (s *suite) anotherRelease() {
	values := append(harness.ControllerValues(), "controller.retaint.enabled=true", "controller.retaint.controlGroupFor=20s",
		"controller.retaint.coolDown=20s", "controller.retaint.noAgentFor=1m", // longer than an upgrade of this test
		"config.recheckInterval=10s", "config.failureThreshold=2", "config.recoveryThreshold=2", "config.maxRetries=0",
		"nodeSelector."+releaseLabel+"="+second)
	s.Undo(func(ctx context.Context) error {
		_, err := s.helm(ctx, "uninstall", second, "--ignore-not-found")
		_, leaseErr := s.Cluster.Kubectl(ctx, "", "delete", "lease/"+secondName+"-controller", "-n", harness.Namespace,
			"--ignore-not-found")
		return errors.Join(err, leaseErr)
	})
	upgrade := func(more ...string) {
		_, err := s.helm(s.Ctx, append([]string{"upgrade", "--install", second, "chart", "--wait", harness.Wait}, harness.Set(append(values, more...)...)...)...)
		s.NoError(err)
	}
	upgrade()
	s.drop(secondNode, dropDNS)
	now, _ := s.AwaitNode(secondNode, func(n *corev1.Node) bool { return harness.HasTaint(n, failedTaint) })
	s.Equal(secondName, retaintedBy(now))
	s.True(fails(now, dnsFailed))

	s.Kubectl("", "delete", "-n", harness.Namespace, "daemonset/"+secondName)
	s.awaitTaintRemoved(secondNode)
	s.event(secondNode, "FailedTaintRemoved", "no agent has checked the node")
	s.AwaitNode(secondNode, func(n *corev1.Node) bool { return condition(n) == "Unknown NotRechecked" })
	for _, off := range [][]string{
		{"controller.retaint.enabled=false"},
		{"controller.retaint.enabled=false", "config.recheckInterval="},
	} {
		upgrade()
		s.retaint(secondNode)
		upgrade(off...)
		s.awaitTaintRemoved(secondNode)
		s.event(secondNode, "FailedTaintRemoved", "re-tainting is switched off")
	}

	upgrade()
	s.retaint(secondNode)
	_, err := s.helm(s.Ctx, "uninstall", second, "--wait", harness.Wait)
	s.NoError(err)
	s.Empty(retaintedBy(s.Node(secondNode)), "helm uninstall has left the failed taint")
	s.Equal([]string{added, removed, added, removed, added, removed, added, removed}, s.taints()[secondNode])
	left := s.Kubectl("", "get", "-A", "-l", "app.kubernetes.io/instance="+second, "-o", "name",
		"all,serviceaccounts,configmaps,roles,rolebindings,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings")
	s.Empty(left, "left by helm uninstall")
}

func (s *suite) helm(ctx context.Context, args ...string) (string, error) {
	return s.Cluster.Run(ctx, "", s.Cluster.Tool("helm"), append(args, "--namespace", harness.Namespace)...)
}

// retaint re-taints the node of the second release as its controller does, once its agent has reported that it fails: the
// controller removes the taint of a node that no agent has checked.
func (s *suite) retaint(node string) {
	s.T.Helper()
	s.AwaitNode(node, func(n *corev1.Node) bool { return fails(n, dnsFailed) })
	s.Kubectl("", "taint", "node", node, "--overwrite", failedTaint+"="+secondName+":NoSchedule")
}
