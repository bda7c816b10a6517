package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
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

	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/release"
)

// Reader reads a cluster. What it may not read is an error of that part only.
type Reader struct {
	Client client.Reader
}

// Read reads what the traps look at.
func (r Reader) Read(ctx context.Context, of release.Release) Cluster {
	c := Cluster{Release: of, Now: time.Now()}
	if of.Invalid != nil {
		return c // Report looks at nothing else
	}
	c.Nodes = list[corev1.Node](ctx, r.Client, new(corev1.NodeList))
	c.Agents = read(func() ([]corev1.Pod, error) { return of.Pods(ctx, r.Client) })
	c.Deployments = list[appsv1.Deployment](ctx, r.Client, new(appsv1.DeploymentList))
	c.DaemonSets = list[appsv1.DaemonSet](ctx, r.Client, new(appsv1.DaemonSetList))
	c.AutoscalerStatus = read(func() (bool, error) {
		key := client.ObjectKey{Namespace: "kube-system", Name: "cluster-autoscaler-status"}
		return true, r.Client.Get(ctx, key, new(corev1.ConfigMap))
	})
	c.Namespace = read(func() (*corev1.Namespace, error) {
		namespace := new(corev1.Namespace)
		return namespace, r.Client.Get(ctx, client.ObjectKey{Name: of.Namespace}, namespace)
	})
	if c.Namespace.Absent { // of a release that is not installed yet, or that is being deleted
		c.Namespace.Value = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: of.Namespace,
			Labels: map[string]string{corev1.LabelMetadataName: of.Namespace}}}
	}
	if namespace, name, found := strings.Cut(of.Agent.DNSService, "/"); found {
		c.DNS = r.backend(ctx, namespace, name)
		c.Corefile = r.corefile(ctx, namespace, c.DNS.Value.Pods)
	}
	c.NodePools = r.NodePools(ctx)
	c.ReadinessRules = custom[ReadinessRule](ctx, r.Client, "readiness.node.x-k8s.io/v1alpha1", "NodeReadinessRule", "spec")
	c.Webhooks = r.webhooks(ctx)
	if of.NotInstalled {
		c.Used = read(func() (map[string]corev1.ResourceList, error) { return r.used(ctx) })
	}
	from := r.Client // the release's policies
	if of.Planned != nil {
		from = of.Planned
	}
	c.Policies = list[admissionv1.ValidatingAdmissionPolicy](ctx, from, new(admissionv1.ValidatingAdmissionPolicyList), of.Labels())
	adding := list[admissionv1.MutatingAdmissionPolicy](ctx, from, new(admissionv1.MutatingAdmissionPolicyList), of.Labels())
	c.Adds = Read[bool]{Value: len(adding.Value) > 0, Err: adding.Err, Absent: adding.Absent}
	c.Bindings = list[admissionv1.ValidatingAdmissionPolicyBinding](ctx, from, new(admissionv1.ValidatingAdmissionPolicyBindingList))
	return c
}

// NodePools reads those of Karpenter.
func (r Reader) NodePools(ctx context.Context) Read[[]NodePool] {
	return custom[NodePool](ctx, r.Client, "karpenter.sh/v1", "NodePool", "spec", "template", "spec")
}

// list reads all objects of a kind, T, by way of a list of that kind.
func list[T any](ctx context.Context, c client.Reader, into client.ObjectList, options ...client.ListOption) Read[[]T] {
	return read(func() ([]T, error) {
		err := c.List(ctx, into, options...)
		items, _ := reflect.ValueOf(into).Elem().FieldByName("Items").Interface().([]T) // always: T is the list's kind
		return items, err
	})
}

// read reads one part of a cluster.
func read[T any](get func() (T, error)) Read[T] {
	value, err := get()
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return Read[T]{Absent: true}
	}
	return Read[T]{Value: value, Err: err}
}

// backend reads a Service and the pods that it selects, without those that are deleted or have ended.
func (r Reader) backend(ctx context.Context, namespace, name string) Read[Backend] {
	return read(func() (Backend, error) {
		var found Backend
		var service corev1.Service
		if err := r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &service); err != nil {
			return found, err
		}
		if found.External = len(service.Spec.Selector) == 0; found.External {
			return found, nil
		}
		var pods corev1.PodList
		selector := client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(service.Spec.Selector)}
		err := r.Client.List(ctx, &pods, client.InNamespace(namespace), selector)
		found.Pods = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
			return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
		})
		return found, err
	})
}

// corefile reads the configuration of CoreDNS from the ConfigMap that its pods mount.
func (r Reader) corefile(ctx context.Context, namespace string, pods []corev1.Pod) Read[string] {
	return read(func() (string, error) {
		names := []string{"coredns"}
		for _, pod := range pods[:min(1, len(pods))] { // the others are its like
			for _, volume := range pod.Spec.Volumes {
				if volume.ConfigMap != nil {
					names = append(names, volume.ConfigMap.Name)
				}
			}
		}
		var failures error
		for _, name := range names {
			var stored corev1.ConfigMap
			err := r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &stored)
			if text, found := stored.Data["Corefile"]; err == nil && found {
				return text, nil
			}
			failures = errors.Join(failures, client.IgnoreNotFound(err))
		}
		return "", cmp.Or(failures, errors.New("there is no ConfigMap with a Corefile in the namespace "+namespace))
	})
}

// custom reads all objects of a kind: of each its name, and what T has of the part at path.
func custom[T any](ctx context.Context, c client.Reader, version, kind string, path ...string) Read[[]T] {
	return read(func() ([]T, error) {
		list := new(unstructured.UnstructuredList)
		list.SetAPIVersion(version)
		list.SetKind(kind + "List")
		if err := c.List(ctx, list); err != nil {
			return nil, err
		}
		found := make([]T, len(list.Items))
		for i, item := range list.Items {
			_ = unstructured.SetNestedField(item.Object, item.GetName(), append(path, "name")...) // fails as the next line does
			part, _, err := unstructured.NestedMap(item.Object, path...)
			if err := errors.Join(err, runtime.DefaultUnstructuredConverter.FromUnstructured(part, &found[i])); err != nil {
				return nil, fmt.Errorf("%s %s: %w", kind, item.GetName(), err)
			}
		}
		return found, nil
	})
}

// webhooks reads those whose failure refuses requests, with the Services behind them.
func (r Reader) webhooks(ctx context.Context) Read[[]Webhook] {
	return read(func() (found []Webhook, err error) {
		// One type for both kinds: it has all fields that doctor looks at.
		for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
			configurations := custom[admissionv1.ValidatingWebhookConfiguration](ctx, r.Client, "admissionregistration.k8s.io/v1", kind)
			for _, configuration := range configurations.Value {
				for _, webhook := range configuration.Webhooks {
					found = append(found, Webhook{Configuration: configuration.Name, Webhook: webhook})
				}
			}
			err = errors.Join(err, configurations.Err)
		}
		for i := range found {
			if service := found[i].Webhook.ClientConfig.Service; service != nil {
				found[i].Backend = r.backend(ctx, service.Namespace, service.Name)
			} else {
				found[i].Backend.Value.External = true // a URL
			}
		}
		return found, err
	})
}
