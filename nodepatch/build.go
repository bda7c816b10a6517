// Package nodepatch opens a node: it takes our taint off and puts our label and annotation on, and
// never touches anything else, whoever else writes to the Node at the same time.
package nodepatch

import (
	"slices"
	"strconv"
	"strings"
)

// failedEffect keeps new workloads away and evicts nothing.
const failedEffect = "NoSchedule"

// Request says what an open node looks like.
type Request struct {
	TaintKey        string // taken off, whatever its value and effect
	FailedTaintKey  string // taken off likewise, unless it is empty; Patcher.Fail puts it on
	Label           string
	LabelValue      string
	Annotation      string
	AnnotationValue string
}

// Operation is one step of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"` // null is a value in a test; a remove ignores it
}

// Build returns the operations that turn node into what r asks for, guarded so that the API server
// applies all of them to the object that was read, or none (RFC 6902, 5).
//
// Other clients write to spec.taints while a node starts (CSI drivers, CNI agents, autoscalers,
// cloud controllers), so the list is never replaced: each of our taints is removed by its index,
// behind tests that what lies there is still ours.
func Build(node *Node, r Request) []Operation {
	ops := []Operation{{"test", "/metadata/uid", string(node.UID)}}
	for i, taint := range slices.Backward(node.Spec.Taints) { // highest first: a removal moves those behind it
		if !r.TakesOff(taint) {
			continue
		}
		// Not the whole taint: it may carry a value and a timeAdded that another client sets.
		path := "/spec/taints/" + strconv.Itoa(i)
		ops = append(ops,
			Operation{"test", path + "/key", taint.Key},
			Operation{"test", path + "/effect", taint.Effect},
			Operation{"remove", path, nil})
	}
	ops = append(ops, set("/metadata/labels", node.Labels, r.Label, r.LabelValue)...)
	return append(ops, set("/metadata/annotations", node.Annotations, r.Annotation, r.AnnotationValue)...)
}

// set puts key into a map that may not be there yet. Adding the map would replace one that
// somebody has created in the meantime, so it is only added where it is still null.
func set(path string, existing map[string]string, key, value string) []Operation {
	var ops []Operation
	if existing == nil {
		ops = append(ops, Operation{"test", path, nil}, Operation{"add", path, struct{}{}})
	}
	return append(ops, Operation{"add", path + "/" + escape(key), value})
}

// unchanged tests that key is in a map, or not, as it was read; a test for null passes where there is nothing.
func unchanged(path string, existing map[string]string, key string) Operation {
	value, found := existing[key]
	switch {
	case found:
		return Operation{"test", path + "/" + escape(key), value}
	case existing != nil:
		return Operation{"test", path + "/" + escape(key), nil}
	default:
		return Operation{"test", path, nil}
	}
}

// escape makes a key a part of a JSON pointer (RFC 6901, 3): "~" first, or the "~" that stands for
// a "/" would be escaped again.
func escape(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

// BuildFailed returns the operations that put the failed taint of r behind the other taints of node, guarded like those of Build.
// Where there is no list yet it is made, unless somebody has made one meanwhile. One that arrives late, behind the patch that has opened
// the node, is refused: that writes the annotation anew.
func BuildFailed(node *Node, r Request, value string) []Operation {
	ops := []Operation{{"test", "/metadata/uid", string(node.UID)}, unchanged("/metadata/annotations", node.Annotations, r.Annotation)}
	if len(node.Spec.Taints) == 0 { // an empty list is not written
		ops = append(ops, Operation{"test", "/spec/taints", nil}, Operation{"add", "/spec/taints", []Taint{}})
	}
	return append(ops, Operation{"add", "/spec/taints/-", Taint{Key: r.FailedTaintKey, Value: value, Effect: failedEffect}})
}

// TakesOff tells whether the patch that opens a node takes this taint off.
func (r Request) TakesOff(taint Taint) bool {
	return taint.Key == r.TaintKey || (r.FailedTaintKey != "" && taint.Key == r.FailedTaintKey)
}

// Taints returns those of node's taints that bear r's TaintKey.
func Taints(node *Node, r Request) []Taint {
	var ours []Taint
	for _, taint := range node.Spec.Taints {
		if taint.Key == r.TaintKey {
			ours = append(ours, taint)
		}
	}
	return ours
}

// Open tells whether node is as r asks for: the label right and the taints gone.
func Open(node *Node, r Request) bool {
	value, ok := node.Labels[r.Label]
	return ok && value == r.LabelValue && !slices.ContainsFunc(node.Spec.Taints, r.TakesOff)
}

// Failed tells whether node bears the failed taint of r.
func Failed(node *Node, r Request) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint Taint) bool { return taint.Key == r.FailedTaintKey })
}
