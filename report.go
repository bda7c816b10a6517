package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// All that a person reads at a prompt is written here: one line a check, a line below it for what
// to try and for each warning, and the verdict at the end.

// dryRun runs every check once and prints a report. It writes nothing, and needs no node.
func dryRun(ctx context.Context, cfg config, p place, out io.Writer) int {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	say("kube-node-ready %s, dry run: nothing is written", version)

	var node *nodepatch.Node
	get := func(ctx context.Context) (string, time.Duration, error) {
		if p.noAPI != nil {
			return "", 0, &checks.Failure{Cause: p.noAPI,
				Remedy: "name a kubeconfig that can be read (--kubeconfig, KUBECONFIG); in a pod, let the service account token be mounted"}
		}
		if cfg.nodeName == "" {
			return "authenticated; no --node-name, so no node was read", 0, p.api.versions(ctx)
		}
		var err error
		node, err = nodepatch.Client{REST: p.api.core, Name: cfg.nodeName}.Get(ctx)
		return "node " + cfg.nodeName + " read", 0, err
	}
	cfg.maxRetries = 0
	runner := newRunner(cfg, printer{say})
	results, err := runner.Round(ctx, newChecks(cfg, p, checks.API{Get: get}))
	if err != nil {
		say("interrupted")
		return exitNotVerified
	}

	var passed, failed, skipped int
	for _, result := range results {
		switch {
		case result.Err != nil:
			failed++
		case result.Report.Skipped != "":
			skipped++
		default:
			passed++
		}
	}
	verdict, code := "PASSED", exitOK
	if failed > 0 {
		verdict, code = "FAILED", exitNotVerified
	}
	say("%s: %d passed, %d failed, %d skipped", verdict, passed, failed, skipped)
	if node != nil && failed == 0 {
		sayPatch(say, cfg, node)
	}
	return code
}

// sayPatch prints what would be done to the node.
func sayPatch(say func(string, ...any), cfg config, node *nodepatch.Node) {
	request := cfg.request()
	request.AnnotationValue = "{…}"
	if nodepatch.Open(node, request) {
		say("node %s is verified already: nothing would be patched", node.Name)
		return
	}
	say("would be sent to node %s:", node.Name)
	for _, op := range nodepatch.Build(node, request) {
		if text, err := json.Marshal(op); err == nil {
			say("  %s", text)
		}
	}
}

// printer prints each check as it ends.
type printer struct{ say func(string, ...any) }

// Attempted implements checks.Observer.
func (p printer) Attempted(a checks.Attempt) {
	switch {
	case a.Err != nil:
		p.say("FAIL  %-8s %8s  %v", a.Check, seconds(a.Took), a.Err)
		if remedy := checks.Remedy(a.Err); remedy != "" {
			p.say("%21s to try: %s", "", remedy)
		}
	case a.Report.Skipped != "":
		p.say("SKIP  %-8s %8s  %s", a.Check, "", a.Report.Skipped)
	default:
		p.say("PASS  %-8s %8s  %s", a.Check, seconds(a.Took), a.Report.Detail)
	}
	for _, warning := range a.Report.Warnings {
		p.say("%21s warning: %s", "", warning)
	}
}
