package nodepatch

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Node is what the agent reads of a Node (core/v1). The type in k8s.io/api brings every other type
// of its group into the binary, with their protobuf code, a fifth of the whole; and of the tens of
// kilobytes of a Node nothing is decoded but this.
type Node struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              NodeSpec   `json:"spec"`
	Status            NodeStatus `json:"status"`
}

// NodeSpec is the part of a Node's spec that the agent reads.
type NodeSpec struct {
	Taints []Taint `json:"taints"`
}

// NodeStatus is the part of a Node's status that the agent reads.
type NodeStatus struct {
	Conditions []Condition `json:"conditions"`
}

// Condition is one of the Node's. Its Status is True, False or Unknown.
type Condition struct {
	Type               string      `json:"type"`
	Status             string      `json:"status"`
	Reason             string      `json:"reason"`
	Message            string      `json:"message"`
	LastHeartbeatTime  metav1.Time `json:"lastHeartbeatTime"`
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
}

// Taint keeps pods that do not tolerate it off a Node.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

// String writes the taint as kubectl taint does: key=value:effect.
func (t Taint) String() string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + t.Effect
}
