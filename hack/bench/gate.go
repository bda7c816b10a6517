package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// gate measures the time from the startup taint to the release on the real kubelet, with the agent, with a baseline without
// checks, and in controller mode.
func (b *bench) gate(ctx context.Context) error {
	b.step("gate latency: baseline and agent in turn, %d times each", b.runs)
	const repository, tag = "localhost/bench-baseline", "v1"
	program, err := os.ReadFile(baselinePath())
	if err != nil {
		return err
	}
	archive := filepath.Join(b.Dir, "bench-baseline.tar")
	if err := writeImage(archive, repository+":"+tag, program); err != nil {
		return err
	}
	defer func() { _ = os.Remove(archive) }()
	if _, err := b.Script(ctx, "load", archive); err != nil {
		return err
	}

	var agent, baseline, difference []float64
	for i := range b.runs + 1 {
		without, err := b.gateLatency(ctx, "image.repository="+repository, "image.tag="+tag)
		if err != nil {
			return err
		}
		with, err := b.gateLatency(ctx)
		if err != nil {
			return err
		}
		if i > 0 { // the first pair unpacks the images and warms the caches
			agent, baseline, difference = append(agent, with), append(baseline, without), append(difference, with-without)
		}
		b.progress(i, b.runs, "pairs")
	}
	b.budget("gate latency above the baseline", median(difference), gateBudget, "%.0f ms")
	b.figure("gate latency", "%.0f ms, baseline %.0f ms", median(agent), median(baseline))
	b.figure("gate latency compared with the baseline", "%.2f times", median(agent)/median(baseline))
	return b.gateOfControllerMode(ctx)
}

// gateLatency deploys the agent with values, adds the startup taint to the node and returns how long it took until the taint was
// removed, in milliseconds.
func (b *bench) gateLatency(ctx context.Context, values ...string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := b.Deploy(ctx, values...); err != nil {
		return 0, err
	}
	if err := b.settle(ctx); err != nil {
		return 0, err
	}
	if err := b.Gate(ctx, node); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, _, err := b.AwaitNode(ctx, node, harness.Verified); err != nil {
		return 0, err
	}
	requests, err := b.Audit(start, harness.User)
	if err != nil {
		return 0, err
	}
	for _, request := range requests {
		if isRelease(request) {
			return milliseconds(request.Answered.Sub(start)), b.settle(ctx)
		}
	}
	return 0, fmt.Errorf("no patch of %s in the audit log after %s", node, start)
}

// settle waits until the DaemonSet controller has observed the DaemonSet's last change, and its pods are gone.
func (b *bench) settle(ctx context.Context) error {
	return harness.Until(ctx, func() (bool, error) {
		set, err := b.Kube.AppsV1().DaemonSets(harness.Namespace).Get(ctx, harness.Name, metav1.GetOptions{})
		if err != nil || set.Status.ObservedGeneration != set.Generation {
			return false, err
		}
		pods, err := b.AgentPods(ctx)
		return len(pods) == 0, err
	})
}
