// Package nodepatch releases a node: it removes the startup taint (and failed taints and former keys), and adds the
// verified label and the annotation. It also adds the failed taint and a condition. It never touches anything else;
// concurrent changes by others are preserved.
package nodepatch

import (
	"slices"
	"strconv"
	"strings"
)

// failedEffect keeps new pods away and evicts none.
const failedEffect = "NoSchedule"

// Annotation holds how a node was verified, as compact JSON. It outlives the pod.
const Annotation = "node-ready/verification"

// Keys are the taints, the label and the prefixes of this installation. The controller asks about Nodes of another type: so the
// questions take labels and taints.
type Keys struct {
	TaintKey       string   // of the startup taint, removed whatever its value and effect
	FailedTaintKey string   // removed likewise, unless empty; added by Patcher.AddFailedTaint
	AlsoRemove     []string // former startup keys and failed keys, removed likewise
	Label          string   // "": none is added, the Node is opened and not verified
	LabelValue     string
	WaitFor        []string // prefixes of foreign taints that must be gone before a release (WAIT_FOR_TAINTS)
}

// Release is one release of a node.
type Release struct {
	Keys Keys
	// Unmet says what a Node that was read again does not show although a release demands it, or ""; nil: nothing is demanded.
	Unmet func(*Node) string
	// Value returns the value of the annotation for a release that removes these taints from a Node.
	Value func(node *Node, removed []Taint) string
}

// Removes reports whether a release removes this taint.
func (k Keys) Removes(taint Taint) bool {
	return taint.Key == k.TaintKey || (k.FailedTaintKey != "" && taint.Key == k.FailedTaintKey) ||
		slices.Contains(k.AlsoRemove, taint.Key)
}

// ForeignTaint returns the first of taints that must be gone before a release, or nil: a taint whose key begins with one of the
// prefixes, or Karpenter's taint of a node that is not registered yet, until when Karpenter puts startup taints back. A prefix
// may cover taints that the release removes: nobody else removes those.
func (k Keys) ForeignTaint(taints []Taint) *Taint {
	const unregistered = "karpenter.sh/unregistered"
	i := slices.IndexFunc(taints, func(taint Taint) bool {
		begins := func(prefix string) bool { return strings.HasPrefix(taint.Key, prefix) }
		return !k.Removes(taint) && (taint.Key == unregistered || slices.ContainsFunc(k.WaitFor, begins))
	})
	if i < 0 {
		return nil
	}
	return &taints[i]
}

// IsVerified reports whether a node with these labels and taints has the label and none of the taints that a release removes.
func (k Keys) IsVerified(labels map[string]string, taints []Taint) bool {
	return k.hasLabel(labels) && !slices.ContainsFunc(taints, k.Removes)
}

// StaysVerified is IsVerified of a node that is rechecked: the failed taint, which the controller may have added, does not count.
func (k Keys) StaysVerified(labels map[string]string, taints []Taint) bool {
	return k.WithoutFailedTaint().IsVerified(labels, taints)
}

// WithoutFailedTaint returns the keys for a release that leaves the failed taint on the node.
func (k Keys) WithoutFailedTaint() Keys {
	k.AlsoRemove = slices.DeleteFunc(slices.Clone(k.AlsoRemove), func(key string) bool { return key == k.FailedTaintKey })
	k.FailedTaintKey = ""
	return k
}

// StartupTaints returns the startup taints among taints, under the present key.
func (k Keys) StartupTaints(taints []Taint) []Taint {
	return matching(taints, func(taint Taint) bool { return taint.Key == k.TaintKey })
}

// HasFailedTaint reports whether the failed taint is among taints.
func (k Keys) HasFailedTaint(taints []Taint) bool { return slices.ContainsFunc(taints, k.IsFailed) }

// IsFailed reports whether taint is the failed taint.
func (k Keys) IsFailed(taint Taint) bool { return taint.Key == k.FailedTaintKey }

func (k Keys) hasLabel(labels map[string]string) bool {
	value, found := labels[k.Label]
	return found && value == k.LabelValue || k.Label == ""
}

func matching(taints []Taint, match func(Taint) bool) []Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(taint Taint) bool { return !match(taint) })
}

// Operation is one step of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"` // null is a value in a test; a remove ignores it
}

// Build returns the operations that make node verified, guarded so that the API server applies all
// of them to the object that was read, or none (RFC 6902, 5).
//
// Other clients write to spec.taints while a node starts (CSI drivers, CNI agents, autoscalers, cloud controllers), so the list
// is never replaced: each taint is removed by its index, after tests that the taint at that index is still ours.
func Build(node *Node, r Release) []Operation {
	ops := append(testUID(node), removeTaints(node, r.Keys.Removes)...)
	if r.Keys.Label != "" {
		ops = append(ops, set("/metadata/labels", node.Labels, r.Keys.Label, r.Keys.LabelValue)...)
	}
	value := r.Value(node, matching(node.Spec.Taints, r.Keys.Removes))
	return append(ops, set("/metadata/annotations", node.Annotations, Annotation, value)...)
}

// BuildFailedTaint returns the operations that append the failed taint to node's taints, guarded like
// those of Build: they fail on a node that has lost its startup taint or has been released since (a
// release changes the annotation). Without a startup taint there are none: such a node is not ours to taint.
func BuildFailedTaint(node *Node, k Keys, value string) []Operation {
	startup := slices.IndexFunc(node.Spec.Taints, func(taint Taint) bool { return taint.Key == k.TaintKey })
	if startup < 0 {
		return nil
	}
	ops := append(testUID(node), unchanged("/metadata/annotations", node.Annotations, Annotation))
	ops = append(ops, testTaint(startup, node.Spec.Taints[startup])...)
	return append(ops, Operation{"add", "/spec/taints/-", Taint{Key: k.FailedTaintKey, Value: value, Effect: failedEffect}})
}

// BuildRetaint returns the operations that append the failed taint to the taints of a released node, which must not have changed
// since it was read: no operation can test that no taint was added or removed.
func BuildRetaint(node *Node, k Keys, value string) []Operation {
	ops := append(testUID(node), testVersion(node))
	taint := Taint{Key: k.FailedTaintKey, Value: value, Effect: failedEffect}
	if len(node.Spec.Taints) == 0 {
		return append(ops, Operation{"add", "/spec/taints", []Taint{taint}})
	}
	return append(ops, Operation{"add", "/spec/taints/-", taint})
}

func testVersion(node *Node) Operation {
	return Operation{"test", "/metadata/resourceVersion", node.ResourceVersion}
}

func testUID(node *Node) []Operation {
	return []Operation{{"test", "/metadata/uid", string(node.UID)}}
}

// testTaint tests the taint at an index. Not the whole taint: another client may have set its value or timeAdded.
func testTaint(index int, taint Taint) []Operation {
	path := "/spec/taints/" + strconv.Itoa(index)
	return []Operation{{"test", path + "/key", taint.Key}, {"test", path + "/effect", taint.Effect}}
}

func removeTaints(node *Node, match func(Taint) bool) (ops []Operation) {
	for i, taint := range slices.Backward(node.Spec.Taints) { // highest index first: a removal moves the ones after it
		if match(taint) {
			ops = append(ops, testTaint(i, taint)...)
			ops = append(ops, Operation{"remove", "/spec/taints/" + strconv.Itoa(i), nil})
		}
	}
	return ops
}

// set adds a key to a map that may not exist yet. The map is added only while it is still null:
// an unguarded add would replace a map that another client has created since.
func set(path string, existing map[string]string, key, value string) []Operation {
	add := Operation{"add", path + "/" + escape(key), value}
	if existing == nil {
		return []Operation{{"test", path, nil}, {"add", path, struct{}{}}, add}
	}
	return []Operation{add}
}

// unchanged tests that a key of a map is as it was read; a test for null passes where there is none.
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

// escape makes a key part of a JSON pointer (RFC 6901, 3).
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
