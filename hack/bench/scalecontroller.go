package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// neverPass is how many nodes join before the others and never pass: the workers of one half fail, those of the other do not start.
const neverPass = 200

// controllerScaleBudget is the seconds from the first of n nodes created to the last one released, in controller mode; 0: none.
func controllerScaleBudget(n int) float64 {
	switch n {
	case 100:
		return 2.5
	case 1000:
		return 40
	default:
		return 0
	}
}

// behindBudget is the same for 1,000 nodes behind those that never pass.
const behindBudget = 50.0

// scaleControllerMode measures controller mode with every number of nodes, and the largest number behind nodes that never pass.
// kwok runs without leases here: it ignores pods that are bound before it has the lease of their node.
func (b *bench) scaleControllerMode(ctx context.Context, idle map[int]time.Duration) (err error) {
	kwok, err := b.StartKwok(ctx, filepath.Join(b.Root, "hack", "e2e", "workers", "testdata", "stages.yaml"))
	if err != nil {
		return err
	}
	defer kwok.Stop()
	ctx = kwok.While(ctx)
	if err := b.Undeploy(ctx); err != nil {
		return err
	}
	remove, err := b.deployControllerMode(ctx, false)
	if err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, b.emptyControllerMode(ctx), remove(ctx))
	}()
	b.step("scale: %s, one node to wait for the leader", controllerMode)
	if _, _, err := b.controllerWave(ctx, 1, 0); err != nil {
		return err
	}
	for _, n := range b.sizes {
		b.step("scale: %d nodes, %s", n, controllerMode)
		took, requests, err := b.controllerWave(ctx, n, 0)
		if err != nil {
			return err
		}
		nodes := fmt.Sprintf("scale %d, controller mode: ", n)
		b.withinBudget(nodes+"first created to last released", took, controllerScaleBudget(n))
		if n == 1000 {
			b.budget(nodes+"compared with the idle DaemonSet", took.Seconds()/idle[n].Seconds(), 1, "%.2f times")
		}
		b.budget(nodes+"requests of the controller for a node", requests, controllerScaleRequestsBudget, "%.2f")
		if err := b.draw(map[string]point{controllerMode: {Nodes: n, Seconds: took.Seconds(), Requests: int(requests * float64(n))}}); err != nil {
			return err
		}
	}
	n := slices.Max(b.sizes)
	b.step("scale: %d nodes, %s, behind %d nodes that never pass", n, controllerMode, neverPass)
	took, _, err := b.controllerWave(ctx, n, neverPass)
	if err != nil {
		return err
	}
	b.withinBudget(fmt.Sprintf("scale %d, controller mode: behind %d nodes that never pass", n, neverPass), took,
		map[int]float64{1000: behindBudget}[n])
	peak, err := b.controllerPeak(ctx)
	if err != nil {
		return err
	}
	b.budget(fmt.Sprintf("scale %d, controller mode: the controller's peak resident memory", n), peak, incidentBudget, "%.0f MiB")
	return nil
}

// withinBudget reports a time, with a budget if there is one.
func (b *bench) withinBudget(name string, took time.Duration, seconds float64) {
	if seconds > 0 {
		b.budget(name, took.Seconds(), seconds, "%.1f s")
	} else {
		b.figure(name, "%.1f s", took.Seconds())
	}
}

// controllerWave creates n nodes at once, behind others that never pass, and waits until the n are released. It returns how many
// requests the controller has sent for each of them.
func (b *bench) controllerWave(ctx context.Context, n, bad int) (took time.Duration, requests float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := b.emptyControllerMode(ctx); err != nil {
		return 0, 0, err
	}
	done, pods, err := b.prepare(ctx, controllerMode)
	if err != nil {
		return 0, 0, err
	}
	workers := func() (n int) {
		for _, object := range pods.List() {
			if pod, ok := object.(*corev1.Pod); ok && strings.Contains(pod.Name, "-worker-") {
				n++
			}
		}
		return n
	}
	for _, prefix := range []string{"failing-", "stuck-"} {
		if err := b.createNodes(ctx, prefix, bad/2, true); err != nil {
			return 0, 0, err
		}
	}
	if !await(ctx, func() int { return min(workers(), bad) }, bad) {
		return 0, 0, fmt.Errorf("%d of %d nodes that never pass have a worker", workers(), bad)
	}
	start := time.Now()
	if err := b.createNodes(ctx, nodePrefix, n, true); err != nil {
		return 0, 0, err
	}
	if !await(ctx, func() int {
		b.progress(done(), n, "nodes released")
		return done()
	}, n) {
		return 0, 0, errors.Join(context.Cause(ctx), fmt.Errorf("%d nodes, %s: %d nodes are not released", n, controllerMode, n-done()))
	}
	took = time.Since(start)
	await(ctx, func() int { return max(0, workers()-bad) }, 0)
	sent, err := b.Audit(start, controllerUser)
	sent = slices.DeleteFunc(sent, func(r harness.Request) bool { return r.ObjectRef.Resource == "leases" || r.Verb == "watch" })
	return took, float64(len(sent)) / float64(n), err
}

// emptyControllerMode deletes the nodes and the workers, which kwok plays.
func (b *bench) emptyControllerMode(ctx context.Context) error {
	now := int64(0)
	if err := b.clear(ctx); err != nil {
		return err
	}
	workers := b.Kube.CoreV1().Pods(harness.Namespace)
	only := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=worker"}
	return harness.Until(ctx, func() (bool, error) {
		list, err := workers.List(ctx, only)
		if err != nil || len(list.Items) == 0 {
			return err == nil, err
		}
		return false, workers.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, only)
	})
}

// controllerPeak is VmHWM (proc(5)) of the controller in its pod, in MiB.
func (b *bench) controllerPeak(ctx context.Context) (float64, error) {
	pods, err := b.Pods(ctx, "controller")
	if err != nil || len(pods) == 0 {
		return 0, errors.Join(err, errors.New("the controller has no pod"))
	}
	text, err := b.Script(ctx, "pod-pid", harness.Namespace, pods[0].Name)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, err
	}
	network := func(process procfs.Proc) uint32 {
		namespaces, _ := process.Namespaces() // none of a process that has just ended
		return namespaces["net"].Inode
	}
	inPod, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	for _, process := range all {
		command, _ := process.CmdLine()
		if network(process) == network(inPod) && len(command) > 0 && strings.Contains(command[0], "kube-node-ready") {
			status, err := process.NewStatus()
			return float64(status.VmHWM) / (1 << 20), err
		}
	}
	return 0, errors.New("the controller's process was not found")
}
