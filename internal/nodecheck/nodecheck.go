// Package nodecheck is the check node: what the Node itself must show (REQUIRE).
package nodecheck

import (
	"context"
	"errors"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/requirement"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Requirements is the check.
type Requirements struct {
	List    requirement.List
	Client  *kube.Client
	Node    func(context.Context) (*nodepatch.Node, error) // as the round has read it, nil: it has not
	Timeout time.Duration                                  // of Unmet
	// Met is for rechecks; nil means that all requirements count. It has the requirements that the Node has met before, and only
	// they count. The check adds those that the Node meets, as true, and sets those that it has lost to false. A CSI driver
	// never counts: the Node says only that it has registered once.
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

// Unmet says how a Node does not meet the requirements, or "".
func (r Requirements) Unmet(ctx context.Context, node *nodepatch.Node) string {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	if _, err := r.judge(ctx, node); err != nil {
		return checks.NodeName + ": " + err.Error() + " (" + checks.Remedy(err) + ")"
	}
	return ""
}

// Try implements checks.Check.
func (r Requirements) Try(ctx context.Context) (checks.Report, error) {
	node, err := r.Node(ctx)
	if node == nil {
		return checks.Report{Skipped: "the node was not read"}, err
	}
	return r.judge(ctx, node)
}

// judge reports the requirements that a Node meets. The error names those that count and are not met. It lists the pods of each
// namespace at most once.
func (r Requirements) judge(ctx context.Context, node *nodepatch.Node) (checks.Report, error) {
	lists, listErrs := make(map[string][]requirement.Pod), make(map[string]error) // by namespace
	pods := func(namespace string) ([]requirement.Pod, error) {
		if _, isListed := lists[namespace]; !isListed {
			lists[namespace], listErrs[namespace] = kube.Pods[requirement.Pod](ctx, r.Client, namespace, node.Name)
		}
		return lists[namespace], listErrs[namespace]
	}
	var met, unmet, unknown []string
	isRecheck := r.Met != nil
	for _, e := range r.List {
		if !e.IsFor(node) || isRecheck && e.Kind == requirement.CSIDriver {
			continue
		}
		text, why := e.String(), e.Unmet(node, pods)
		_, wasMet := r.Met[text]
		namespace, _, _ := strings.Cut(e.Name, "/")
		isForbidden := e.Kind == requirement.DaemonSet && apierrors.IsForbidden(listErrs[namespace])
		if wasMet && !isForbidden || isRecheck && why == "" {
			r.Met[text] = why == ""
		}
		switch {
		case wasMet && isForbidden: // by an upgrade that removes a requirement, from agents that still run
			unknown = append(unknown, text+": "+why)
		case why == "":
			met = append(met, text)
		case !isRecheck || wasMet:
			unmet = append(unmet, text+": "+why)
		}
	}
	if len(unmet) > 0 {
		return checks.Report{}, &checks.Failure{Cause: errors.New(strings.Join(unmet, "; ")),
			Remedy: "check what provides it: that must run here and tolerate the startup taint (to list pods, apply the chart's Role)"}
	}
	return checks.Report{Detail: strings.Join(met, ", "), Warnings: unknown, IsUnknown: len(unknown) > 0}, nil
}
