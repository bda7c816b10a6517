package doctor

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// trap is something that can lock a cluster.
type trap struct {
	name string
	// passed describes the state without the trap. It is printed if nothing was found, unless find sets another text.
	passed string
	find   func(Cluster, *Result)
	// unread has the errors of the parts of the cluster that the trap needs.
	unread []error
}

// traps returns all of them, in the order of docs/controller.md.
func traps(c Cluster) []trap {
	nodes, pools, deployments := c.Nodes.Err, c.NodePools.Err, c.Deployments.Err
	waiting := []error{nodes, c.Agents.Err}
	return []trap{
		{"settings", "the settings in the ConfigMap " + c.Release.Namespace + "/" + c.Release.Fullname + " are valid", settings, nil},
		{"no-release", "no node has the startup taint or the failed taint", noRelease, nil},
		{"dns-behind-gate", "the DNS pods tolerate the taints, or can run on other nodes", dnsBehindGate, []error{c.DNS.Err, nodes}},
		{"network-behind-gate", "no known component of the network waits for the gate", networkBehindGate,
			[]error{nodes, c.DaemonSets.Err, deployments}},
		{"external-names", "config.dnsTestDomains has no external name", externalNames, nil},
		{"cluster-domain", "a DNS pod resolves the Service names (the cluster's domain is unknown)", clusterDomain, nil},
		{"karpenter", "each NodePool declares the startup taint of a release under startupTaints", karpenter, []error{pools, nodes}},
		{"cluster-autoscaler", "each Cluster Autoscaler that runs knows the startup taint", clusterAutoscaler, nil},
		{"foreign-taints", "the agent tolerates the taints of the nodes that have the startup taint", foreignTaints, []error{nodes}},
		{"left-startup-taints", "no node has kept a foreign startup taint", leftStartupTaints, []error{nodes}},
		{"requirements", "config.require has nothing that prevents a release", requirements, []error{nodes, c.DaemonSets.Err}},
		{"readiness-rules", "no NodeReadinessRule is stuck on the condition", readinessRules, []error{c.ReadinessRules.Err, nodes}},
		{"labelled-and-tainted", "no labelled node has a startup taint that nothing removes", labelledAndTainted, waiting},
		{"excluded-and-tainted", "the node rules of a release select each node with the startup taint", excludedAndTainted, waiting},
		{"failed-taint", "no node has a failed taint that nothing removes", failedTaint, waiting},
		{"webhooks", "no webhook with failurePolicy Fail blocks a release", webhooks, []error{c.Webhooks.Err, nodes, c.Namespace.Err}},
		{"policy", "the policies of the release are bound, and deny", policy, []error{c.Policies.Err, c.Bindings.Err}},
	}
}

// settings: no pod of the release starts with invalid settings.
func settings(c Cluster, r *Result) {
	if c.Release.Invalid != nil {
		r.find(c.Release.Remedy(), "%s", strings.ReplaceAll(c.Release.Invalid.Error(), "\n", "; "))
	}
}

// noRelease: without a release no component removes the taints, and the plugin's other commands refuse.
func noRelease(c Cluster, r *Result) {
	if !c.Release.NotInstalled {
		for _, other := range c.Release.Others {
			r.Notes = append(r.Notes, "for the nodes of the release "+other.Name+": kubectl node-ready doctor "+other.Flags())
		}
		r.Passed = "the release is " + c.Release.Name + " in the namespace " + c.Release.Namespace
		return
	}
	r.Unchecked = errors.Join(c.Nodes.Err, c.Agents.Err)
	for _, key := range []string{c.Release.Agent.TaintKey, c.Release.Agent.FailedTaintKey} {
		c.waiting(r, key, func(*corev1.Node) (remedy, text string) {
			return "install it; or, to let workloads onto nodes, verified or not: kubectl taint nodes NODE " + key + "-",
				"has the taint " + key + ": nothing removes the taint until the release is installed"
		})
	}
}

// Finding is a trap that is set, and what to do about it.
type Finding struct{ Text, Remedy string }

// Result is what a trap's function has found. Without findings and Unchecked the trap is not set.
type Result struct {
	Findings []Finding
	Warnings []Finding // traps that would be set once more nodes join with the startup taint
	Notes    []string  // what is good to know and not a trap
	Passed   string    // describes the state without the trap
	// Unchecked is why the trap, or a part of it, could not be looked for.
	Unchecked error
}

func (r *Result) find(remedy, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{fmt.Sprintf(format, args...), remedy})
}

func (r *Result) warn(remedy, format string, args ...any) {
	r.Warnings = append(r.Warnings, Finding{fmt.Sprintf(format, args...), remedy})
}

func (r *Result) skip(format string, args ...any) {
	r.Unchecked = errors.Join(r.Unchecked, fmt.Errorf(format, args...))
}

// Report looks for all traps but those to skip, and writes what was found. It returns how many are set; those that only
// would be, with more gated nodes, do not count.
func Report(out io.Writer, c Cluster, skip []string) (set int) {
	line := func(state, name, text string) { _, _ = fmt.Fprintf(out, "%-5s %-21s %s\n", state, name, text) }
	for _, trap := range traps(c) {
		result := trap.look(c, skip)
		list := func(state string, findings []Finding) {
			for i, finding := range findings {
				line(state, trap.name, finding.Text)
				if i+1 == len(findings) || findings[i+1].Remedy != finding.Remedy {
					line("", "", "try: "+finding.Remedy)
				}
			}
		}
		list("TRAP", result.Findings)
		list("WARN", result.Warnings)
		if len(result.Findings) > 0 {
			set++
		}
		switch {
		case result.Unchecked != nil:
			line("SKIP", trap.name, "not checked: "+strings.ReplaceAll(result.Unchecked.Error(), "\n", "; "))
		case len(result.Findings)+len(result.Warnings) == 0:
			line("PASS", trap.name, result.Passed)
		}
		for _, note := range result.Notes {
			line("", "", "note: "+note)
		}
	}
	return set
}

// look looks for the trap, unless it is skipped or needs a part of the cluster that was not read.
func (t trap) look(c Cluster, skip []string) Result {
	r := Result{Passed: t.passed, Unchecked: errors.Join(t.unread...)}
	switch {
	case slices.Contains(skip, t.name):
		r.Unchecked = errors.New("--skip")
	case c.Release.Invalid != nil && t.name != "settings":
		r.Unchecked = errors.New("the settings are unknown")
	case r.Unchecked == nil:
		t.find(c, &r)
	}
	return r
}

// CheckNames returns an error for names that no trap has.
func CheckNames(names []string) error {
	var known []string
	for _, trap := range traps(Cluster{}) {
		known = append(known, trap.name)
	}
	if unknown := sets.New(names...).Delete(known...); unknown.Len() > 0 {
		return errors.New("--skip " + strings.Join(sets.List(unknown), ",") + ": must be one of " + strings.Join(known, ", "))
	}
	return nil
}
