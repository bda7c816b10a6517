package doctor

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/release"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/requirement"
)

// NeededRights returns the rights without which a release releases no node, or reports none.
func NeededRights(r release.Release) (needed []Right) {
	add := func(account, resource, namespace string, verbs ...string) {
		for _, verb := range verbs {
			needed = append(needed, Right{Account: account, Verb: verb, Resource: resource, Namespace: namespace})
		}
	}
	dns, _, hasDNS := strings.Cut(r.Agent.DNSService, "/")
	for _, e := range r.Agent.Require {
		if namespace, _, _ := strings.Cut(e.Name, "/"); e.Kind == requirement.DaemonSet {
			add(cmp.Or(r.AgentAccount, r.ControllerAccount), "pods", namespace, "list")
		}
	}
	if account := r.AgentAccount; account != "" {
		add(account, "nodes", "", "get", "patch")
		add(account, "events", "default", "create")
		if slices.Contains(r.Agent.OnTimeout, config.OnTimeoutCondition) || r.Agent.RecheckInterval > 0 {
			add(account, "nodes/status", "", "patch")
		}
		if hasDNS {
			add(account, "endpointslices.discovery.k8s.io", dns, "list")
		}
		if r.Agent.EnableConnectivityMatrix {
			add(account, "endpointslices.discovery.k8s.io", r.Namespace, "list")
		}
	}
	if account := r.ControllerAccount; account != "" {
		add(account, "nodes", "", "get", "list", "watch")
		add(account, "nodes/status", "", "patch")
		add(account, "events", "default", "create", "patch")
		add(account, "pods", r.Namespace, "list", "watch")
		add(account, "leases.coordination.k8s.io", r.Namespace, "create")
		if r.Settings.Workers || r.Controller.Retaint || r.Controller.VerifyAfterReboot {
			add(account, "nodes", "", "patch")
		}
		if r.Settings.Workers {
			add(account, "pods", r.Namespace, "create", "delete")
			if hasDNS {
				add(account, "endpointslices.discovery.k8s.io", dns, "list")
			}
		}
	}
	return needed
}

// rights: without them no agent releases its node.
func rights(c Cluster) (r Result) {
	if c.Rights.Err != nil {
		return unchecked(c.Rights.Err)
	}
	for _, right := range c.Rights.Value {
		if right.Allowed {
			continue
		}
		where := ""
		if right.Namespace != "" {
			where = " in the namespace " + right.Namespace
		}
		r.find("apply the chart's ClusterRole, Roles and their bindings: helm upgrade, or the manifests",
			"the service account %s/%s may not %s %s%s", c.Release.Namespace, right.Account, right.Verb, right.Resource, where)
	}
	r.Detail = "the service accounts of the release have their rights"
	return r
}

// policy: RBAC cannot restrict an account to its own node.
func policy(c Cluster) (r Result) {
	switch {
	case c.Policies.Absent:
		return Result{Detail: "this Kubernetes serves no ValidatingAdmissionPolicy (it comes with 1.30)"}
	case c.Policies.Err != nil || c.Bindings.Err != nil:
		return unchecked(c.Policies.Err, c.Bindings.Err)
	}
	wanted := map[string]string{}
	if c.Release.AgentAccount != "" {
		wanted[c.Release.Fullname] = "the agent's token may patch any node"
	}
	if c.Release.ControllerAccount != "" {
		wanted[c.Release.Fullname+"-controller"] = "the controller's token may change anything of a node"
	}
	const remedy = "helm upgrade with nodeAuthorization.enabled=auto, or kubectl apply -f the release's kube-node-ready-policy.yaml"
	for _, policy := range c.Policies.Value {
		delete(wanted, policy.Name)
		isBinding := func(b admissionv1.ValidatingAdmissionPolicyBinding) bool { return b.Spec.PolicyName == policy.Name }
		if !slices.ContainsFunc(c.Bindings.Value, isBinding) {
			r.find(remedy, "the ValidatingAdmissionPolicy %s has no binding: it restricts nothing", policy.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		r.find(remedy+"; --skip policy, if nodeAuthorization.enabled=false was meant",
			"there is no ValidatingAdmissionPolicy %s: %s", name, wanted[name])
	}
	r.Detail = "the policies of the release are bound"
	return r
}
