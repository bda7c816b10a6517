package doctor

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// webhooks: a webhook whose pods wait for the first node refuses the pods and patches that would release it.
func webhooks(c Cluster) (r Result) {
	if c.Webhooks.Err != nil || c.Nodes.Err != nil || c.Namespace.Err != nil {
		return unchecked(c.Webhooks.Err, c.Nodes.Err, c.Namespace.Err)
	}
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
		called := fmt.Sprintf("the webhook %s is called for %s with failurePolicy Fail, and", name, what)
		placement := c.placementOf(webhook.Backend.Value.Pods)
		keys := strings.Join(placement.missing, " and ")
		remedy := "let its pods tolerate " + keys + ", or exclude the namespace " + c.Release.Namespace + " from it"
		switch {
		case len(webhook.Backend.Value.Pods) == 0:
			r.find("start its pods, or delete the configuration", "%s its Service %s/%s has no pods, or is not there", called,
				service.Namespace, service.Name)
		case placement.err != nil:
			r.skip("the webhook %s: %w", name, placement.err)
		case placement.noneCanRun:
			r.find(remedy, "%s no pod of its Service %s/%s tolerates %s", called, service.Namespace, service.Name, keys)
		case placement.noneCouldRun:
			r.warn(remedy, "%s none of its pods tolerates %s: they run only on nodes that join without it", called, keys)
		default:
			continue
		}
		if len(webhook.Webhook.MatchConditions) > 0 {
			r.note("doctor does not evaluate the matchConditions of the webhook %s: they may exclude these requests", name)
		}
	}
	r.Passed = "no webhook with failurePolicy Fail can block a release"
	return r
}

// refusable says for which of the requests that release a node the webhook is called, or "".
func (c Cluster) refusable(webhook admissionv1.ValidatingWebhook) string {
	if webhook.FailurePolicy != nil && *webhook.FailurePolicy != admissionv1.Fail {
		return ""
	}
	pod := labels.Set(c.Release.Template.Labels)
	called := calledFor(webhook.Rules, admissionv1.Create, "pods")
	if called && selects(webhook.NamespaceSelector, labels.Set(c.Namespace.Value.Labels)) && selects(webhook.ObjectSelector, pod) {
		return "the agent's pods"
	}
	isSelected := func(node corev1.Node) bool { return selects(webhook.ObjectSelector, labels.Set(node.Labels)) }
	if calledFor(webhook.Rules, admissionv1.Update, "nodes") && slices.ContainsFunc(c.Nodes.Value, isSelected) {
		return "nodes"
	}
	return ""
}

// calledFor reports whether rules match an operation on a resource of the core group.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-rules
func calledFor(rules []admissionv1.RuleWithOperations, operation admissionv1.OperationType, resource string) bool {
	return slices.ContainsFunc(rules, func(rule admissionv1.RuleWithOperations) bool {
		isOperation := slices.Contains(rule.Operations, operation) || slices.Contains(rule.Operations, admissionv1.OperationAll)
		isCore := slices.Contains(rule.APIGroups, "") || slices.Contains(rule.APIGroups, "*")
		isResource := slices.ContainsFunc([]string{resource, resource + "/*", "*", "*/*"}, func(r string) bool {
			return slices.Contains(rule.Resources, r)
		})
		isScope := rule.Scope == nil || *rule.Scope == admissionv1.AllScopes ||
			(*rule.Scope == admissionv1.ClusterScope) == (resource == "nodes")
		return isOperation && isCore && isResource && isScope
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
