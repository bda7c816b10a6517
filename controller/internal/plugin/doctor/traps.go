package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// Trap is something that can lock a cluster.
type Trap struct {
	Name string
	Find func(Cluster) Result
	// Unread is why the parts of the cluster that the trap needs were not read.
	Unread []error
}

// Traps returns all of them, in the order of docs/controller.md.
func Traps(c Cluster) []Trap {
	nodes, agents := c.Nodes.Err, c.Agents.Err
	return []Trap{
		{settingsName, settings, nil},
		{"no-release", noRelease, nil},
		{"dns-behind-gate", dnsBehindGate, []error{c.DNS.Err, nodes}},
		{"network-behind-gate", networkBehindGate, []error{nodes, c.DaemonSets.Err, c.Deployments.Err}},
		{"external-names", externalNames, nil},
		{"cluster-domain", clusterDomain, nil},
		{"karpenter", karpenter, []error{c.NodePools.Err}},
		{"cluster-autoscaler", clusterAutoscaler, nil},
		{"foreign-taints", foreignTaints, nil},
		{"left-startup-taints", leftStartupTaints, []error{nodes}},
		{"requirements", requirements, nil},
		{"readiness-rules", readinessRules, []error{c.ReadinessRules.Err}},
		{"labelled-and-tainted", labelledAndTainted, []error{nodes, agents}},
		{"excluded-and-tainted", excludedAndTainted, []error{nodes, agents}},
		{"failed-taint", failedTaint, []error{nodes, agents}},
		{"webhooks", webhooks, []error{c.Webhooks.Err, nodes, c.Namespace.Err}},
		{"policy", policy, []error{c.Policies.Err, c.Bindings.Err}},
	}
}

const settingsName = "settings"

// settings: no pod of the release starts with invalid settings.
func settings(c Cluster) (r Result) {
	if c.Release.Invalid != nil {
		r.find(c.Release.Remedy(), "%s", strings.ReplaceAll(c.Release.Invalid.Error(), "\n", "; "))
	}
	r.Passed = "the settings in the ConfigMap " + c.Release.Namespace + "/" + c.Release.Fullname + " are valid"
	return r
}

// noRelease: without a release nobody removes the taints, and the plugin's other commands refuse.
func noRelease(c Cluster) (r Result) {
	switch {
	case !c.Release.NotInstalled:
		for _, other := range c.Release.Others {
			r.note("for the nodes of the release %s: kubectl node-ready doctor %s", other.Name, other.Flags())
		}
		r.Passed = "the release is " + c.Release.Name + " in the namespace " + c.Release.Namespace
		return r
	case c.Nodes.Err != nil || c.Release.Unseen != nil:
		return unchecked(c.Nodes.Err, c.Release.Unseen)
	}
	for _, key := range []string{c.Release.Agent.TaintKey, c.Release.Agent.FailedTaintKey} {
		for _, node := range c.Nodes.Value {
			target := "--all"
			if !c.Release.IsOnly() { // the other releases' nodes may have the key too
				target = node.Name
			}
			if other, _ := c.Release.RemovedElsewhere(&node, key); fleet.HasTaint(&node, key) && other == nil {
				r.find("install it; or, to let workloads onto nodes, verified or not: kubectl taint nodes "+target+" "+key+"-",
					"the node %s has the taint %s: nothing removes the taint until the release is installed", node.Name, key)
			}
		}
	}
	r.Passed = "no node has the startup taint or the failed taint"
	return r
}

// Finding is a trap that is set, and what to do about it.
type Finding struct{ Text, Remedy string }

// Result is what a trap's function has found. Without findings and Unchecked the trap is not set.
type Result struct {
	Findings []Finding
	Warnings []Finding // traps that would be set once more nodes join with the startup taint
	Notes    []string  // what is good to know and not a trap
	Passed   string    // what was looked at: it is shown if nothing was found
	// Unchecked is why the trap, or a part of it, could not be looked for.
	Unchecked error
}

// unchecked says why a trap was not looked for, each reason once.
func unchecked(errs ...error) Result {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	return Result{Unchecked: errors.Join(slices.CompactFunc(errs, func(a, b error) bool { return a.Error() == b.Error() })...)}
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

func (r *Result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}
