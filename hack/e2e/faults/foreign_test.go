package faults

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// foreign is what is on a Node and is not ours, by name. It leaves out what the controllers of the
// cluster put on a Node that has no kubelet, and take off again.
func foreign(node *corev1.Node) map[string]string {
	found := make(map[string]string)
	for _, taint := range node.Spec.Taints {
		if taint.Key != harness.Taint && !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			found["taint "+taint.Key+" "+string(taint.Effect)] = taint.Value
		}
	}
	for key, value := range node.Labels {
		if key != harness.Label {
			found["label "+key] = value
		}
	}
	for key, value := range node.Annotations {
		if key != harness.Annotation && !strings.HasPrefix(key, "node.alpha.kubernetes.io/") {
			found["annotation "+key] = value
		}
	}
	return found
}

// keeps adds to the row what is missing on a Node of what should be there, or is there and should
// not be.
func (s *suite) keeps(node *corev1.Node, wanted map[string]string) {
	s.Helper()
	got := foreign(node)
	for what, value := range wanted {
		if now, ok := got[what]; !ok || now != value {
			s.row.Lose("%s of %s", what, node.Name)
		}
	}
	for what := range got {
		if _, ok := wanted[what]; !ok {
			s.row.Lose("%s came onto %s", what, node.Name)
		}
	}
}

// untouched reports whether a Node is as it was made, for all that an agent can do to it.
func untouched(now, made *corev1.Node) bool {
	_, label := now.Labels[harness.Label]
	_, annotation := now.Annotations[harness.Annotation]
	return !label && !annotation && harness.HasTaint(now, harness.Taint) == harness.HasTaint(made, harness.Taint) &&
		maps.Equal(foreign(now), foreign(made))
}

// fullyVerified reports whether a Node is verified and has the annotation.
func fullyVerified(now *corev1.Node) bool {
	_, annotation := now.Annotations[harness.Annotation]
	return harness.Verified(now) && annotation
}
