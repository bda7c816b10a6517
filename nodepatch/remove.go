package nodepatch

import (
	"context"
	"slices"
)

// Opened is the annotation that says when somebody has removed our taints from a node, as RFC 3339 writes a time.
const Opened = "node-ready/opened"

// RemoveTaints removes the taints that a release removes, and sets the annotation Opened, starting from base. It returns those
// taints, beside an error those that it has tried to remove: somebody releases the node by hand. The errors are those of Release.
func (p *Patcher) RemoveTaints(ctx context.Context, base *Node, r Request, opened string) (removed []Taint, err error) {
	_, removed, err = p.removeOnly(ctx, base, removal{match: r.Removes, also: func(node *Node) []Operation {
		return set("/metadata/annotations", node.Annotations, Opened, opened)
	}})
	return removed, err
}

// Open removes the taints that match from a Node that is not verified, sets r's annotation, and adds no label. It changes only a
// Node that has not changed since it was read, because no operation can test that no foreign taint was added. It returns the Node as
// it is then. The errors are those of Release.
func (p *Patcher) Open(ctx context.Context, base *Node, r Request, match func(Taint) bool) (now *Node, removed []Taint, err error) {
	return p.removeOnly(ctx, base, removal{match: match, voids: r.voids, also: func(node *Node) []Operation {
		value := r.AnnotationValue(node, matching(node, match))
		return append(set("/metadata/annotations", node.Annotations, r.Annotation, value), testVersion(node))
	}})
}

// RemoveFailedTaint removes r's failed taint and nothing else, starting from base. The errors are those of Release.
func (p *Patcher) RemoveFailedTaint(ctx context.Context, base *Node, r Request) error {
	_, _, err := p.removeOnly(ctx, base, removal{match: r.isFailed, also: func(*Node) []Operation { return nil }})
	return err
}

// removal is a patch that removes taints, and does not release the Node.
type removal struct {
	match func(Taint) bool
	also  func(*Node) []Operation // of the same patch
	voids func(*Node) error       // as of a change
}

func (p *Patcher) removeOnly(ctx context.Context, base *Node, r removal) (now *Node, removed []Taint, err error) {
	done := func(node *Node) bool { return !slices.ContainsFunc(node.Spec.Taints, r.match) }
	if done(base) {
		return base, nil, nil
	}
	now, err = p.carryOut(ctx, base, change{done: done, voids: r.voids, build: func(node *Node) []Operation {
		removed = matching(node, r.match)
		return slices.Concat(testUID(node), removeTaints(node, r.match), r.also(node))
	}})
	return now, removed, err
}

// RemoveLabel removes r's label, whatever its value, and nothing else, starting from base, and reports whether it was there:
// somebody wants the node to be verified again. The errors are those of Release.
func (p *Patcher) RemoveLabel(ctx context.Context, base *Node, r Request) (removed bool, err error) {
	done := func(node *Node) bool {
		_, labelled := node.Labels[r.Label]
		return !labelled
	}
	if done(base) {
		return false, nil
	}
	_, err = p.carryOut(ctx, base, change{done: done, build: func(node *Node) []Operation {
		return append(testUID(node), unchanged("/metadata/labels", node.Labels, r.Label),
			unchanged("/metadata/annotations", node.Annotations, r.Annotation), // else it was verified again since
			Operation{"remove", "/metadata/labels/" + escape(r.Label), nil})
	}})
	return err == nil, err
}
