// Package harness gives tests, the demo and the benchmarks access to the test cluster: its
// API, the agent that is deployed on it, and the faults that can be made in it.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

// Names in the cluster. They are the defaults of the chart and of hack/cluster.
const (
	Namespace  = "kube-system"
	Name       = "kube-node-ready"
	Taint      = "node-ready/unverified"
	Label      = "node-ready/verified"
	Annotation = "node-ready/verification"

	ConditionType = "NodeVerified"
	Image         = "localhost/kube-node-ready"
	Tag           = "dev"
	// User is how the API server's audit log names the agent.
	User = "system:serviceaccount:" + Namespace + ":" + Name
	// Controller is the name of the controller's objects.
	Controller      = Name + "-controller"
	ControllerImage = "localhost/" + Controller
)

// Cluster is the test cluster of hack/cluster.
type Cluster struct {
	Root string // of the repository
	Dir  string // state, logs
	Kube *kubernetes.Clientset
}

// Open connects to the cluster that `hack/cluster/cluster up` has started.
func Open() (*Cluster, error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return nil, err
	}
	for !exists(filepath.Join(root, "hack", "cluster", "cluster")) {
		if root == "/" {
			return nil, errors.New("not inside the repository")
		}
		root = filepath.Dir(root)
	}
	c := &Cluster{Root: root, Dir: os.Getenv("CLUSTER_DIR")}
	if c.Dir == "" {
		c.Dir = filepath.Join(root, ".cluster")
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("no cluster: start one with hack/cluster/cluster up: %w", err)
	}
	config.QPS, config.Burst = 200, 400
	c.Kube, err = kubernetes.NewForConfig(config)
	return c, err
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "admin.kubeconfig") }

// Run runs a command in the root of the repository, with input, and returns what it printed. The error holds what it
// printed to standard error.
func (c *Cluster) Run(ctx context.Context, input string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.Root
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// Script runs hack/cluster/cluster.
func (c *Cluster) Script(ctx context.Context, args ...string) (string, error) {
	return c.Run(ctx, "", filepath.Join(c.Root, "hack", "cluster", "cluster"), args...)
}

// Kubectl runs kubectl with input.
func (c *Cluster) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	return c.Run(ctx, input, c.Tool("kubectl"), args...)
}

// Apply applies manifests. The function that it returns deletes what they name, and does not wait
// until it is gone.
func (c *Cluster) Apply(ctx context.Context, manifests string) (remove func(context.Context) error, err error) {
	_, err = c.Kubectl(ctx, manifests, "apply", "-f", "-")
	return func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, manifests, "delete", "--ignore-not-found", "--wait=false", "-f", "-")
		return err
	}, err
}

// Tool is the path of a program that was built for the cluster.
func (c *Cluster) Tool(name string) string { return filepath.Join(c.Root, "bin", "tools", name) }

// Release is one installation of the chart.
type Release struct{ Name, Namespace string }

// Default is the release that most tests deploy.
func Default() Release { return Release{Name, Namespace} }

// Render renders the chart with the image under test and further values (key=value, as helm --set).
func (c *Cluster) Render(ctx context.Context, values ...string) (string, error) {
	return c.RenderAs(ctx, Default(), values...)
}

// RenderAs renders the chart for a release, as an install on this cluster would.
func (c *Cluster) RenderAs(ctx context.Context, release Release, values ...string) (string, error) {
	return c.Template(ctx, "", release, append([]string{"--no-hooks"}, Set(values...)...)...)
}

// Template is helm template for a release, with values as YAML and further arguments. The chart renders what this cluster serves.
func (c *Cluster) Template(ctx context.Context, values string, release Release, args ...string) (string, error) {
	version, err := c.Kube.Discovery().ServerVersion()
	if err != nil {
		return "", err
	}
	return c.Run(ctx, values, c.Tool("helm"), append([]string{"template", release.Name, "chart", "--namespace", release.Namespace, "--values", "-",
		"--kube-version", version.GitVersion, "--api-versions", "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"}, args...)...)
}

// AddsStartupTaint reports whether the API server serves the policy of startupTaint.add: Kubernetes 1.36 and newer.
func (c *Cluster) AddsStartupTaint() (bool, error) {
	served, err := c.Kube.Discovery().ServerResourcesForGroupVersion(admissionv1.SchemeGroupVersion.String())
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(served.APIResources, func(kind metav1.APIResource) bool { return kind.Name == "mutatingadmissionpolicies" }), nil
}

// Set returns the arguments for helm that choose the image under test and further values.
func Set(values ...string) []string {
	var args []string
	for _, value := range append([]string{"image.repository=" + Image, "image.tag=" + Tag, "image.pullPolicy=Never"}, values...) {
		args = append(args, "--set", value)
	}
	return args
}

// Deploy applies the rendered chart.
func (c *Cluster) Deploy(ctx context.Context, values ...string) error {
	manifests, err := c.Render(ctx, values...)
	if err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, manifests, "apply", "-f", "-")
	return err
}

// Reset brings a node into the state in which every test begins: verified, no fault, DNS up, no
// agent running.
func (c *Cluster) Reset(ctx context.Context, node string) error {
	if err := c.Repair(ctx, node); err != nil {
		return err
	}
	open := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"taints":null,"unschedulable":null}}`, Label)
	if err := c.Patch(ctx, node, open); err != nil {
		return err
	}
	if err := c.NoAgents(ctx); err != nil {
		return err
	}
	return c.AwaitCoreDNS(ctx, 2)
}

// NoAgents waits until the agent's pods are gone.
func (c *Cluster) NoAgents(ctx context.Context) error {
	err := Until(ctx, func() (bool, error) {
		pods, err := c.AgentPods(ctx)
		return len(pods) == 0, err
	})
	if err != nil {
		return fmt.Errorf("agent pods that do not go away: %w", err)
	}
	return nil
}

// Undeploy deletes what Deploy made, and waits until the agent's pods are gone.
func (c *Cluster) Undeploy(ctx context.Context, values ...string) error {
	manifests, err := c.Render(ctx, values...)
	if err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, manifests, "delete", "--ignore-not-found", "-f", "-"); err != nil {
		return err
	}
	return c.NoAgents(ctx)
}

// Gate puts the startup taint on a node, behind the taints it has, and takes the label and the
// annotation off, all at once: what a node is when it registers.
func (c *Cluster) Gate(ctx context.Context, node string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := c.Node(ctx, node)
		if err != nil {
			return err
		}
		if !HasTaint(now, Taint) {
			now.Spec.Taints = append(now.Spec.Taints, corev1.Taint{Key: Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule})
		}
		delete(now.Labels, Label)
		delete(now.Annotations, Annotation)
		_, err = c.Kube.CoreV1().Nodes().Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
}

// Patch applies a JSON merge patch to a node.
func (c *Cluster) Patch(ctx context.Context, node, patch string) error {
	_, err := c.Kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// DeleteCondition takes the agent's condition off a node.
func (c *Cluster) DeleteCondition(ctx context.Context, node string) error {
	_, err := c.Kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"$patch":"delete"}]}}`, ConditionType), metav1.PatchOptions{}, "status")
	return err
}

// Node reads a node.
func (c *Cluster) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return c.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// HasTaint reports whether node has a taint with key.
func HasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
}

// Verified reports whether a node is verified: label on, startup taint off.
func Verified(node *corev1.Node) bool { return node.Labels[Label] == "true" && !HasTaint(node, Taint) }

// Condition returns a condition of a node, or nil.
func Condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// AwaitNode waits until a node is as wanted, and returns it and the time at which it was seen.
func (c *Cluster) AwaitNode(ctx context.Context, name string, wanted func(*corev1.Node) bool) (*corev1.Node, time.Time, error) {
	var node *corev1.Node
	err := Until(ctx, func() (_ bool, err error) {
		node, err = c.Node(ctx, name)
		return err == nil && wanted(node), nil
	})
	if err != nil && node != nil {
		err = fmt.Errorf("node %s: taints %v, labels %v, condition %v: %w",
			name, node.Spec.Taints, node.Labels, Condition(node, ConditionType), err)
	}
	return node, time.Now(), err
}

// AgentPods lists the agent's pods.
func (c *Cluster) AgentPods(ctx context.Context) ([]corev1.Pod, error) { return c.Pods(ctx, "agent") }

// Pods lists the pods of a component of the default release.
func (c *Cluster) Pods(ctx context.Context, component string) ([]corev1.Pod, error) {
	list, err := c.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/instance=" + Default().Name + ",app.kubernetes.io/component=" + component})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// AgentPod waits for the agent's running pod on a node. It may be on its way out: a verification can
// be over before the pod is seen to run.
func (c *Cluster) AgentPod(ctx context.Context, node string) (corev1.Pod, error) {
	var found corev1.Pod
	err := Until(ctx, func() (bool, error) {
		pods, err := c.AgentPods(ctx)
		if err != nil {
			return false, nil // the API server may be stopped by a test
		}
		for _, pod := range pods {
			if pod.Spec.NodeName == node && pod.Status.Phase == corev1.PodRunning {
				found = pod
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		err = fmt.Errorf("no running agent on %s: %w", node, err)
	}
	return found, err
}

// Events lists our Events on a node with a reason.
func (c *Cluster) Events(ctx context.Context, node, reason string) ([]corev1.Event, error) {
	list, err := c.Kube.CoreV1().Events("default").List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node + ",reason=" + reason})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Until asks again and again until the answer is true or an error, or ctx ends.
func Until(ctx context.Context, ask func() (bool, error)) error {
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
