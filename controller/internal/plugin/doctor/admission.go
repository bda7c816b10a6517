package doctor

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/imunhatep/kube-node-ready/internal/config"
)

// webhooks: a webhook whose pods wait for the first node refuses the pods and patches that would release it.
func webhooks(c Cluster, r *Result) {
	for _, webhook := range c.Webhooks.Value {
		what := c.refusable(webhook.Webhook)
		name := webhook.Configuration + " (" + webhook.Webhook.Name + ")"
		switch {
		case what == "" || webhook.Backend.Value.External:
			continue
		case webhook.Backend.Err != nil:
			r.skip("the webhook %s: %w", name, webhook.Backend.Err)
			continue
		}
		service := webhook.Webhook.ClientConfig.Service
		called := fmt.Sprintf("the webhook %s is called for %s with failurePolicy Fail, and ", name, what)
		pods, find, placement := webhook.Backend.Value.Pods, r.find, c.placementOf(webhook.Backend.Value.Pods)
		isAlone := what == podStatus && !c.Release.Settings.Workers // an agent patches its node whatever its pod's status says
		if what == events || isAlone || len(webhook.Webhook.MatchConditions) > 0 {
			find, placement.noneCanRun = r.warn, false
		}
		if len(pods) == 0 {
			find("start its pods, or delete the configuration", "%sits Service %s/%s has no pods, or is not there", called,
				service.Namespace, service.Name)
		} else {
			placement.report(r, called, "its Service "+service.Namespace+"/"+service.Name, "nodes wait for the webhook",
				"let its pods tolerate %s, or exclude the namespace "+c.Release.Namespace+" from it")
		}
		if len(webhook.Webhook.MatchConditions) > 0 {
			r.Notes = append(r.Notes, "the matchConditions of the webhook "+name+" are not evaluated: they may exclude these requests")
		}
	}
}

// refusable returns the first request between an agent's pod and the release of its node that the webhook can refuse, or "".
func (c Cluster) refusable(webhook admissionv1.ValidatingWebhook) string {
	if webhook.FailurePolicy != nil && *webhook.FailurePolicy != admissionv1.Fail {
		return ""
	}
	own, pod := labels.Set(c.Namespace.Value.Labels), labels.Set(c.Release.Template.Labels)
	isCalled := func(operation admissionv1.OperationType, resource string, namespace, object labels.Set) bool {
		return calledFor(webhook.Rules, operation, resource) && selects(webhook.NamespaceSelector, namespace) &&
			selects(webhook.ObjectSelector, object)
	}
	isForNodes := slices.ContainsFunc(c.Nodes.Value, func(node corev1.Node) bool {
		return selects(webhook.ObjectSelector, node.Labels)
	})
	switch { // the objects of the scheduler's and kubelet's requests, and Events, have no labels
	case isCalled(admissionv1.Create, "pods", own, pod):
		return "the agent's pods"
	case isCalled(admissionv1.Create, "pods/binding", own, nil):
		return "pods/binding"
	case isCalled(admissionv1.Create, "serviceaccounts/token", own, nil):
		return "serviceaccounts/token"
	case isForNodes && calledFor(webhook.Rules, admissionv1.Update, "nodes"):
		return "nodes"
	case c.Release.Agent.ShowsEachVerdict() && isForNodes && calledFor(webhook.Rules, admissionv1.Update, "nodes/status"):
		return "nodes/status"
	case isCalled(admissionv1.Update, podStatus, own, pod):
		return podStatus
	case isCalled(admissionv1.Create, events, labels.Set{corev1.LabelMetadataName: metav1.NamespaceDefault}, nil):
		return events
	}
	return ""
}

// Requests that not every release waits for.
const (
	events    = "events"
	podStatus = "pods/status" // only the controller waits for it
)

// calledFor reports whether rules match an operation on a resource of the core group, which may have a subresource.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-rules
func calledFor(rules []admissionv1.RuleWithOperations, operation admissionv1.OperationType, resource string) bool {
	name, subresource, _ := strings.Cut(resource, "/")
	isResource := func(pattern string) bool {
		if pattern == "bindings" { // the older resource for the same request
			pattern = "pods/binding"
		}
		of, part, _ := strings.Cut(pattern, "/")
		return (of == "*" || of == name) && (part == "*" || part == subresource)
	}
	return slices.ContainsFunc(rules, func(rule admissionv1.RuleWithOperations) bool {
		isOperation := slices.Contains(rule.Operations, operation) || slices.Contains(rule.Operations, admissionv1.OperationAll)
		isCore := slices.Contains(rule.APIGroups, "") || slices.Contains(rule.APIGroups, "*")
		isScope := rule.Scope == nil || *rule.Scope == admissionv1.AllScopes ||
			(*rule.Scope == admissionv1.ClusterScope) == (name == "nodes")
		return isOperation && isCore && isScope && slices.ContainsFunc(rule.Resources, isResource)
	})
}

// selects reports whether a selector selects labels; nil selects everything.
func selects(selector *metav1.LabelSelector, set labels.Set) bool {
	if selector == nil {
		return true
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err != nil || parsed.Matches(set)
}

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
