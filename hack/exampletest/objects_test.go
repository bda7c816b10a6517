package exampletest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/v1beta4"
	kubeadmconfig "k8s.io/kubernetes/cmd/kubeadm/app/util/config"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/yaml"
)

// startupTaint is the chart's.
var startupTaint = corev1.Taint{Key: "node-ready/unverified", Value: "true", Effect: corev1.TaintEffectNoSchedule}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(examples + path)
	require.NoError(t, err)
	return text
}

// decode refuses a field that the type does not have.
func decode(t *testing.T, path string, into any) {
	t.Helper()
	require.NoError(t, yaml.UnmarshalStrict(read(t, path), into))
}

// Every YAML file of the examples is YAML without a key twice.
func TestFilesAreYAML(t *testing.T) {
	files, err := filepath.Glob(examples + "*/*.yaml")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var content map[string]any
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), &content), file)
			require.NotEmpty(t, content, file)
		}
	}
}

// fakeDocker answers as far as `kind create cluster` judges the configuration, and refuses to create anything.
const fakeDocker = `#!/bin/sh
case $1 in
info) echo '{"CgroupDriver":"systemd","CgroupVersion":"2","MemoryLimit":true,"PidsLimit":true,"CPUShares":true}' ;;
ps | inspect) ;;
*) echo "nothing is created here" >&2; exit 1 ;;
esac
`

// createKind runs `kind create cluster` of kind's own module up to the first command that would create something.
func createKind(t *testing.T, configuration []byte) error {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/docker", []byte(fakeDocker), 0o700))
	t.Setenv("PATH", dir)
	t.Setenv("KUBECONFIG", dir+"/kubeconfig")
	return cluster.NewProvider(cluster.ProviderWithDocker()).Create("", cluster.CreateWithRawConfig(configuration), cluster.CreateWithRetain(true))
}

// kind accepts the configuration, and kubeadm what kind's patches make of its own: workers join with the startup taint.
func TestKind(t *testing.T) {
	text := read(t, "kind/cluster.yaml")
	require.ErrorContains(t, createKind(t, text), "failed to ensure docker network", "kind wants to create the nodes now")
	for mistake, wrong := range map[string]string{
		"field kubeadmConfigPatch not found":        strings.Replace(string(text), "kubeadmConfigPatches", "kubeadmConfigPatch", 1),
		"must have at least one control-plane node": strings.Replace(string(text), "role: control-plane", "role: worker", 1),
	} {
		require.ErrorContains(t, createKind(t, []byte(wrong)), mistake)
	}

	var configuration v1alpha4.Cluster
	decode(t, "kind/cluster.yaml", &configuration)
	var roles []string
	for _, node := range configuration.Nodes {
		roles = append(roles, string(node.Role))
		if node.Role == v1alpha4.ControlPlaneRole {
			assert.Empty(t, node.KubeadmConfigPatches, "the DNS pods need a node")
			continue
		}
		require.Len(t, node.KubeadmConfigPatches, 1)
		var patch kubeadm.JoinConfiguration
		require.NoError(t, yaml.UnmarshalStrict([]byte(node.KubeadmConfigPatches[0]), &patch))
		assert.Equal(t, "JoinConfiguration", patch.Kind)
		assert.Empty(t, patch.APIVersion, "kind applies it to every version of kubeadm's API")
		patch.APIVersion = kubeadm.SchemeGroupVersion.String()
		patch.Discovery.BootstrapToken = &kubeadm.BootstrapTokenDiscovery{
			Token: "abcdef.0123456789abcdef", APIServerEndpoint: "node-ready-control-plane:6443", UnsafeSkipCAVerification: true,
		}
		assert.Equal(t, []corev1.Taint{startupTaint}, joins(t, patch))
	}
	assert.Equal(t, []string{"control-plane", "worker", "worker"}, roles)
}

// The commands of the quick start name files that exist, and this version of the chart.
func TestQuickStart(t *testing.T) {
	readme, err := os.ReadFile(root + "/README.md")
	require.NoError(t, err)
	_, block, found := strings.Cut(string(readme), "<!-- kind -->\n```sh\n")
	require.True(t, found)
	block, _, _ = strings.Cut(block, "```")
	commands := strings.ReplaceAll(strings.TrimSpace(block), "\\\n", "")
	assert.Len(t, strings.Split(commands, "\n"), 5)
	for _, file := range regexp.MustCompile(`\S+\.yaml`).FindAllString(block, -1) {
		assert.FileExists(t, root+"/"+file)
	}
	var chart struct{ Version string }
	text, err := os.ReadFile(root + "/chart/Chart.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &chart))
	assert.Contains(t, block, "--version "+chart.Version+" ")
}

// A worker that kubeadm joins has both taints: ours and Cilium's.
func TestKubeadm(t *testing.T) {
	var join kubeadm.JoinConfiguration
	decode(t, "cilium/join.yaml", &join)
	assert.Contains(t, joins(t, join), startupTaint)
	assert.Len(t, join.NodeRegistration.Taints, 2)
}

// joins returns the taints with which kubeadm joins a node, after its own defaults and validation.
func joins(t *testing.T, join kubeadm.JoinConfiguration) []corev1.Taint {
	t.Helper()
	text, err := yaml.Marshal(join)
	require.NoError(t, err)
	valid, err := kubeadmconfig.BytesToJoinConfiguration(text, kubeadmconfig.LoadOrDefaultConfigurationOptions{SkipCRIDetect: true})
	require.NoError(t, err)
	return valid.NodeRegistration.Taints
}

func TestClusterAPI(t *testing.T) {
	var template bootstrapv1.KubeadmConfigTemplate
	decode(t, "cluster-api/kubeadmconfigtemplate.yaml", &template)
	assert.Equal(t, bootstrapv1.GroupVersion.String(), template.APIVersion)
	assert.Equal(t, []corev1.Taint{startupTaint}, *template.Spec.Template.Spec.JoinConfiguration.NodeRegistration.Taints)

	var check clusterv1.MachineHealthCheck
	decode(t, "cluster-api/machinehealthcheck.yaml", &check)
	assert.Equal(t, clusterv1.GroupVersion.String(), check.APIVersion)
	unhealthy := check.Spec.Checks.UnhealthyNodeConditions
	require.Len(t, unhealthy, 1)
	assert.Equal(t, "NodeVerified False", fmt.Sprint(unhealthy[0].Type, " ", unhealthy[0].Status))
}

// The kubelets of Talos and OpenShift register with the startup taint.
func TestKubelet(t *testing.T) {
	var talos struct {
		Machine struct {
			Kubelet struct {
				ExtraConfig kubeletv1beta1.KubeletConfiguration `json:"extraConfig"`
			} `json:"kubelet"`
		} `json:"machine"`
	}
	decode(t, "talos/worker.yaml", &talos)
	assert.Equal(t, []corev1.Taint{startupTaint}, talos.Machine.Kubelet.ExtraConfig.RegisterWithTaints)

	var openshift struct {
		Spec struct {
			KubeletConfig kubeletv1beta1.KubeletConfiguration `json:"kubeletConfig"`
		} `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(read(t, "openshift/kubeletconfig.yaml"), &openshift))
	assert.Equal(t, []corev1.Taint{startupTaint}, openshift.Spec.KubeletConfig.RegisterWithTaints)
}

// The DNS pods of RKE2 tolerate both taints.
func TestRKE2(t *testing.T) {
	var object struct {
		Spec struct{ ValuesContent string }
	}
	require.NoError(t, yaml.Unmarshal(read(t, "rke2/helmchartconfig.yaml"), &object))
	var values struct{ Tolerations []corev1.Toleration }
	require.NoError(t, yaml.UnmarshalStrict([]byte(object.Spec.ValuesContent), &values))
	for _, key := range []string{"node-ready/unverified", "node-ready/failed"} {
		assert.Contains(t, values.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
}
