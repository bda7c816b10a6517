package checklist

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cenkalti/backoff/v4"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/requirement"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Requirements is the check node: what the Node itself must show (REQUIRE).
type Requirements struct {
	List   requirement.List
	Client *kube.Client
	// Node returns the Node as this round has read it; nil: it has not.
	Node func(context.Context) (*nodepatch.Node, error)
	// Counts reports whether a judgement counts; nil: each does.
	Counts func(requirement.Judgement) bool
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

// Try implements checks.Check. The same Node gets the same judgement, so there is no retry.
func (r Requirements) Try(ctx context.Context) (report checks.Report, err error) {
	node, err := r.Node(ctx)
	if node == nil {
		return checks.Report{Skipped: "the node was not read"}, err
	}
	judged, err := Judge(ctx, r.Client, r.List, node)
	var met, unmet []string
	for _, one := range judged {
		switch counts := r.Counts == nil || r.Counts(one); {
		case one.Unmet == "":
			met = append(met, one.String())
		case counts:
			unmet = append(unmet, one.String()+": "+one.Unmet)
		}
	}
	if len(unmet) > 0 {
		err = backoff.Permanent(&checks.Failure{Cause: errors.New(strings.Join(unmet, "; ")),
			Remedy: "check what provides it: it must run on this node, and tolerate the startup taint"})
	}
	if report.Detail = strings.Join(met, ", "); report.Detail == "" {
		report.Skipped = "no requirement counts on this node"
	}
	return report, err
}

// Judge judges the requirements for node, with its pods where a DaemonSet is required.
func Judge(ctx context.Context, client *kube.Client, list requirement.List, node *nodepatch.Node) ([]requirement.Judgement, error) {
	var pods []requirement.Pod
	for _, namespace := range list.Namespaces(node) {
		found, err := kube.Pods[requirement.Pod](ctx, client, namespace, node.Name)
		if err != nil {
			return nil, &checks.Failure{Cause: fmt.Errorf("pods of the node in the namespace %s: %w", namespace, err),
				Remedy: "apply the Role and its binding from the chart in that namespace"}
		}
		pods = append(pods, found...)
	}
	return list.Judge(node, pods), nil
}
