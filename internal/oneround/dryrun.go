package oneround

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/nodecheck"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// The report: one line a check, below it a line with the remedy and one for each warning, and the verdict at the end.

// DryRun runs every check once and prints a report to out. It writes nothing, and needs no node. It reports whether
// all checks have passed.
func DryRun(ctx context.Context, cfg config.Config, e kube.Environment, version string, out io.Writer) (passes bool) {
	printf := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	printf("kube-node-ready %s, dry run: nothing is written", version)

	var node *nodepatch.Node
	get := func(ctx context.Context) (report checks.Report, err error) {
		if e.Err != nil {
			return report, &checks.Failure{Cause: e.Err,
				Remedy: "name a kubeconfig that can be read (--kubeconfig, KUBECONFIG); in a pod, mount the service account token"}
		}
		if cfg.NodeName == "" {
			report.Detail = "authenticated; no --node-name, so no node was read"
			report.Warnings, err = checks.WithLargeHeader(func(value string) error {
				return e.Client.Versions(kube.WithLargeHeader(ctx, value))
			})
			return report, err
		}
		node, report, err = checklist.ReadNode(ctx, cfg.NodeName, nodepatch.Client{REST: e.Client.Core, Name: cfg.NodeName}.Get)
		return report, err
	}
	cfg.MaxRetries = 0
	p := printer{printf: printf}
	runner := checklist.Runner(cfg, p.attempted)
	read := func(context.Context) (*nodepatch.Node, error) { return node, nil }
	list := checklist.New(cfg, e)(checks.API{Get: get}, checklist.Options{})
	_, err := runner.Round(ctx, nodecheck.Requirements{List: cfg.Require, Client: e.Client, Node: read}.And(list))
	if err != nil {
		printf("interrupted")
		return false
	}
	verdict := "PASSED"
	if p.failed > 0 {
		verdict = "FAILED"
	}
	printf("%s: %d passed, %d failed, %d skipped", verdict, p.passed, p.failed, p.skipped)
	if node != nil && p.failed == 0 {
		printPatch(printf, cfg, node)
	}
	return p.failed == 0
}

// printPatch prints the patch that a release would send.
func printPatch(printf func(string, ...any), cfg config.Config, node *nodepatch.Node) {
	record := func(*nodepatch.Node, []nodepatch.Taint) string { return "{…}" }
	release := nodepatch.Release{Keys: cfg.Keys(), Value: record}
	if release.Keys.IsVerified(node.Labels, node.Spec.Taints) {
		printf("node %s is already verified: nothing would be patched", node.Name)
		return
	}
	if cfg.ShowsEachVerdict() {
		printf("would write the condition %s of node %s: True", cfg.ConditionType, node.Name)
	}
	printf("would send this patch to node %s:", node.Name)
	for _, op := range nodepatch.Build(node, release) {
		if text, err := json.Marshal(op); err == nil {
			printf("  %s", text)
		}
	}
}

// printer prints each check as it ends, and counts them.
type printer struct {
	printf                  func(string, ...any)
	passed, failed, skipped int
}

// attempted prints the one attempt of a check.
func (p *printer) attempted(a checks.Attempt) {
	switch {
	case a.Err != nil:
		p.failed++
		p.printf("FAIL  %-8s %8s  %v", a.Check, round.FormatDuration(a.Took), a.Err)
		if remedy := checks.Remedy(a.Err); remedy != "" {
			p.printf("%21s to try: %s", "", remedy)
		}
	case a.Report.Skipped != "":
		p.skipped++
		p.printf("SKIP  %-8s %8s  %s", a.Check, "", a.Report.Skipped)
	default:
		p.passed++
		p.printf("PASS  %-8s %8s  %s", a.Check, round.FormatDuration(a.Took), a.Report.Detail)
	}
	for _, warning := range a.Report.Warnings {
		p.printf("%21s warning: %s", "", warning)
	}
}
