package nodepatch

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Node holds the fields of a Node (core/v1) that the agent reads. The type in k8s.io/api links every type of its group with
// their protobuf code, a fifth of the binary; and the rest of a Node, tens of kilobytes, is not decoded.
type Node struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Taints        []Taint `json:"taints"`
		Unschedulable bool    `json:"unschedulable"`
	} `json:"spec"`
	Status struct {
		Conditions  Conditions        `json:"conditions"`
		Allocatable map[string]string `json:"allocatable"` // quantities
		NodeInfo    struct {
			BootID string `json:"bootID"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

// Condition is a condition of the Node. Its Status is True, False or Unknown.
type Condition struct {
	Type               string      `json:"type"`
	Status             string      `json:"status"`
	Reason             string      `json:"reason"`
	Message            string      `json:"message"`
	LastHeartbeatTime  metav1.Time `json:"lastHeartbeatTime"`
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
}

// Conditions are those of one object.
type Conditions []Condition

// Of returns the condition of a type, or an empty one.
func (all Conditions) Of(conditionType string) Condition {
	for _, condition := range all {
		if condition.Type == conditionType {
			return condition
		}
	}
	return Condition{}
}

// Taint repels pods that do not tolerate it.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

// FormatTaints returns the taints as kubectl taint writes them.
func FormatTaints(taints []Taint) []string {
	texts := make([]string, len(taints))
	for i, taint := range taints {
		texts[i] = taint.String()
	}
	return texts
}

// String formats the taint as kubectl taint does: key=value:effect.
func (t Taint) String() string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + t.Effect
}
