package exampletest

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// everything switches on all that has a name. What only one of the deployment modes has is in modes.
var (
	everything = []string{"controller.enabled=true", "controller.remediation.mode=delete", "controller.remediation.deleteNodes=true",
		"controller.verifyAfterReboot=true", "startupTaint.add=true", "podMonitor.enabled=true", "serviceMonitor.enabled=true",
		"prometheusRule.enabled=true", "dashboard.enabled=true", "networkPolicy.enabled=true"}
	modes = map[string][]string{
		"daemonset":  {"config.recheckInterval=1m", "config.peers=true", "controller.retaint.enabled=true", "config.onTimeout=open"},
		"controller": {"deploymentMode=controller"},
	}
)

// names returns what must be unique to a release: its objects, those that its controller creates, and the value of its failed taint.
func names(t *testing.T, manifests, namespace string) (all []string) {
	t.Helper()
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		var object struct {
			APIVersion, Kind string
			Metadata         struct{ Name, Namespace string }
		}
		require.NoError(t, yaml.Unmarshal([]byte(text), &object))
		if object.Kind == "" {
			continue
		}
		require.NotEmpty(t, object.Metadata.Name, text)
		group, _, _ := strings.Cut(object.APIVersion, "/")
		all = append(all, strings.Join([]string{group, object.Kind, object.Metadata.Namespace, object.Metadata.Name}, "/"))
		if name, isController := strings.CutSuffix(object.Metadata.Name, "-controller"); isController && object.Kind == "Deployment" {
			all = append(all, "coordination.k8s.io/Lease/"+namespace+"/"+name+"-controller",
				"v1/ConfigMap/"+namespace+"/"+name+"-remediation", "failed taint "+name)
		}
	}
	require.Greater(t, len(all), 30)
	return all
}

// manifests renders everything of a release of the pools, hooks too.
func manifests(t *testing.T, release, namespace, values string, set ...string) string {
	t.Helper()
	args := []string{"--set-json", `config.require=[{"daemonSet":"kube-system/cni"}]`}
	for _, value := range slices.Concat(set, everything) {
		args = append(args, "--set", value)
	}
	return template(t, release, namespace, append(args, "--values", examples+"pools/"+values)...)
}

// The releases of two pools have no object in common, whatever is switched on, in one namespace or in two.
func TestReleasesHaveNamesOfTheirOwn(t *testing.T) {
	for mode, set := range modes {
		for _, test := range []struct {
			when                       string
			release, gpu, gpuNamespace string
			gpuSet                     []string
		}{
			{"in one namespace", "kube-node-ready", "gpu", "kube-system", nil},
			{"in two namespaces", "kube-node-ready", "gpu", "gpu", nil},
			{"with one name in two namespaces", "kube-node-ready", "kube-node-ready", "gpu", []string{"fullnameOverride=gpu"}},
		} {
			t.Run(mode+" "+test.when, func(t *testing.T) {
				t.Parallel()
				general := names(t, manifests(t, test.release, "kube-system", "values.yaml", set...), "kube-system")
				rendered := manifests(t, test.gpu, test.gpuNamespace, "values-gpu.yaml", slices.Concat(set, test.gpuSet)...)
				gpu := names(t, rendered, test.gpuNamespace)
				for _, name := range gpu {
					assert.NotContains(t, general, name)
				}
			})
		}
	}
	// Helm refuses to install the second one: docs/platforms.md.
	one := names(t, manifests(t, "same", "one", "values.yaml", modes["daemonset"]...), "one")
	assert.Subset(t, names(t, manifests(t, "same", "two", "values-gpu.yaml", modes["daemonset"]...), "two"), []string{
		"rbac.authorization.k8s.io/ClusterRole//same-kube-node-ready",
		"admissionregistration.k8s.io/ValidatingAdmissionPolicy//same-kube-node-ready"})
	assert.Contains(t, one, "rbac.authorization.k8s.io/ClusterRole//same-kube-node-ready")
}

// Each pool belongs to one release, and the releases share no key or condition, so alerts on taints and conditions are about the nodes
// of one release.
func TestPools(t *testing.T) {
	general := render(t, "kube-node-ready", examples+"pools/values.yaml")
	gpu := render(t, "gpu", examples+"pools/values-gpu.yaml")
	term := general.spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0]
	assert.Contains(t, term.MatchExpressions,
		corev1.NodeSelectorRequirement{Key: "example.com/pool", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"gpu"}})
	assert.Equal(t, "gpu", gpu.spec.NodeSelector["example.com/pool"])
	assert.Equal(t, general.env["VERIFIED_LABEL"], gpu.env["VERIFIED_LABEL"], "workloads select verified nodes of both pools")

	alertsOn := regexp.MustCompile(`kube_node_spec_taint\{key=~"([^"]+)"|kube_node_status_condition\{condition="([^"]+)"`)
	used := func(release, values string) map[string]bool {
		text := manifests(t, release, "kube-system", values, modes["daemonset"]...)
		found := make(map[string]bool)
		for _, match := range alertsOn.FindAllStringSubmatch(text, -1) {
			for key := range strings.SplitSeq(match[1]+match[2], "|") {
				found[key] = true
			}
		}
		return found
	}
	generals, gpus := used("kube-node-ready", "values.yaml"), used("gpu", "values-gpu.yaml")
	assert.Equal(t, []string{"NodeVerified", "node-ready/failed", "node-ready/unverified"}, slices.Sorted(maps.Keys(generals)))
	assert.Equal(t, []string{"GPUNodeVerified", "node-ready/gpu-failed", "node-ready/gpu-unverified"}, slices.Sorted(maps.Keys(gpus)))
}
