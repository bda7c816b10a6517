package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// gate measures the time from the startup taint to the release on the real kubelet, by the agent and in controller mode. The
// baseline is the start of a pod with a token that does nothing: no DaemonSet can be faster.
func (b *bench) gate(ctx context.Context) (err error) {
	b.step("gate: a pod and the agent in turn, %d times each", b.runs)
	if err := b.Deploy(ctx); err != nil {
		return err
	}
	var agent, baseline, workers []float64
	for i := range b.runs + 1 {
		pod, err := b.podStart(ctx)
		if err != nil {
			return err
		}
		latency, err := b.gateLatency(ctx, agentVerifier())
		if err != nil {
			return err
		}
		if i > 0 { // the first pair unpacks the images and warms the caches
			agent, baseline = append(agent, latency), append(baseline, pod)
		}
		b.progress(i, b.runs, "pairs")
	}
	b.step("gate: controller mode, %d times", b.runs)
	if workers, err = b.controllerGates(ctx); err != nil {
		return err
	}
	b.figure("startup taint to release", "%.0f ms, controller mode %.0f ms, start of a pod %.0f ms", median(agent), median(workers), median(baseline))
	b.budget("startup taint to release, compared with the start of a pod", median(agent)/median(baseline), gateBudget, "%.2f times")
	b.budget("the same in controller mode", median(workers)/median(baseline), controllerGateBudget, "%.2f times")
	return nil
}

// podStart creates a pod and returns how long it took until the API server knew that it runs, in milliseconds.
func (b *bench) podStart(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	pod, err := b.Kube.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: podName}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: podName, Image: "localhost/workload:1", ImagePullPolicy: corev1.PullNever}},
	}}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	err = harness.Until(ctx, func() (bool, error) {
		pod, err = b.Kube.CoreV1().Pods("default").Get(ctx, podName, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	took := time.Since(start)
	_, deleteErr := b.Kubectl(ctx, "", "delete", "pod", podName) // and waits until it is gone
	return milliseconds(took), errors.Join(err, deleteErr)
}

// gateLatency adds the startup taint to the node and returns how long it took until the taint was removed, in milliseconds.
func (b *bench) gateLatency(ctx context.Context, by verifier) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	if err := b.Gate(ctx, node); err != nil {
		return 0, err
	}
	if err := b.settled(ctx, by, node); err != nil {
		return 0, err
	}
	released, err := b.releasedAt(start, by.user, node)
	return milliseconds(released.Sub(start)), err
}

// controllerModeValues deploy controller mode with one replica.
func controllerModeValues() []string {
	return append(harness.ControllerValues(), "deploymentMode=controller", "controller.replicas=1")
}

func (b *bench) controllerGates(ctx context.Context) (latencies []float64, err error) {
	remove, err := b.deployControllerMode(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove(context.WithoutCancel(ctx))) }()
	for i := range b.runs + 1 {
		latency, err := b.gateLatency(ctx, workerVerifier())
		if err != nil {
			return nil, fmt.Errorf("controller mode: %w", err)
		}
		if i > 0 { // the first one waits for the leader and warms the caches
			latencies = append(latencies, latency)
		}
		b.progress(i, b.runs, "releases")
	}
	return latencies, nil
}

// deployControllerMode deploys controller mode in place of the DaemonSet. remove removes it.
func (b *bench) deployControllerMode(ctx context.Context) (remove func(context.Context) error, err error) {
	if err := b.Undeploy(ctx); err != nil {
		return nil, err
	}
	values := controllerModeValues()
	remove = func(ctx context.Context) error { return b.Undeploy(ctx, values...) }
	err = b.Deploy(ctx, values...)
	if err == nil {
		err = b.AwaitController(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, remove(context.WithoutCancel(ctx)))
	}
	return remove, nil
}
