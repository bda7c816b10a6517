package checklist

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/requirement"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Requirements is the check node: what the Node itself must show (REQUIRE).
type Requirements struct {
	List   requirement.List
	Client *kube.Client
	Node   func(context.Context) (*nodepatch.Node, error) // as the round has read it, nil: it has not
	// Timeout is that of Unmet.
	Timeout time.Duration
	// Met are the requirements that count, nil: all. Those that are met are added.
	Met map[string]bool
}

// And returns list with the check, where anything is required.
func (r Requirements) And(list []checks.Check) []checks.Check {
	if len(r.List) == 0 {
		return list
	}
	return append(list, r)
}

// Name implements checks.Check.
func (Requirements) Name() string { return checks.NodeName }

// Try implements checks.Check.
func (r Requirements) Try(ctx context.Context) (checks.Report, error) {
	node, err := r.Node(ctx)
	if node == nil {
		return checks.Report{Skipped: "the node was not read"}, err
	}
	return r.judge(ctx, node)
}

// Unmet says how a Node does not meet the requirements, or "".
func (r Requirements) Unmet(ctx context.Context, node *nodepatch.Node) string {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	if _, err := r.judge(ctx, node); err != nil {
		return checks.NodeName + ": " + err.Error() + " (" + checks.Remedy(err) + ")"
	}
	return ""
}

// judge fails if node does not meet the requirements.
func (r Requirements) judge(ctx context.Context, node *nodepatch.Node) (checks.Report, error) {
	var met, unmet []string
	for _, e := range r.List {
		if !e.IsFor(node) {
			continue
		}
		why := e.Unmet(node, func(namespace string) ([]requirement.Pod, error) {
			return kube.Pods[requirement.Pod](ctx, r.Client, namespace, node.Name)
		})
		switch text := e.String(); {
		case why != "" && (r.Met == nil || r.Met[text]):
			unmet = append(unmet, text+": "+why)
		case why == "" && r.Met != nil:
			r.Met[text] = true
			fallthrough
		case why == "":
			met = append(met, text)
		}
	}
	if len(unmet) > 0 {
		return checks.Report{}, &checks.Failure{Cause: errors.New(strings.Join(unmet, "; ")),
			Remedy: "check what provides it: it must run on this node, and tolerate the startup taint"}
	}
	return checks.Report{Detail: strings.Join(met, ", ")}, nil
}
