package nodepatch

import (
	"context"
	"slices"
)

// RemoveTaints removes the taints that a release removes, and nothing else, starting from base, and returns those that it has
// removed, beside an error those that it has tried to: somebody releases the node by hand. The errors are those of Release.
func (p *Patcher) RemoveTaints(ctx context.Context, base *Node, r Request) (removed []Taint, err error) {
	return p.removeOnly(ctx, base, r.Removes)
}

// RemoveFailedTaint removes r's failed taint and nothing else, starting from base. The errors are those of Release.
func (p *Patcher) RemoveFailedTaint(ctx context.Context, base *Node, r Request) error {
	_, err := p.removeOnly(ctx, base, r.isFailed)
	return err
}

func (p *Patcher) removeOnly(ctx context.Context, base *Node, match func(Taint) bool) (removed []Taint, err error) {
	done := func(node *Node) bool { return !slices.ContainsFunc(node.Spec.Taints, match) }
	if done(base) {
		return nil, nil
	}
	_, err = p.carryOut(ctx, base, change{done: done, build: func(node *Node) []Operation {
		removed = matching(node, match)
		return append(testUID(node), removeTaints(node, match)...)
	}})
	return removed, err
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
