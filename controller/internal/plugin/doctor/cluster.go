// Package doctor finds what can lock a cluster: see the README's section of that name. Each trap is a function of the objects of
// the cluster, which are read before.
package doctor

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/release"
)

// Read is something that was read, or why it was not.
type Read[T any] struct {
	Value T
	Err   error
	// Absent means that the API server does not serve this kind, or that there is no such object.
	Absent bool
}

// Cluster is what the traps look at.
type Cluster struct {
	Release release.Release
	Now     time.Time
	Nodes   Read[[]corev1.Node]
	Agents  Read[[]corev1.Pod] // or workers
	// Used is what the pods on each node request, and how many there are. It is read before the installation only.
	Used Read[map[string]corev1.ResourceList]

	DNS      Read[Backend] // of config.dnsService
	Corefile Read[string]

	NodePools      Read[[]NodePool]
	ReadinessRules Read[[]ReadinessRule]
	Deployments    Read[[]appsv1.Deployment]
	DaemonSets     Read[[]appsv1.DaemonSet]
	// AutoscalerStatus is absent where no Cluster Autoscaler has written it.
	AutoscalerStatus Read[bool]

	// Adds means that the release has a MutatingAdmissionPolicy, which adds the startup taint to new nodes.
	Adds      Read[bool]
	Namespace Read[*corev1.Namespace] // of the release
	Webhooks  Read[[]Webhook]

	Policies Read[[]admissionv1.ValidatingAdmissionPolicy]
	Bindings Read[[]admissionv1.ValidatingAdmissionPolicyBinding]

	// GateAll looks at the cluster as if all nodes joined with the startup taint that the release is for.
	GateAll bool
}

// Backend is a Service and its pods.
type Backend struct {
	// External means that no pods are selected: its endpoints are somewhere else.
	External bool
	Pods     []corev1.Pod
}

// NodePool is one of Karpenter (karpenter.sh/v1). The taints are those of spec.template.spec.
type NodePool struct {
	Name          string         `json:"name"`
	Taints        []corev1.Taint `json:"taints"`
	StartupTaints []corev1.Taint `json:"startupTaints"`
}

// ReadinessRule is a NodeReadinessRule of the node-readiness-controller (readiness.node.x-k8s.io/v1alpha1): fields of its spec.
type ReadinessRule struct {
	Name            string                 `json:"name"`
	Conditions      []corev1.NodeCondition `json:"conditions"` // their types
	EnforcementMode string                 `json:"enforcementMode"`
	NodeSelector    metav1.LabelSelector   `json:"nodeSelector"`
}

// Webhook is one of a ValidatingWebhookConfiguration or a MutatingWebhookConfiguration, whose failure refuses requests.
type Webhook struct {
	Configuration string
	Webhook       admissionv1.ValidatingWebhook // the fields that both kinds have
	Backend       Read[Backend]
}
