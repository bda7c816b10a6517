// Package doctor finds what can lock a cluster: see the README's section of that name. Each trap is a function of the objects of
// the cluster, which are read before.
package doctor

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
)

// Part is one part of the cluster that was read, or why it was not.
type Part[T any] struct {
	Value T
	Err   error
	// Absent means that the API server does not serve this kind, or that there is no such object.
	Absent bool
}

// Cluster is what the traps look at.
type Cluster struct {
	Release installation.Release
	Now     time.Time
	Nodes   Part[[]corev1.Node]
	Agents  Part[[]corev1.Pod] // or workers, of every release

	DNS      Part[Backend] // of config.dnsService
	Corefile Part[string]
	// Answers has an error, or nil, for each name that a DNS pod was asked for. It is nil unless AskDNS was called.
	Answers map[string]error

	NodePools      Part[[]NodePool]
	ReadinessRules Part[[]ReadinessRule]
	Deployments    Part[[]appsv1.Deployment]
	DaemonSets     Part[[]appsv1.DaemonSet]
	// AutoscalerStatus is absent where no Cluster Autoscaler has written it.
	AutoscalerStatus Part[bool]

	// Adds means that the release has a MutatingAdmissionPolicy, which adds the startup taint to new nodes.
	Adds      Part[bool]
	Namespace Part[*corev1.Namespace] // of the release
	Webhooks  Part[[]Webhook]

	Policies Part[[]admissionv1.ValidatingAdmissionPolicy]
	Bindings Part[[]admissionv1.ValidatingAdmissionPolicyBinding]

	// GateAll means: look at the cluster as if all nodes that the release is for joined with the startup taint.
	GateAll bool
}

// Backend is a Service and its pods.
type Backend struct {
	// External means that no pods are selected: its endpoints are somewhere else.
	External bool
	Ports    []corev1.ServicePort
	Pods     []corev1.Pod
}

// NodePool is Karpenter's (karpenter.sh/v1): the fields that doctor looks at.
type NodePool struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Template struct {
			Spec struct {
				Taints        []corev1.Taint `json:"taints"`
				StartupTaints []corev1.Taint `json:"startupTaints"`
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

// ReadinessRule is a NodeReadinessRule of the node-readiness-controller (readiness.node.x-k8s.io/v1alpha1): the fields that
// doctor looks at.
type ReadinessRule struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Conditions      []corev1.NodeCondition `json:"conditions"` // their types
		EnforcementMode string                 `json:"enforcementMode"`
		NodeSelector    metav1.LabelSelector   `json:"nodeSelector"`
	} `json:"spec"`
}

// Webhook is a webhook of a ValidatingWebhookConfiguration or a MutatingWebhookConfiguration.
type Webhook struct {
	Configuration string
	Webhook       admissionv1.ValidatingWebhook // the fields that both kinds have
	Backend       Part[Backend]
}
