package charttest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// In controller mode the controller may create workers and no other pods: a field that no worker has is refused, one of a later
// Kubernetes too.
func TestControllerMayCreateWorkersOnly(t *testing.T) {
	s := &suite{harness.Start(t)}
	manifests, err := s.Cluster.Render(s.Ctx, "controller.enabled=true", "deploymentMode=controller", "commonLabels.team=infra",
		"extraEnv[0].name=GODEBUG", "extraEnv[0].value=http2client=0", "extraEnv[1].name=EMPTY")
	s.NoError(err)
	for _, kind := range []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		s.apply(only(manifests, kind))
	}
	var template corev1.Pod
	for object := range strings.SplitSeq(only(manifests, "ConfigMap"), "\n---\n") {
		var configMap corev1.ConfigMap
		s.NoError(yaml.Unmarshal([]byte(object), &configMap))
		if text := configMap.Data["agent.yaml"]; text != "" {
			s.NoError(yaml.UnmarshalStrict([]byte(text), &template))
		}
	}
	s.NotEmpty(template.Spec.Containers)
	template.Name = harness.Name + "-worker-abcde"
	template.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "x", UID: "x"}}
	controller := s.client(harness.Default(), harness.Controller, nil)
	create := func(change func(*corev1.Pod)) error {
		pod := template.DeepCopy()
		change(pod)
		_, err := controller.CoreV1().Pods(harness.Namespace).Create(s.Ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// A new policy takes effect when the API server has read it.
	s.Until(func() (bool, error) {
		err := create(func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways })
		return err != nil && strings.Contains(err.Error(), "may create only pods"), nil
	})
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { change(&pod.Spec.Containers[0]) }
	}
	always, never, yes := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, true
	for name, change := range map[string]func(*corev1.Pod){
		"a container that restarts always": container(func(c *corev1.Container) { c.RestartPolicy = &always }),
		"a container's restart policy":     container(func(c *corev1.Container) { c.RestartPolicy = &never }),
		"a container that restarts by a rule": container(func(c *corev1.Container) {
			c.RestartPolicy, c.RestartPolicyRules = &never, []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}}}}
		}),
		"a sidecar": func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{*pod.Spec.Containers[0].DeepCopy()}
			pod.Spec.InitContainers[0].Name, pod.Spec.InitContainers[0].RestartPolicy = "sidecar", &always
		},
		"a second container": func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, *pod.Spec.Containers[0].DeepCopy())
			pod.Spec.Containers[1].Name = "second"
		},
		"a command":      container(func(c *corev1.Container) { c.Command = []string{"sh"} }),
		"another folder": container(func(c *corev1.Container) { c.WorkingDir = "/proc" }),
		"standard input": container(func(c *corev1.Container) { c.Stdin = true }),
		"a terminal":     container(func(c *corev1.Container) { c.TTY = true }),
		"a hook": container(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
		}),
		"a host port":   container(func(c *corev1.Container) { c.Ports[0].HostPort = 8080 }),
		"another image": container(func(c *corev1.Container) { c.Image = "example.com/x" }),
		"a huge request": container(func(c *corev1.Container) {
			c.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100")}
		}),
		"the pod's requests": func(pod *corev1.Pod) {
			pod.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}
		},
		"a name in a service":  func(pod *corev1.Pod) { pod.Spec.Hostname, pod.Spec.Subdomain = "kube-dns-0", "kube-dns" },
		"a full name":          func(pod *corev1.Pod) { pod.Spec.SetHostnameAsFQDN = &yes },
		"shared processes":     func(pod *corev1.Pod) { pod.Spec.ShareProcessNamespace = &yes },
		"the node's network":   func(pod *corev1.Pod) { pod.Spec.HostNetwork = true },
		"the node's processes": func(pod *corev1.Pod) { pod.Spec.HostPID = true },
		"the node's IPC":       func(pod *corev1.Pod) { pod.Spec.HostIPC = true },
		"host aliases": func(pod *corev1.Pod) {
			pod.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"x"}}}
		},
		"a scheduling gate": func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/stay"}}
		},
		"a readiness gate": func(pod *corev1.Pod) {
			pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/never"}}
		},
		"a probe of another host": container(func(c *corev1.Container) { c.ReadinessProbe.HTTPGet.Host = "10.0.0.1" }),
		"a probe by a command": container(func(c *corev1.Container) {
			c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh"}}}
		}),
		"another value of an extra variable": container(func(c *corev1.Container) { variable(c, "GODEBUG").Value = "http2debug=1" }),
		"an extra variable from a secret": container(func(c *corev1.Container) {
			variable(c, "EMPTY").ValueFrom = &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "x"}, Key: "x"}}
		}),
		"a variable that the chart does not have": container(func(c *corev1.Container) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "HTTPS_PROXY", Value: "http://example.com"})
		}),
		"another value of a common label": func(pod *corev1.Pod) { pod.Labels["team"] = "other" },
		"a volume":                        func(pod *corev1.Pod) { pod.Spec.Volumes = []corev1.Volume{{Name: "x"}} },
		"a node":                          func(pod *corev1.Pod) { pod.Spec.NodeName = "node1" },
		"no owner":                        func(pod *corev1.Pod) { pod.OwnerReferences = nil },
		"another account":                 func(pod *corev1.Pod) { pod.Spec.ServiceAccountName = "default" },
		"a token":                         func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = &yes },
		"another priority":                func(pod *corev1.Pod) { pod.Spec.PriorityClassName = "system-cluster-critical" },
		"a privileged worker": container(func(c *corev1.Container) {
			c.SecurityContext.Privileged, c.SecurityContext.AllowPrivilegeEscalation = &yes, &yes
		}),
		"a restart of the pod":  func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure },
		"a pod without a label": func(pod *corev1.Pod) { delete(pod.Labels, "app.kubernetes.io/component") },
	} {
		t.Run(name, func(t *testing.T) {
			s.part(t).forbidden(create(change), "kube-system/kube-node-ready-controller may create")
		})
	}
	t.Run("a worker", func(t *testing.T) { s.part(t).NoError(create(func(*corev1.Pod) {})) })
	// What the chart does not set, and a webhook may.
	t.Run("a worker with what others may add", func(t *testing.T) {
		seconds, two := int64(60), "2"
		s.part(t).NoError(create(func(pod *corev1.Pod) {
			pod.Spec.ActiveDeadlineSeconds, pod.Spec.HostUsers, pod.Spec.OS = &seconds, new(bool), &corev1.PodOS{Name: corev1.Linux}
			pod.Spec.DNSConfig = &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}}}
			pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
		}))
	})
	s.awaitTypeChecked(harness.Controller + "-workers")
	s.awaitTypeChecked(harness.Controller + "-new-workers")
}

// In daemonset mode the controller may delete agents, for a fresh sandbox, and workers that are left, and no other pod.
func TestControllerMayDeleteAgentsAndWorkersOnly(t *testing.T) {
	s := start(t)
	manifests, err := s.Cluster.Render(s.Ctx, "controller.enabled=true")
	s.NoError(err)
	for _, kind := range []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		s.apply(only(manifests, kind))
	}
	var agents struct {
		Spec struct{ Template corev1.Pod }
	}
	s.NoError(yaml.Unmarshal([]byte(only(manifests, "DaemonSet")), &agents))
	pods := s.Cluster.Kube.CoreV1().Pods(harness.Namespace)
	controller := s.client(harness.Default(), harness.Controller, nil).CoreV1().Pods(harness.Namespace)
	remove := func(label, value string) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-", Labels: maps.Clone(agents.Spec.Template.Labels)},
			Spec: corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "x", Image: "x"}}}}
		pod.Labels[label] = value
		made, err := pods.Create(s.Ctx, pod.DeepCopy(), metav1.CreateOptions{})
		s.NoError(err)
		s.Undo(func(ctx context.Context) error { return pods.Delete(ctx, made.Name, metav1.DeleteOptions{}) })
		return controller.Delete(s.Ctx, made.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	}
	const component, instance = "app.kubernetes.io/component", "app.kubernetes.io/instance"
	// A new policy takes effect when the API server has read it.
	s.Until(func() (bool, error) {
		err := remove(instance, "another")
		return err != nil && strings.Contains(err.Error(), "may delete only agents and workers"), nil
	})
	s.ErrorContains(remove(component, "controller"), "may delete only agents and workers")
	s.ErrorContains(remove(component, ""), "may delete only agents and workers")
	s.NoError(remove(component, "worker"))
	s.NoError(remove(component, "agent"))
	s.awaitTypeChecked(harness.Controller + "-workers")
}

// variable returns a variable of a container.
func variable(c *corev1.Container, name string) *corev1.EnvVar {
	i := slices.IndexFunc(c.Env, func(one corev1.EnvVar) bool { return one.Name == name })
	return &c.Env[i]
}
