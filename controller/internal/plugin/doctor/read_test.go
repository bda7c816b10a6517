package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/installation"
)

// newReader returns a reader of objects. answer sees each request and may refuse it.
func newReader(t *testing.T, refuse func(resource string) error, objects ...client.Object) client.Reader {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	pools := schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}
	scheme.AddKnownTypeWithName(pools.WithKind("NodePool"), new(unstructured.Unstructured))
	scheme.AddKnownTypeWithName(pools.WithKind("NodePoolList"), new(unstructured.UnstructuredList))
	rules := schema.GroupVersion{Group: "readiness.node.x-k8s.io", Version: "v1alpha1"}
	scheme.AddKnownTypeWithName(rules.WithKind("NodeReadinessRule"), new(unstructured.Unstructured))
	scheme.AddKnownTypeWithName(rules.WithKind("NodeReadinessRuleList"), new(unstructured.UnstructuredList))
	inner := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	kind := func(object runtime.Object) string {
		found, err := inner.GroupVersionKindFor(object)
		require.NoError(t, err)
		return strings.TrimSuffix(found.Kind, "List")
	}
	return interceptor.NewClient(inner, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if err := refuse(kind(list)); err != nil {
				return err
			}
			return c.List(ctx, list, options...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if err := refuse(kind(object)); err != nil {
				return err
			}
			return c.Get(ctx, key, object, options...)
		},
	})
}

// stored is the cluster of clean as its objects.
func stored(t *testing.T) []client.Object {
	c := clean(t)
	service := func(namespace, name string, selector map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Selector: selector}}
	}
	dns := podOn("old", tolerate(startup, failed)...)
	dns.Labels = map[string]string{"k8s-app": "kube-dns"}
	dns.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "my-dns"}}}}}
	ended := podOn("old")
	ended.Name, ended.Labels, ended.Status.Phase = "ended", dns.Labels, corev1.PodFailed
	agent := podOn("new")
	agent.Labels = c.Release.Template.Labels
	pool := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": map[string]any{"name": "gated"},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
			"startupTaints": []any{map[string]any{"key": startup, "effect": "NoSchedule"}}}}}}}
	rule := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "readiness.node.x-k8s.io/v1alpha1", "kind": "NodeReadinessRule", "metadata": map[string]any{"name": "network"},
		"spec": map[string]any{"enforcementMode": "bootstrap-only", "conditions": []any{map[string]any{"type": "NodeVerified", "requiredStatus": "True"}},
			"taint":        map[string]any{"key": "readiness.k8s.io/network", "effect": "NoSchedule"},
			"nodeSelector": map[string]any{"matchExpressions": []any{map[string]any{"key": "pool", "operator": "In", "values": []any{"new"}}}}}}}
	hooks := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "mutating"},
		Webhooks: []admissionv1.MutatingWebhook{{Name: "external.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: new("https://hook.example.com")}}}}
	validating := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "validating"},
		Webhooks: []admissionv1.ValidatingWebhook{c.Webhooks.Value[0].Webhook}}
	hookPod := podOn("old", tolerate(startup)...)
	hookPod.Namespace, hookPod.Labels = "system", map[string]string{"app": "hook"}
	return []client.Object{&c.Nodes.Value[0], &c.Nodes.Value[1], &agent, &dns, &ended, c.Namespace.Value, pool, rule, hooks, validating, &hookPod,
		&c.Policies.Value[0], &c.Policies.Value[1], &c.Bindings.Value[0], &c.Bindings.Value[1], service("kube-system", "kube-dns", dns.Labels), service("system", "hook", hookPod.Labels),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "my-dns"}, Data: map[string]string{"Corefile": c.Corefile.Value}},
	}
}

func TestReadACleanCluster(t *testing.T) {
	reader := newReader(t, func(string) error { return nil }, stored(t)...)
	c := Read(t.Context(), reader, clean(t).Release)
	assert.Len(t, c.Nodes.Value, 2)
	assert.Len(t, c.Agents.Value, 1)
	assert.Len(t, c.DNS.Value.Pods, 1)
	assert.Contains(t, c.Corefile.Value, "forward")
	require.Len(t, c.NodePools.Value, 1)
	assert.Equal(t, "gated", c.NodePools.Value[0].Name)
	assert.Equal(t, []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}, c.NodePools.Value[0].Spec.Template.Spec.StartupTaints)
	require.Len(t, c.ReadinessRules.Value, 1)
	assert.Equal(t, "network", c.ReadinessRules.Value[0].Name)
	assert.Equal(t, readinessRule("pool", "new").Spec, c.ReadinessRules.Value[0].Spec)
	assert.Len(t, c.Webhooks.Value, 2)
	var out strings.Builder
	assert.Zero(t, Report(&out, c, nil), out.String())
	assert.Equal(t, len(traps(c)), strings.Count(out.String(), "PASS"), out.String())
	assert.Contains(t, out.String(), "doctor cannot see whether pods resolve the names")
}

// Each kind that somebody may not read leaves the other checks alone.
func TestReadWithFewRights(t *testing.T) {
	for resource, skipped := range map[string][]string{
		"Pod":                              {"dns-behind-gate", "external-names", "cluster-domain", "labelled-and-tainted", "excluded-and-tainted", "failed-taint", "webhooks"},
		"Namespace":                        {"webhooks"},
		"NodePool":                         {"karpenter"},
		"NodeReadinessRule":                {"readiness-rules"},
		"Deployment":                       {"network-behind-gate", "cluster-autoscaler"},
		"DaemonSet":                        {"network-behind-gate", "external-names", "requirements"},
		"ValidatingAdmissionPolicy":        {"policy"},
		"ValidatingAdmissionPolicyBinding": {"policy"},
		"MutatingWebhookConfiguration":     {"webhooks"},
		"ConfigMap":                        {"external-names", "cluster-domain", "cluster-autoscaler"},
		"Node":                             {"dns-behind-gate", "network-behind-gate", "karpenter", "foreign-taints", "left-startup-taints", "requirements", "readiness-rules", "labelled-and-tainted", "excluded-and-tainted", "failed-taint", "webhooks"},
	} {
		t.Run(resource, func(t *testing.T) {
			refuse := func(asked string) error {
				if asked != resource {
					return nil
				}
				return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("not you"))
			}
			var out strings.Builder
			assert.Zero(t, Report(&out, Read(t.Context(), newReader(t, refuse, stored(t)...), clean(t, requires(`{"label":"kubernetes.io/os"}`)).Release), nil), out.String())
			var found []string
			for line := range strings.Lines(out.String()) {
				if fields := strings.Fields(line); fields[0] == "SKIP" {
					found = append(found, fields[1])
					assert.Contains(t, line, "forbidden")
				}
			}
			assert.Equal(t, skipped, found, out.String())
		})
	}
}

// Karpenter before 1.0 serves only v1beta1, with the same fields.
func TestReadNodePoolsOfAnOldKarpenter(t *testing.T) {
	pool := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1beta1", "kind": "NodePool", "metadata": map[string]any{"name": "old"},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"taints": []any{map[string]any{"key": startup, "effect": "NoSchedule"}}}}}}}
	scheme := runtime.NewScheme()
	version := schema.GroupVersion{Group: "karpenter.sh", Version: "v1beta1"}
	scheme.AddKnownTypeWithName(version.WithKind("NodePool"), new(unstructured.Unstructured))
	scheme.AddKnownTypeWithName(version.WithKind("NodePoolList"), new(unstructured.UnstructuredList))
	served := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).Build(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if kind := list.GetObjectKind().GroupVersionKind(); kind.Version != version.Version {
				return &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
			}
			return c.List(ctx, list, options...)
		}})
	c := clean(t)
	c.NodePools = NodePools(t.Context(), served)
	found := set(t, c, "karpenter").Findings
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "the NodePool old has node-ready/unverified under taints")
}

// The Corefile is that of the DNS pods. If those are outside the cluster, one in the cluster is another server's.
func TestReadNoForeignCorefile(t *testing.T) {
	objects := append(stored(t), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"},
		Data: map[string]string{"Corefile": ".:53 {\n  errors\n}\n"}})
	for _, object := range objects {
		if service, ok := object.(*corev1.Service); ok {
			service.Spec.Selector = nil
		}
	}
	c := Read(t.Context(), newReader(t, func(string) error { return nil }, objects...), clean(t).Release)
	found := set(t, &c, "external-names")
	assert.Empty(t, found.Findings)
	assert.Error(t, found.Unchecked)
}

// Before the installation there is no namespace, and the policies come from the manifests.
func TestReadBeforeTheInstallation(t *testing.T) {
	of := clean(t).Release
	of.NotInstalled, of.Namespace, of.Planned = true, "not-there-yet", installation.Manifests{&clean(t).Policies.Value[1], &clean(t).Bindings.Value[1]}
	c := Read(t.Context(), newReader(t, func(string) error { return nil }, stored(t)...), of)
	assert.Equal(t, "not-there-yet", c.Namespace.Value.Labels["kubernetes.io/metadata.name"])
	assert.Len(t, c.Policies.Value, 1)
	assert.Len(t, c.Bindings.Value, 1)
	found := set(t, &c, "policy")
	assert.Empty(t, found.Findings)
	assert.Contains(t, found.Warnings[0].Text, "there is no ValidatingAdmissionPolicy kube-node-ready: ")
}
