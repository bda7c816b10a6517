package recheck

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// second is another release with nodes of its own.
const second = "second"

// Each of two releases closes its own node, and says so in the taint. When the second one is uninstalled, its node is opened, and that
// of the first stays closed.
func TestTwoReleases(t *testing.T) {
	s := start(t, 5, 5)
	first, other := inFleet(0, 0), "second-0"
	s.kwokNodeOf(second, other)
	helm := func(args ...string) {
		t.Helper()
		_, err := s.Cluster.Run(s.Ctx, "", s.Tool("helm"), append(args, "--namespace", harness.Namespace)...)
		s.NoError(err)
	}
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Run(ctx, "", s.Tool("helm"), "uninstall", second, "--namespace", harness.Namespace, "--ignore-not-found")
		return err
	})
	helm(append([]string{"install", second, "chart", "--wait", "--timeout=2m"}, harness.Set(append(harness.ControllerValues(),
		"controller.retaint.enabled=true", "controller.retaint.settleFor=20s", "config.recheckInterval=10s", "config.maxRetries=0",
		"nodeSelector."+releaseLabel+"="+second)...)...)...)
	// Only a False that it has seen turn counts.
	s.AwaitLog(s.leaderOf(second), harness.Says("control group passed"))
	s.fail(first, other)
	for node, release := range map[string]string{first: harness.Name, other: second + "-" + harness.Name} {
		s.AwaitNode(node, func(n *corev1.Node) bool { return closedBy(n) != "" })
		s.Equal(release, closedBy(s.Node(node)))
	}

	helm("uninstall", second, "--wait", "--timeout=2m")
	s.Empty(closedBy(s.Node(other)), "helm uninstall has left it closed")
	s.Equal(harness.Name, closedBy(s.Node(first)))
	left := s.Kubectl("", "get", "all,serviceaccounts,configmaps,clusterroles,clusterrolebindings,validatingadmissionpolicies", "-A",
		"-l", "app.kubernetes.io/instance="+second, "-o", "name")
	s.Empty(left, "left by helm uninstall")
	s.Equal([]string{closed, opened}, s.seen.taints()[other])
	s.Equal([]string{closed}, s.seen.taints()[first])
	s.Len(s.seen.taints(), 2)
}

// kwokNodeOf makes a verified node of a release without a real kubelet, until the test ends.
func (s *suite) kwokNodeOf(release, name string) {
	s.Helper()
	node := kwokNode(name)
	node.Labels[releaseLabel] = release
	s.Undo(func(ctx context.Context) error {
		err := s.Kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	_, err := s.Kube.CoreV1().Nodes().Create(s.Ctx, node, metav1.CreateOptions{})
	s.NoError(err)
}

// leaderOf waits for the controller that leads in a release, and returns its pod.
func (s *suite) leaderOf(release string) (pod corev1.Pod) {
	s.Helper()
	s.Until(func() (bool, error) {
		lease, err := s.Kube.CoordinationV1().Leases(harness.Namespace).Get(s.Ctx, release+"-"+harness.Controller, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, nil
		}
		pod.Namespace, pod.Name = harness.Namespace, harness.PodOf(*lease.Spec.HolderIdentity)
		return pod.Name != "", nil
	}, "no leader of %s", release)
	return pod
}
