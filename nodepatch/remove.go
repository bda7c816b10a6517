package nodepatch

import (
	"context"
	"slices"
)

// Opened is the annotation that says when somebody has removed our taints from a node, as RFC 3339 writes a time.
const Opened = "node-ready/opened"

// RemoveTaints removes the taints that a release removes, and sets the annotation Opened, starting from base. It returns those
// taints, beside an error those that it has tried to remove: somebody releases the node by hand. The errors are those of Release.
func (p *Patcher) RemoveTaints(ctx context.Context, base *Node, k Keys, opened string) (removed []Taint, err error) {
	return p.removeOnly(ctx, base, k.Removes, func(node *Node) []Operation {
		return set("/metadata/annotations", node.Annotations, Opened, opened)
	})
}

// RemoveFailedTaint removes the failed taint and nothing else, starting from base. It returns the same errors as Release.
func (p *Patcher) RemoveFailedTaint(ctx context.Context, base *Node, k Keys) error {
	_, err := p.removeOnly(ctx, base, k.IsFailed, func(*Node) []Operation { return nil })
	return err
}

// removeOnly removes the taints that match, with the operations of another change of the same patch.
func (p *Patcher) removeOnly(ctx context.Context, base *Node, match func(Taint) bool, also func(*Node) []Operation) (
	removed []Taint, err error) {
	done := func(node *Node) bool { return !slices.ContainsFunc(node.Spec.Taints, match) }
	if done(base) {
		return nil, nil
	}
	_, err = p.carryOut(ctx, base, change{done: done, build: func(node *Node) []Operation {
		removed = matching(node.Spec.Taints, match)
		return slices.Concat(testUID(node), removeTaints(node, match), also(node))
	}})
	return removed, err
}

// RemoveLabel removes the label, whatever its value, and nothing else, starting from base, and reports whether it was there:
// somebody wants the node to be verified again. The errors are those of Release.
func (p *Patcher) RemoveLabel(ctx context.Context, base *Node, k Keys) (removed bool, err error) {
	done := func(node *Node) bool {
		_, labelled := node.Labels[k.Label]
		return !labelled
	}
	if done(base) {
		return false, nil
	}
	_, err = p.carryOut(ctx, base, change{done: done, build: func(node *Node) []Operation {
		return append(testUID(node), unchanged("/metadata/labels", node.Labels, k.Label),
			unchanged("/metadata/annotations", node.Annotations, Annotation), // else it was verified again since
			Operation{"remove", "/metadata/labels/" + escape(k.Label), nil})
	}})
	return err == nil, err
}
