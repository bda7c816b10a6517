package harness

import (
	"context"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ControllerUser is how the API server's audit log names the controller.
const ControllerUser = "system:serviceaccount:" + Namespace + ":" + Controller

// ControllerValues deploy the controller's image under test. Its pods stay on the real node of the cluster, which no test breaks.
func ControllerValues() []string {
	return []string{
		"controller.enabled=true", "controller.image.repository=" + ControllerImage, "controller.image.tag=" + Tag,
		"controller.image.pullPolicy=Never", `controller.nodeSelector.kubernetes\.io/hostname=` + RealNode,
	}
}

// AddNodes adds nodes with a real kubelet, which register with the startup taint, and does not wait until they are ready.
func (c *Cluster) AddNodes(ctx context.Context, names ...string) error {
	for _, name := range names {
		if _, err := c.Node(ctx, name); err == nil {
			continue // left by a run with KEEP=1 that was killed
		}
		if _, err := c.Run(ctx, "", "env", "WAIT=0", filepath.Join(c.Root, "hack", "cluster", "cluster"), "add-node", name); err != nil {
			return err
		}
	}
	return nil
}

// DeleteNodes stops nodes and deletes them.
func (c *Cluster) DeleteNodes(ctx context.Context, names ...string) error {
	for _, name := range names {
		if _, err := c.Script(ctx, "delete-node", name); err != nil {
			return err
		}
	}
	return nil
}

// DeployController replaces what is deployed by the chart with the controller, adds nodes and waits until they are verified.
// cleanUp removes both.
func (c *Cluster) DeployController(ctx context.Context, nodes, values []string) (cleanUp func(context.Context) error, err error) {
	if err := c.Undeploy(ctx, values...); err != nil {
		return nil, err
	}
	if err := c.Reset(ctx, RealNode); err != nil {
		return nil, err
	}
	if err := c.Deploy(ctx, values...); err != nil {
		return nil, err
	}
	if err := c.AddNodes(ctx, nodes...); err != nil {
		return nil, err
	}
	for _, node := range nodes {
		if _, _, err := c.AwaitNode(ctx, node, Verified); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		if err := c.DeleteNodes(ctx, nodes...); err != nil {
			return err
		}
		return c.Undeploy(ctx, values...)
	}, c.AwaitController(ctx)
}

// AwaitController waits until every replica of the controller is ready.
func (c *Cluster) AwaitController(ctx context.Context) error {
	_, err := c.Kubectl(ctx, "", "rollout", "status", "-n", Namespace, "deployment/"+Controller, Wait)
	return err
}

// Leader returns the identity of the controller that leads, "" if there is none, and its pod.
func (c *Cluster) Leader(ctx context.Context) (identity, pod string, err error) {
	lease, err := c.Kube.CoordinationV1().Leases(Namespace).Get(ctx, Controller, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", "", err
	}
	return *lease.Spec.HolderIdentity, PodOf(*lease.Spec.HolderIdentity), nil
}

// PodOf returns the pod in an identity of controller-runtime.
func PodOf(identity string) string {
	pod, _, _ := strings.Cut(identity, "_")
	return pod
}

// Leader waits for a controller that leads, and returns its pod and the others.
func (s *Suite) Leader() (leader corev1.Pod, others []corev1.Pod) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		_, name, err := s.Cluster.Leader(s.Ctx)
		if err != nil {
			return false, err
		}
		pods, err := s.Cluster.Pods(s.Ctx, "controller")
		others = nil
		found := false
		for _, pod := range pods {
			switch {
			case pod.DeletionTimestamp != nil:
			case pod.Name == name:
				leader, found = pod, true
			default:
				others = append(others, pod)
			}
		}
		return found && len(others) == 1, err
	}, "no leader and another replica")
	return leader, others
}

// KillContainer kills a pod's container (SIGKILL). What the API server shows of it may be older than the container.
func (s *Suite) KillContainer(pod *corev1.Pod) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		now, err := s.Cluster.Kube.CoreV1().Pods(pod.Namespace).Get(s.Ctx, pod.Name, metav1.GetOptions{})
		if err != nil || len(now.Status.ContainerStatuses) != 1 || now.Status.ContainerStatuses[0].State.Running == nil {
			return false, err
		}
		id := strings.TrimPrefix(now.Status.ContainerStatuses[0].ContainerID, "containerd://")
		_, err = s.Cluster.Script(s.Ctx, "enter", now.Spec.NodeName, "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id)
		return err == nil, nil
	}, "%s has no container to kill", pod.Name)
}
