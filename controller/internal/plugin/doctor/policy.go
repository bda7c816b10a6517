package doctor

import (
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/imunhatep/kube-node-ready/internal/config"
)

// policy: RBAC cannot restrict an account to its own node, or to some objects of a kind.
func policy(c Cluster, r *Result) {
	if c.Policies.Absent {
		r.Passed = "this Kubernetes serves no ValidatingAdmissionPolicy (it comes with 1.30)"
		return
	}
	const remedy = "set nodeAuthorization.enabled=true (from Kubernetes 1.30 on), or apply the release's kube-node-ready-policy.yaml"
	agents, own := !c.Release.Settings.Workers, c.Release.Controller
	deletes := own != nil && own.RemediationMode == config.RemediationDelete
	for _, expected := range []struct { // a test compares the names with the chart's
		isExpected     bool
		suffix, danger string
	}{
		{agents, "", "the agent's token may patch any node"},
		{agents, "-events", "the agent's token may write Events about anything"},
		{own != nil, "-controller", "the controller's token may change anything of a node"},
		{own != nil, "-controller-workers", "the controller's token may delete any pod of its namespace"},
		{own != nil && !agents, "-controller-new-workers", "the controller's token may create any pod of its namespace"},
		{own != nil, "-controller-objects", "the controller's token may create any Lease or ConfigMap of its namespace"},
		{deletes, "-controller-nodeclaims", "the controller's token may delete any NodeClaim"},
		{deletes && own.DeleteNodes, "-controller-nodes", "the controller's token may delete any node"},
	} {
		name := c.Release.Fullname + expected.suffix
		isNamed := func(policy admissionv1.ValidatingAdmissionPolicy) bool { return policy.Name == name }
		denies := func(b admissionv1.ValidatingAdmissionPolicyBinding) bool {
			return b.Spec.PolicyName == name && slices.Contains(b.Spec.ValidationActions, admissionv1.Deny)
		}
		switch isThere := slices.ContainsFunc(c.Policies.Value, isNamed); {
		case isThere && !slices.ContainsFunc(c.Bindings.Value, denies):
			r.find(remedy, "the ValidatingAdmissionPolicy %s has no binding with the action Deny: it restricts nothing", name)
		case !isThere && expected.isExpected:
			r.find(remedy+"; or use --skip policy, if you chose nodeAuthorization.enabled=false",
				"there is no ValidatingAdmissionPolicy %s: %s", name, expected.danger)
		}
	}
	if c.Release.Planned != nil { // the policies may be applied apart from these manifests
		r.Warnings = r.Findings
		r.Findings = nil
	}
}
