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

const (
	gateBudget = 40 // ms over the agent that does nothing
	nothing    = "localhost/bench-nothing"
)

// gate takes the time from the gated node to the open one, on the real kubelet, of the agent and of
// one that does nothing, in turn.
func (b *bench) gate(ctx context.Context) error {
	b.step("gate latency: the agent and one that does nothing in turn, %d times each", b.runs)
	program, err := os.ReadFile(filepath.Join(binaries(), "nothing"))
	if err != nil {
		return err
	}
	archive := filepath.Join(b.Dir, "bench-nothing.tar")
	if err := writeImage(archive, nothing+":v1", program); err != nil {
		return err
	}
	defer func() { _ = os.Remove(archive) }()
	if _, err := b.Script(ctx, "load", archive); err != nil {
		return err
	}

	// A round that nobody counts: images unpacked, caches warm.
	var self, floor, difference []float64
	for i := range b.runs + 1 {
		without, err := b.gated(ctx, "image.repository="+nothing, "image.tag=v1")
		if err != nil {
			return err
		}
		with, err := b.gated(ctx)
		if err != nil {
			return err
		}
		if i > 0 {
			self, floor, difference = append(self, with), append(floor, without), append(difference, with-without)
		}
		b.progress(i, b.runs, "pairs")
	}
	b.budget("gate latency over an agent that does nothing", median(difference), gateBudget, "%.0f ms")
	b.figure("gate latency, median", "%.0f ms, doing nothing %.0f ms", median(self), median(floor))
	b.figure("gate latency, times that of doing nothing", "%.2f", median(self)/median(floor))
	return nil
}

// gated gates the node, with the agent deployed with values, and returns after how many
// milliseconds it was open.
func (b *bench) gated(ctx context.Context, values ...string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := b.Deploy(ctx, values...); err != nil {
		return 0, err
	}
	if err := b.settled(ctx); err != nil {
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
		if request.Verb == "patch" && request.Response.Code == 200 {
			return milliseconds(request.Answered.Sub(start)), b.settled(ctx)
		}
	}
	return 0, fmt.Errorf("the audit log has no patch of %s after %s", node, start)
}

// settled waits until the DaemonSet controller has seen the DaemonSet as it is, and its pods are gone.
func (b *bench) settled(ctx context.Context) error {
	return harness.Until(ctx, func() (bool, error) {
		set, err := b.Kube.AppsV1().DaemonSets(harness.Namespace).Get(ctx, harness.Name, metav1.GetOptions{})
		if err != nil || set.Status.ObservedGeneration != set.Generation {
			return false, err
		}
		pods, err := b.AgentPods(ctx)
		return len(pods) == 0, err
	})
}
