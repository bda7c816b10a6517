// Package doctor finds what can lock a cluster: see the README's section of that name. Each trap is a function of the objects of
// the cluster, which are read before.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// Read reads what the traps look at. If a part may not be read, only that part has the error.
func Read(ctx context.Context, reader client.Reader, of installation.Release) Cluster {
	c := Cluster{Release: of, Now: time.Now()}
	if of.Invalid != nil {
		return c // Report looks at nothing else
	}
	var nodes corev1.NodeList
	c.Nodes = part(&nodes.Items, reader.List(ctx, &nodes))
	var deployments appsv1.DeploymentList
	c.Deployments = part(&deployments.Items, reader.List(ctx, &deployments))
	var daemonSets appsv1.DaemonSetList
	c.DaemonSets = part(&daemonSets.Items, reader.List(ctx, &daemonSets))
	for _, each := range of.WithOthers() {
		pods, err := each.Pods(ctx, reader)
		c.Agents.Value, c.Agents.Err = append(c.Agents.Value, pods...), errors.Join(c.Agents.Err, err)
	}
	err := reader.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "cluster-autoscaler-status"}, new(corev1.ConfigMap))
	c.AutoscalerStatus = part(new(err == nil), err)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: of.Namespace, // before the installation it may be absent
		Labels: map[string]string{corev1.LabelMetadataName: of.Namespace}}}
	c.Namespace = part(&namespace, reader.Get(ctx, client.ObjectKeyFromObject(namespace), namespace))
	if namespace, name, found := strings.Cut(of.Agent.DNSService, "/"); found {
		c.DNS = readBackend(ctx, reader, namespace, name)
		if !c.DNS.Value.External { // else a Corefile in the cluster is another server's
			c.Corefile = readCorefile(ctx, reader, namespace, c.DNS.Value.Pods)
		}
	}
	c.NodePools = NodePools(ctx, reader)
	c.ReadinessRules = custom[ReadinessRule](ctx, reader, "readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule")
	c.Webhooks = readWebhooks(ctx, reader)
	if of.Planned != nil { // the release's policies are in its manifests
		reader = of.Planned
	}
	var policies admissionv1.ValidatingAdmissionPolicyList
	c.Policies = part(&policies.Items, reader.List(ctx, &policies))
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	c.Bindings = part(&bindings.Items, reader.List(ctx, &bindings))
	var mutating admissionv1.MutatingAdmissionPolicyList
	err = reader.List(ctx, &mutating)
	adds := slices.ContainsFunc(mutating.Items, func(policy admissionv1.MutatingAdmissionPolicy) bool {
		return policy.Name == of.Fullname+"-startup-taint"
	})
	c.Adds = part(&adds, err)
	return c
}

// part returns one part of a cluster. A value that belongs to an absent object is kept.
func part[T any](value *T, err error) Part[T] {
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return Part[T]{Value: *value, Absent: true}
	}
	return Part[T]{Value: *value, Err: err}
}

// NodePools reads Karpenter's NodePools. Karpenter before 1.0 has the same fields in v1beta1.
func NodePools(ctx context.Context, reader client.Reader) Part[[]NodePool] {
	found := custom[NodePool](ctx, reader, "karpenter.sh/v1", "NodePool")
	if found.Absent {
		return custom[NodePool](ctx, reader, "karpenter.sh/v1beta1", "NodePool")
	}
	return found
}

// custom reads all objects of a kind: of each, the fields that T has.
func custom[T any](ctx context.Context, c client.Reader, version, kind string) Part[[]T] {
	list := new(unstructured.UnstructuredList)
	list.SetAPIVersion(version)
	list.SetKind(kind + "List")
	err := c.List(ctx, list)
	found := make([]T, len(list.Items))
	for i, item := range list.Items {
		if invalid := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &found[i]); invalid != nil {
			err = errors.Join(err, fmt.Errorf("%s %s: %w", kind, item.GetName(), invalid))
		}
	}
	return part(&found, err)
}

// readBackend reads a Service and the pods that it selects, without those that are deleted or have ended.
func readBackend(ctx context.Context, reader client.Reader, namespace, name string) Part[Backend] {
	var service corev1.Service
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &service)
	found := Backend{Ports: service.Spec.Ports, External: err == nil && len(service.Spec.Selector) == 0}
	if err != nil || found.External {
		return part(&found, err)
	}
	var pods corev1.PodList
	err = reader.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(service.Spec.Selector))
	found.Pods = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	})
	return part(&found, err)
}

// readCorefile reads the configuration of CoreDNS from the ConfigMap that its pods mount.
func readCorefile(ctx context.Context, reader client.Reader, namespace string, pods []corev1.Pod) Part[string] {
	var names []string
	for _, pod := range pods[:min(1, len(pods))] { // the other replicas mount the same
		for _, volume := range pod.Spec.Volumes {
			if volume.ConfigMap != nil {
				names = append(names, volume.ConfigMap.Name)
			}
		}
	}
	var failures error
	for _, name := range append(names, "coredns") { // in case the pods are unknown
		var stored corev1.ConfigMap
		err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &stored)
		if text, found := stored.Data["Corefile"]; err == nil && found {
			return Part[string]{Value: text}
		}
		failures = errors.Join(failures, client.IgnoreNotFound(err))
	}
	return Part[string]{Err: cmp.Or(failures, errors.New("there is no ConfigMap with a Corefile in the namespace "+namespace))}
}

// readWebhooks reads the webhooks that can refuse requests, with the Services behind them.
func readWebhooks(ctx context.Context, reader client.Reader) (found Part[[]Webhook]) {
	// One type for both kinds: it has all fields that doctor looks at.
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
		configurations := custom[admissionv1.ValidatingWebhookConfiguration](ctx, reader, "admissionregistration.k8s.io/v1", kind)
		found.Err = errors.Join(found.Err, configurations.Err)
		for _, configuration := range configurations.Value {
			for _, webhook := range configuration.Webhooks {
				backend := Part[Backend]{Value: Backend{External: true}} // a URL
				if service := webhook.ClientConfig.Service; service != nil {
					backend = readBackend(ctx, reader, service.Namespace, service.Name)
				}
				found.Value = append(found.Value, Webhook{Configuration: configuration.Name, Webhook: webhook, Backend: backend})
			}
		}
	}
	return found
}
