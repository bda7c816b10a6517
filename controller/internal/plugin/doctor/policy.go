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
		return Result{Detail: "this Kubernetes serves no ValidatingAdmissionPolicy (it comes with 1.30)"}
	case c.Policies.Err != nil || c.Bindings.Err != nil:
		return unchecked(c.Policies.Err, c.Bindings.Err)
	}
	wanted := map[string]string{}
	name := c.Release.Fullname
	if !c.Release.Settings.Workers {
		wanted[name] = "the agent's token may patch any node"
		wanted[name+"-events"] = "the agent's token may write Events about anything"
	}
	if own := c.Release.Controller; own != nil {
		name += "-controller"
		wanted[name] = "the controller's token may change anything of a node"
		wanted[name+"-workers"] = "the controller's token may delete any pod of its namespace"
		if c.Release.Settings.Workers {
			wanted[name+"-new-workers"] = "the controller's token may create any pod of its namespace"
		}
		wanted[name+"-objects"] = "the controller's token may create any Lease of its namespace, or with remediation any ConfigMap"
		if own.RemediationMode == config.RemediationDelete {
			wanted[name+"-nodeclaims"] = "the controller's token may delete any NodeClaim"
			if own.DeleteNodes {
				wanted[name+"-nodes"] = "the controller's token may delete any node"
			}
		}
	}
	const remedy = "set nodeAuthorization.enabled=true (from Kubernetes 1.30 on), or apply the release's kube-node-ready-policy.yaml"
	for _, policy := range c.Policies.Value {
		delete(wanted, policy.Name)
		isBinding := func(b admissionv1.ValidatingAdmissionPolicyBinding) bool { return b.Spec.PolicyName == policy.Name }
		if !slices.ContainsFunc(c.Bindings.Value, isBinding) {
			r.find(remedy, "the ValidatingAdmissionPolicy %s has no binding: it restricts nothing", policy.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		r.find(remedy+"; or use --skip policy, if you chose nodeAuthorization.enabled=false",
			"there is no ValidatingAdmissionPolicy %s: %s", name, wanted[name])
	}
	if c.Release.Planned != nil { // they may be applied apart from these manifests
		r.Findings, r.Warnings = nil, r.Findings
	}
	r.Detail = "the policies of the release are bound"
	return r
}
