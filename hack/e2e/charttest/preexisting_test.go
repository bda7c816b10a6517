package charttest

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The README's command leaves the existing nodes out, and no node with the startup taint: nobody would remove that. Neither an agent
// nor one that stays comes to a node that was left out.
func TestPreexistingNodesAreLeftOut(t *testing.T) {
	s := start(t)
	nodes := s.Cluster.Kube.CoreV1().Nodes()
	foreign := corev1.Taint{Key: "example.com/first", Effect: corev1.TaintEffectPreferNoSchedule}
	for name, test := range map[string]struct {
		label  string
		taints []corev1.Taint
	}{
		"left-plain":    {"", nil},
		"left-tainted":  {"", []corev1.Taint{foreign}},
		"left-gated":    {"", []corev1.Taint{foreign, startup}},
		"left-verified": {"true", nil},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
			Spec: corev1.NodeSpec{Taints: test.taints}}
		if test.label != "" {
			n.Labels[harness.Label] = test.label
		}
		s.Undo(func(ctx context.Context) error {
			err := nodes.Delete(ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
		_, err := nodes.Create(s.Ctx, n, metav1.CreateOptions{})
		s.NoError(err)
	}

	s.Bash(s.Block("README.md", "leave-out", "sh"))

	for name, want := range map[string]string{"left-plain": "preexisting", "left-tainted": "preexisting", "left-gated": "", "left-verified": "true", node: "true"} {
		s.Equal(want, s.Node(name).Labels[harness.Label], name)
	}
	// These would get an agent, and have no kubelet to end it.
	s.NoError(nodes.Delete(s.Ctx, "left-gated", metav1.DeleteOptions{}))
	s.NoError(nodes.Delete(s.Ctx, "left-verified", metav1.DeleteOptions{}))
	for _, values := range [][]string{nil, {"config.recheckInterval=1h"}} {
		s.Deploy(append([]string{stuck}, values...)...)
		s.Until(func() (bool, error) {
			set, err := s.Cluster.Kube.AppsV1().DaemonSets(harness.Namespace).Get(s.Ctx, harness.Name, metav1.GetOptions{})
			if err != nil || set.Status.ObservedGeneration != set.Generation {
				return false, err
			}
			s.EqualValues(len(values), set.Status.DesiredNumberScheduled, "%v", values) // with rechecks the real, verified node
			return true, nil
		})
	}
}
