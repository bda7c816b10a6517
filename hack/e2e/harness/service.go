package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServicePods is how many pods a service has on each node.
const ServicePods = 10

// service needs DNS at its start: a pod waits 5 s for the answer, as resolvers do by default, and exits without one.
const service = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: service-%[1]s, namespace: default}
spec:
  replicas: %[2]d
  selector: {matchLabels: {service: %[1]s}}
  template:
    metadata: {labels: {service: %[1]s}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %[1]s}
      terminationGracePeriodSeconds: 0
      containers:
      - name: service
        image: localhost/workload:1
        imagePullPolicy: Never
        args: [require, kubernetes.default.svc.cluster.local., ":8080"]
        env: [{name: TIMEOUT, value: 5s}]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
`

// ServiceState counts the pods of a service that are ready, and how often kubelet has restarted their containers.
type ServiceState struct{ Ready, Restarts int }

// StartService creates the pods of a service that run on no other node than this one. remove deletes them and waits until they are gone.
func (c *Cluster) StartService(ctx context.Context, node string) (remove func(context.Context) error, err error) {
	deleteAll, err := c.Apply(ctx, fmt.Sprintf(service, node, ServicePods))
	return func(ctx context.Context) error {
		return errors.Join(deleteAll(ctx), Until(ctx, func() (bool, error) {
			pods, err := c.servicePods(ctx, node)
			return len(pods) == 0, err
		}))
	}, err
}

// AwaitService waits until all pods of a node's service are ready.
func (c *Cluster) AwaitService(ctx context.Context, node string) (state ServiceState, at time.Time, err error) {
	err = Until(ctx, func() (_ bool, err error) {
		state, err = c.ServiceState(ctx, node)
		return state.Ready == ServicePods, err
	})
	return state, time.Now(), err
}

// ServiceState reads the state of a node's service.
func (c *Cluster) ServiceState(ctx context.Context, node string) (state ServiceState, err error) {
	pods, err := c.servicePods(ctx, node)
	for _, pod := range pods {
		for _, status := range pod.Status.ContainerStatuses {
			state.Restarts += int(status.RestartCount)
		}
		if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			state.Ready++
		}
	}
	return state, err
}

func (c *Cluster) servicePods(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := c.Kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "service=" + node})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
