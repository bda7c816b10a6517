package doctor

import (
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/imunhatep/kube-node-ready/internal/config"
)

// policy: RBAC cannot restrict an account to its own node, or to some objects of a kind.
func policy(c Cluster) (r Result) {
	switch {
	case c.Policies.Absent:
		return Result{Passed: "this Kubernetes serves no ValidatingAdmissionPolicy (it comes with 1.30)"}
	case c.Policies.Err != nil || c.Bindings.Err != nil:
		return unchecked(c.Policies.Err, c.Bindings.Err)
	}
	const remedy = "set nodeAuthorization.enabled=true (from Kubernetes 1.30 on), or apply the release's kube-node-ready-policy.yaml"
	for _, policy := range c.Policies.Value {
		isBinding := func(b admissionv1.ValidatingAdmissionPolicyBinding) bool { return b.Spec.PolicyName == policy.Name }
		if !slices.ContainsFunc(c.Bindings.Value, isBinding) {
			r.find(remedy, "the ValidatingAdmissionPolicy %s has no binding: it restricts nothing", policy.Name)
		}
	}
	prevented := c.prevented()
	for _, name := range slices.Sorted(maps.Keys(prevented)) {
		isNamed := func(policy admissionv1.ValidatingAdmissionPolicy) bool { return policy.Name == name }
		if !slices.ContainsFunc(c.Policies.Value, isNamed) {
			r.find(remedy+"; or use --skip policy, if you chose nodeAuthorization.enabled=false",
				"there is no ValidatingAdmissionPolicy %s: %s", name, prevented[name])
		}
	}
	if c.Release.Planned != nil { // the policies may be applied apart from these manifests
		r.Warnings = r.Findings
		r.Findings = nil
	}
	r.Passed = "the policies of the release are bound"
	return r
}

// prevented returns what each policy of the release prevents, by its name. A test compares the names with the chart's.
func (c Cluster) prevented() map[string]string {
	policies, name := make(map[string]string), c.Release.Fullname
	if !c.Release.Settings.Workers {
		policies[name] = "the agent's token may patch any node"
		policies[name+"-events"] = "the agent's token may write Events about anything"
	}
	own := c.Release.Controller
	if own == nil {
		return policies
	}
	name += "-controller"
	policies[name] = "the controller's token may change anything of a node"
	policies[name+"-workers"] = "the controller's token may delete any pod of its namespace"
	if c.Release.Settings.Workers {
		policies[name+"-new-workers"] = "the controller's token may create any pod of its namespace"
	}
	policies[name+"-objects"] = "the controller's token may create any Lease of its namespace, or with remediation any ConfigMap"
	if own.RemediationMode == config.RemediationDelete {
		policies[name+"-nodeclaims"] = "the controller's token may delete any NodeClaim"
		if own.DeleteNodes {
			policies[name+"-nodes"] = "the controller's token may delete any node"
		}
	}
	return policies
}
