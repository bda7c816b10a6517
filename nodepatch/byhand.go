package nodepatch

import "context"

// RemoveTaints removes the taints that a release removes, and nothing else, starting from base, and returns those that it has
// removed: somebody opens the node by hand. The errors are those of Release.
func (p *Patcher) RemoveTaints(ctx context.Context, base *Node, r Request) (removed []Taint, err error) {
	done := func(node *Node) bool { return len(r.removed(node)) == 0 }
	if done(base) {
		return nil, nil
	}
	_, err = p.carryOut(ctx, base, change{done: done, build: func(node *Node) []Operation {
		removed = r.removed(node)
		return append(testUID(node), removeTaints(node, r.Removes)...)
	}})
	if err != nil {
		return nil, err
	}
	return removed, nil
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
			Operation{"remove", "/metadata/labels/" + escape(r.Label), nil})
	}})
	return err == nil, err
}
