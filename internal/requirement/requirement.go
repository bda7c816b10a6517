// Package requirement holds what the Node itself must show before it is released (REQUIRE). It has no side effects: others read
// the objects.
package requirement

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// The kinds of requirements.
const (
	condition   = "condition"
	allocatable = "allocatable"
	label       = "label"
	CSIDriver   = "csiDriver"
	DaemonSet   = "daemonSet"
)

// CSIDrivers is the annotation in which kubelet names the CSI drivers that have registered with it.
const CSIDrivers = "csi.volume.kubernetes.io/nodeid"

// Entry is one requirement.
type Entry struct {
	Kind, Name string
	Value      string     // of a condition its status; of a resource the least quantity, "": more than 0
	On         labels.Set // the nodes that it is for have these labels
	text       string
}

// String returns the requirement on one line. No two of a List have the same.
func (e Entry) String() string { return e.text }

// List is a list of requirements.
type List []Entry

// parse reads the text of a requirement of a kind. It accepts at least what the chart's schema accepts, or every new node would
// have a crash loop.
func parse(kind, text string) (name, value string, ok bool) {
	switch kind {
	case condition:
		name, value, _ = strings.Cut(text, "=")
		return name, value, isKey(name) && slices.Contains([]string{"True", "False", "Unknown"}, value)
	case allocatable:
		name, value, hasValue := strings.Cut(text, ">=")
		least, err := parseQuantity(value)
		return name, value, isResource(name) && (!hasValue || err == nil && least.Sign() > 0)
	case CSIDriver:
		return text, "", isKey(text) && !strings.Contains(text, "/")
	case label:
		return text, "", isKey(text)
	case DaemonSet:
		namespace, daemonSet, _ := strings.Cut(text, "/")
		return text, "", len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(daemonSet)) == 0
	}
	return "", "", false
}

// parseQuantity refuses exponents of more than three characters: package resource computes their power of ten, and may panic.
func parseQuantity(text string) (resource.Quantity, error) {
	if i := strings.IndexAny(text, "eE"); i >= 0 && len(text)-i > 4 {
		return resource.Quantity{}, resource.ErrSuffix
	}
	return resource.ParseQuantity(text)
}

func isKey(s string) bool { return len(validation.IsQualifiedName(s)) == 0 }

// isResource: without a domain there are only the resources of Kubernetes.
func isResource(s string) bool {
	isOwn := slices.Contains([]string{"cpu", "memory", "pods", "ephemeral-storage"}, s) ||
		strings.HasPrefix(s, "hugepages-") || strings.HasPrefix(s, "attachable-volumes-")
	return isKey(s) && (isOwn || strings.Contains(s, "/"))
}

// Parse reads a JSON list of objects: each has one kind with its text, and may have "on" with labels. The error names every
// mistake. What is there twice counts once.
func (l *List) Parse(text string) (err error) {
	var objects []map[string]any
	if json.Unmarshal([]byte(cmp.Or(text, "[]")), &objects) != nil {
		return errors.New(`must be a JSON list, such as [{"condition":"NetworkUnavailable=False"}]`)
	}
	*l = nil
	for _, object := range objects {
		e := Entry{On: make(labels.Set)}
		on, isMap := object["on"].(map[string]any)
		if isMap {
			delete(object, "on")
		}
		ok := len(object) == 1
		for _, kind := range slices.Sorted(maps.Keys(object)) {
			text := fmt.Sprint(object[kind])
			name, value, isValid := parse(kind, text)
			e.Kind, e.Name, e.Value, e.text = kind, name, value, e.text+kind+" "+text
			ok = ok && isValid
		}
		for _, key := range slices.Sorted(maps.Keys(on)) {
			e.On[key] = fmt.Sprint(on[key])
			e.text += " on " + key + "=" + e.On[key]
			ok = ok && isKey(key) && len(validation.IsValidLabelValue(e.On[key])) == 0
		}
		isSame := func(other Entry) bool { return other.text == e.text }
		switch {
		case !ok:
			err = errors.Join(err, fmt.Errorf("%q must be one of condition: TYPE=True (or False, Unknown); allocatable: RESOURCE or "+
				"RESOURCE>=QUANTITY; csiDriver: NAME; label: KEY; daemonSet: NAMESPACE/NAME; each may have on: {LABEL: VALUE}", e))
		case !slices.ContainsFunc(*l, isSame):
			*l = append(*l, e)
		}
	}
	return err
}

// IsFor reports whether node has the labels of On.
func (e Entry) IsFor(node *nodepatch.Node) bool {
	return labels.SelectorFromSet(e.On).Matches(labels.Set(node.Labels))
}

// For returns the requirements that are for node, each on one line.
func (l List) For(node *nodepatch.Node) (texts []string) {
	for _, e := range l {
		if e.IsFor(node) {
			texts = append(texts, e.String())
		}
	}
	return texts
}

// Pod holds the fields of a Pod (core/v1) that tell whether its DaemonSet is ready on a node.
type Pod struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Conditions nodepatch.Conditions `json:"conditions"`
	} `json:"status"`
}

// Unmet says why node does not meet the requirement, or "". pods lists the node's pods in a namespace, for a DaemonSet.
func (e Entry) Unmet(node *nodepatch.Node, pods func(namespace string) ([]Pod, error)) string {
	met, why := false, "the node has none"
	switch e.Kind {
	case condition:
		if found := node.Status.Conditions.Of(e.Name); found.Type != "" {
			met, why = found.Status == e.Value, "it is "+found.Status+" ("+found.Reason+")"
		}
	case allocatable:
		least, _ := parseQuantity(cmp.Or(e.Value, "0")) // Parse has seen it
		if has, err := parseQuantity(node.Status.Allocatable[e.Name]); err == nil {
			met, why = has.Sign() > 0 && has.Cmp(least) >= 0, "the node has "+has.String()
		}
	case CSIDriver: // kubelet writes a JSON object
		met = strings.Contains(node.Annotations[CSIDrivers], `"`+e.Name+`":`)
	case label:
		_, met = node.Labels[e.Name]
	case DaemonSet:
		namespace, name, _ := strings.Cut(e.Name, "/")
		found, err := pods(namespace)
		if err != nil {
			why = "cannot list the node's pods: " + err.Error()
		}
		for _, pod := range found {
			isOwner := func(owner metav1.OwnerReference) bool { return owner.Kind == "DaemonSet" && owner.Name == name }
			if !met && pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.OwnerReferences, isOwner) {
				met, why = pod.Status.Conditions.Of("Ready").Status == "True", "its pod "+pod.Name+" is not ready"
			}
		}
	}
	if met {
		return ""
	}
	return why
}
