package charttest

import (
	"context"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// With deleteNodes the controller may delete a node that was never verified, and no other one.
func TestControllerMayDeleteNodesThatWereNeverVerifiedOnly(t *testing.T) {
	s := start(t)
	s.controller("and change no other taint", "controller.remediation.mode=delete", "controller.remediation.deleteNodes=true")
	s.awaitTypeChecked(harness.Name + "-controller-nodes")
	nodes := s.client(harness.Default(), harness.Name+"-controller", nil).CoreV1().Nodes()

	// The node as an agent leaves it whose checks fail, changed; and the controller's attempt.
	attempt := func(change func(*corev1.Node)) error {
		bad := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "never-verified", Labels: map[string]string{}, Annotations: map[string]string{}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{startup}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: harness.ConditionType, Status: corev1.ConditionFalse}}},
		}
		change(bad)
		remove := func(ctx context.Context) error {
			err := s.Kube.CoreV1().Nodes().Delete(ctx, bad.Name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}
		s.Undo(remove)
		_, err := s.Kube.CoreV1().Nodes().Create(s.Ctx, bad, metav1.CreateOptions{})
		s.NoError(err)
		refusal := nodes.Delete(s.Ctx, bad.Name, metav1.DeleteOptions{})
		s.NoError(remove(s.Ctx))
		return refusal
	}
	labelled := func(labels ...string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			for _, label := range labels {
				maps.Copy(n.Labels, map[string]string{label: "true"})
			}
		}
	}
	const never, nobody = "may delete only nodes that have node-ready/unverified, were never verified", "may delete no node of the control plane, of etcd or of Karpenter"
	s.Until(func() (bool, error) { // the API server has read the policy
		err := attempt(labelled(master))
		return err != nil && strings.Contains(err.Error(), nobody), nil
	})
	for name, test := range map[string]struct {
		change  func(*corev1.Node)
		refusal string
	}{
		"gated, and its checks fail":  {labelled(), ""},
		"of a managed node group":     {labelled("eks.amazonaws.com/nodegroup"), ""},
		"without the startup taint":   {func(n *corev1.Node) { n.Spec.Taints = nil }, never},
		"verified once":               {func(n *corev1.Node) { n.Annotations[harness.Annotation] = "{}" }, never},
		"with the label":              {labelled(harness.Label), never},
		"no verdict":                  {func(n *corev1.Node) { n.Status.Conditions = nil }, never},
		"the verdict is good":         {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }, never},
		"of the control plane":        {labelled(controlPlane), nobody},
		"of etcd alone":               {labelled(etcd), nobody},
		"of Karpenter":                {labelled("karpenter.sh/nodepool"), nobody},
		"of Karpenter, another label": {labelled("karpenter.sh/registered"), nobody},
		"tainted as the control plane": {func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: controlPlane, Effect: corev1.TaintEffectNoSchedule})
		}, nobody},
	} {
		s.T.Run(name, func(t *testing.T) {
			s := s.part(t)
			err := attempt(test.change)
			if test.refusal == "" {
				s.NoError(err)
			} else {
				s.forbidden(err, test.refusal)
			}
		})
	}
}
