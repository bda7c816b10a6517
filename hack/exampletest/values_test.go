package exampletest

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/internal/config"
)

const (
	root      = "../.."
	examples  = root + "/hack/examples/"
	terraform = "eks-platform" // the one example that is no values file: `make platform-check` tests it
)

// folders are those of hack/examples: a new one is tested without a change here.
func folders(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(examples)
	require.NoError(t, err)
	for _, entry := range entries {
		if entry.IsDir() && entry.Name() != terraform {
			names = append(names, entry.Name())
		}
	}
	require.NotEmpty(t, names)
	return names
}

// Each folder has a values file, which renders with the chart and fits its schema. The agent and the controller accept the
// settings.
func TestValues(t *testing.T) {
	for _, folder := range folders(t) {
		require.FileExists(t, examples+folder+"/values.yaml")
		files, err := filepath.Glob(examples + folder + "/values*.yaml")
		require.NoError(t, err)
		for _, file := range files {
			t.Run(folder+"/"+filepath.Base(file), func(t *testing.T) {
				t.Parallel()
				agent := render(t, "kube-node-ready", file)
				_, err := config.Parse(agent.args, agent.lookupEnv, io.Discard)
				require.NoError(t, err)

				controller := render(t, "kube-node-ready", file, "--set", "controller.enabled=true").controller
				_, err = config.ParseController(controller.args, controller.lookupEnv, io.Discard)
				require.NoError(t, err)
			})
		}
	}
}

// A setting that the agent refuses is found.
func TestTheAgentJudgesTheSettings(t *testing.T) {
	agent := render(t, "kube-node-ready", examples+"karpenter/values.yaml")
	agent.env["MAX_RETRIES"] = "many"
	_, err := config.Parse(agent.args, agent.lookupEnv, io.Discard)
	require.ErrorContains(t, err, "max-retries")
}

// docs/platforms.md says for each folder what it is for.
func TestEveryFolderIsDocumented(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/platforms.md")
	require.NoError(t, err)
	for _, folder := range append(folders(t), terraform) {
		assert.Contains(t, string(text), "(../hack/examples/"+folder, "docs/platforms.md has no link to the folder")
	}
}

// program is how a container of the chart starts a program.
type program struct {
	args []string
	env  map[string]string
	spec corev1.PodSpec
}

func (p program) lookupEnv(name string) (string, bool) {
	value, found := p.env[name]
	return value, found
}

// rendered is a release of the chart.
type rendered struct {
	program    // the agent
	controller program
}

// template renders the chart as helm install does, which also holds the values against the chart's schema.
func template(t *testing.T, release, namespace string, args ...string) string {
	t.Helper()
	helm, err := filepath.Abs(root + "/bin/tools/helm")
	require.NoError(t, err)
	command := exec.Command(helm, append([]string{"template", release, root + "/chart", "--namespace", namespace, "--kube-version", "1.36.0",
		"--api-versions", "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"}, args...)...)
	var problems strings.Builder
	command.Stderr = &problems
	out, err := command.Output()
	require.NoError(t, err, problems.String())
	return string(out)
}

// render renders a release with a values file, and reads what its programs start with.
func render(t *testing.T, release, values string, args ...string) (r rendered) {
	t.Helper()
	out := template(t, release, "kube-system", append([]string{"--no-hooks", "--values", values}, args...)...)

	settings := make(map[string]map[string]string)
	var daemonSet appsv1.DaemonSet
	var deployment appsv1.Deployment
	for text := range strings.SplitSeq(out, "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Data     map[string]string
		}
		require.NoError(t, yaml.Unmarshal([]byte(text), &object))
		switch object.Kind {
		case "ConfigMap":
			settings[object.Metadata.Name] = object.Data
		case "DaemonSet":
			require.NoError(t, yaml.UnmarshalStrict([]byte(text), &daemonSet))
		case "Deployment":
			require.NoError(t, yaml.UnmarshalStrict([]byte(text), &deployment))
		}
	}
	r.program = start(daemonSet.Spec.Template.Spec, settings)
	require.Contains(t, r.env, "TAINT_KEY")
	r.controller = start(deployment.Spec.Template.Spec, settings)
	return r
}

// start returns what kubelet gives to the first container of a pod.
func start(pod corev1.PodSpec, settings map[string]map[string]string) program {
	p := program{env: map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}, spec: pod}
	if len(pod.Containers) == 0 {
		return p
	}
	container := pod.Containers[0]
	p.args = container.Args
	for _, source := range container.EnvFrom {
		for name, value := range settings[source.ConfigMapRef.Name] {
			p.env[name] = value
		}
	}
	fields := map[string]string{"spec.nodeName": "node1", "metadata.namespace": "kube-system", "status.hostIP": "192.0.2.1"}
	for _, variable := range container.Env {
		p.env[variable.Name] = variable.Value
		if variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil {
			p.env[variable.Name] = fields[variable.ValueFrom.FieldRef.FieldPath]
		}
	}
	return p
}
