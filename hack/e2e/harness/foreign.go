package harness

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Foreign is what others have on a Node, by name. It leaves out what the controllers of the
// cluster put on a Node that has no kubelet, and take off again.
func Foreign(node *corev1.Node) map[string]string {
	found := make(map[string]string)
	for _, taint := range node.Spec.Taints {
		if taint.Key != Taint && !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			found["taint "+taint.Key+" "+string(taint.Effect)] = taint.Value
		}
	}
	for key, value := range node.Labels {
		if key != Label {
			found["label "+key] = value
		}
	}
	for key, value := range node.Annotations {
		if key != Annotation && !strings.HasPrefix(key, "node.alpha.kubernetes.io/") {
			found["annotation "+key] = value
		}
	}
	return found
}

// Keeps adds to the row what is missing on a Node of what should be there, or is there and should
// not be.
func (r *Row) Keeps(node *corev1.Node, wanted map[string]string) {
	r.t.Helper()
	got := Foreign(node)
	for what, value := range wanted {
		if now, ok := got[what]; !ok || now != value {
			r.Lose("%s of %s", what, node.Name)
		}
	}
	for what := range got {
		if _, ok := wanted[what]; !ok {
			r.Lose("%s came onto %s", what, node.Name)
		}
	}
}
