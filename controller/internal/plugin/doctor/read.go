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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
)

// Read reads what the traps look at. If a part may not be read, only that part has the error.
func Read(ctx context.Context, reader client.Reader, of installation.Release) Cluster {
	c := Cluster{Release: of, Now: time.Now()}
	if of.Invalid != nil {
		return c // Report looks at nothing else
	}
	c.Nodes = list[corev1.Node](ctx, reader, new(corev1.NodeList))
	c.Agents = read(func() (pods []corev1.Pod, err error) {
		for _, each := range of.WithOthers() {
			found, failed := each.Pods(ctx, reader)
			pods, err = append(pods, found...), errors.Join(err, failed)
		}
		return pods, err
	})
	c.Deployments = list[appsv1.Deployment](ctx, reader, new(appsv1.DeploymentList))
	c.DaemonSets = list[appsv1.DaemonSet](ctx, reader, new(appsv1.DaemonSetList))
	c.AutoscalerStatus = read(func() (bool, error) {
		key := client.ObjectKey{Namespace: "kube-system", Name: "cluster-autoscaler-status"}
		return true, reader.Get(ctx, key, new(corev1.ConfigMap))
	})
	c.Namespace = read(func() (*corev1.Namespace, error) {
		namespace := new(corev1.Namespace)
		return namespace, reader.Get(ctx, client.ObjectKey{Name: of.Namespace}, namespace)
	})
	if c.Namespace.Absent { // of a release that is not installed yet, or that is being deleted
		c.Namespace.Value = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: of.Namespace,
			Labels: map[string]string{corev1.LabelMetadataName: of.Namespace}}}
	}
	if namespace, name, found := strings.Cut(of.Agent.DNSService, "/"); found {
		c.DNS = readBackend(ctx, reader, namespace, name)
		if !c.DNS.Value.External { // else a Corefile in the cluster is another server's
			c.Corefile = readCorefile(ctx, reader, namespace, c.DNS.Value.Pods)
		}
	}
	c.NodePools = NodePools(ctx, reader)
	c.ReadinessRules = custom[ReadinessRule](ctx, reader, "readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule")
	c.Webhooks = readWebhooks(ctx, reader)
	from := reader // the release's policies
	if of.Planned != nil {
		from = of.Planned
	}
	c.Policies = list[admissionv1.ValidatingAdmissionPolicy](ctx, from, new(admissionv1.ValidatingAdmissionPolicyList))
	c.Bindings = list[admissionv1.ValidatingAdmissionPolicyBinding](ctx, from, new(admissionv1.ValidatingAdmissionPolicyBindingList))
	found := list[admissionv1.MutatingAdmissionPolicy](ctx, from, new(admissionv1.MutatingAdmissionPolicyList))
	isOwn := func(policy admissionv1.MutatingAdmissionPolicy) bool {
		return policy.Name == of.Fullname+"-startup-taint"
	}
	c.Adds = Part[bool]{Value: slices.ContainsFunc(found.Value, isOwn), Err: found.Err, Absent: found.Absent}
	return c
}

// NodePools reads Karpenter's NodePools. Karpenter before 1.0 has the same fields in v1beta1.
func NodePools(ctx context.Context, reader client.Reader) Part[[]NodePool] {
	found := custom[NodePool](ctx, reader, "karpenter.sh/v1", "NodePool")
	if found.Absent {
		return custom[NodePool](ctx, reader, "karpenter.sh/v1beta1", "NodePool")
	}
	return found
}

// list reads all objects of a kind, T, into a list of that kind.
func list[T any](ctx context.Context, c client.Reader, into client.ObjectList, options ...client.ListOption) Part[[]T] {
	return read(func() (items []T, err error) {
		if err = c.List(ctx, into, options...); err == nil {
			err = meta.EachListItem(into, func(item runtime.Object) error {
				if known, ok := any(item).(*T); ok {
					items = append(items, *known)
				}
				return nil
			})
		}
		return items, err
	})
}

// read reads one part of a cluster.
func read[T any](get func() (T, error)) Part[T] {
	value, err := get()
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return Part[T]{Absent: true}
	}
	return Part[T]{Value: value, Err: err}
}

// readBackend reads a Service and the pods that it selects, without those that are deleted or have ended.
func readBackend(ctx context.Context, reader client.Reader, namespace, name string) Part[Backend] {
	return read(func() (Backend, error) {
		var found Backend
		var service corev1.Service
		if err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &service); err != nil {
			return found, err
		}
		found.Ports = service.Spec.Ports
		if found.External = len(service.Spec.Selector) == 0; found.External {
			return found, nil
		}
		var pods corev1.PodList
		selector := client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(service.Spec.Selector)}
		err := reader.List(ctx, &pods, client.InNamespace(namespace), selector)
		found.Pods = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
			return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
		})
		return found, err
	})
}

// readCorefile reads the configuration of CoreDNS from the ConfigMap that its pods mount.
func readCorefile(ctx context.Context, reader client.Reader, namespace string, pods []corev1.Pod) Part[string] {
	return read(func() (string, error) {
		var names []string
		for _, pod := range pods[:min(1, len(pods))] { // the other replicas mount the same
			for _, volume := range pod.Spec.Volumes {
				if volume.ConfigMap != nil {
					names = append(names, volume.ConfigMap.Name)
				}
			}
		}
		var failures error
		for _, name := range append(names, "coredns") { // where the pods are not known
			var stored corev1.ConfigMap
			err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &stored)
			if text, found := stored.Data["Corefile"]; err == nil && found {
				return text, nil
			}
			failures = errors.Join(failures, client.IgnoreNotFound(err))
		}
		return "", cmp.Or(failures, errors.New("there is no ConfigMap with a Corefile in the namespace "+namespace))
	})
}

// custom reads all objects of a kind: of each, the fields that T has.
func custom[T any](ctx context.Context, c client.Reader, version, kind string) Part[[]T] {
	return read(func() ([]T, error) {
		list := new(unstructured.UnstructuredList)
		list.SetAPIVersion(version)
		list.SetKind(kind + "List")
		if err := c.List(ctx, list); err != nil {
			return nil, err
		}
		found := make([]T, len(list.Items))
		for i, item := range list.Items {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &found[i]); err != nil {
				return nil, fmt.Errorf("%s %s: %w", kind, item.GetName(), err)
			}
		}
		return found, nil
	})
}

// readWebhooks reads the webhooks that can refuse requests, with the Services behind them.
func readWebhooks(ctx context.Context, reader client.Reader) Part[[]Webhook] {
	return read(func() (found []Webhook, err error) {
		// One type for both kinds: it has all fields that doctor looks at.
		for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
			configurations := custom[admissionv1.ValidatingWebhookConfiguration](ctx, reader, "admissionregistration.k8s.io/v1", kind)
			for _, configuration := range configurations.Value {
				for _, webhook := range configuration.Webhooks {
					found = append(found, Webhook{Configuration: configuration.Name, Webhook: webhook})
				}
			}
			err = errors.Join(err, configurations.Err)
		}
		for i := range found {
			if service := found[i].Webhook.ClientConfig.Service; service != nil {
				found[i].Backend = readBackend(ctx, reader, service.Namespace, service.Name)
			} else {
				found[i].Backend.Value.External = true // a URL
			}
		}
		return found, err
	})
}
