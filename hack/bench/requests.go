package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	memoryRuns = 5
	nodePrefix = "bench-"
	created    = harness.Name + "/bench" // the label of nodes that the benchmark creates
)

// memory measures the peak resident memory of verifications.
func (b *bench) memory(ctx context.Context) error {
	b.step("memory: %d verifications", memoryRuns)
	end, err := b.startPod(ctx, noAgents)
	if err != nil {
		return err
	}
	defer end()
	var highest uint64
	err = inside(ctx, b, func(s sample) { highest = max(highest, s.Peak) }, "hold", strconv.Itoa(memoryRuns))
	if err != nil {
		return err
	}
	b.budget("peak memory of a verification", float64(highest)/(1<<20), memoryBudget, "%.1f MiB")
	return nil
}

// requests counts the API requests of one verification and what the pod receives, in a small cluster and in a large one.
func (b *bench) requests(ctx context.Context) (err error) {
	b.step("requests: with 1 node and with 5000")
	end, err := b.startPod(ctx, noAgents)
	if err != nil {
		return err
	}
	defer end()
	defer func() { err = errors.Join(err, b.clear(context.WithoutCancel(ctx))) }()
	for _, nodes := range []int{1, fleetSize} {
		if err := b.createNodes(ctx, nodes-1, false); err != nil { // node1 is there
			return err
		}
		var one sample
		if err := inside(ctx, b, func(s sample) { one = s }, "once", "1"); err != nil {
			return err
		}
		words, err := b.requestsOf(one)
		if err != nil {
			return err
		}
		b.figure("requests of a verification", "%s", strings.Join(words, ", "))
		b.budget(fmt.Sprintf("requests in a cluster of %d", nodes), float64(len(words)), requestsBudget, "%.0f")
		b.budget(fmt.Sprintf("received in a cluster of %d", nodes), float64(one.Received)/1e3, receivedBudget, "%.1f kB")
	}
	return nil
}

// requestsOf lists the verb and the resource of each request of a verification.
func (b *bench) requestsOf(s sample) (words []string, err error) {
	all, err := b.Audit(s.Start, harness.User)
	for _, request := range all {
		if request.Received.Before(s.End) {
			words = append(words, request.Verb+" "+request.ObjectRef.Resource)
		}
	}
	return words, err
}

// createNodes creates Nodes: either new ones with the startup taint, for kwok, or verified ones without a kubelet.
func (b *bench) createNodes(ctx context.Context, n int, gated bool) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return b.parallel(ctx, n, "nodes", func(i int) error {
		name := fmt.Sprintf("%s%05d", nodePrefix, i)
		object := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				created: "", corev1.LabelOSStable: "linux", corev1.LabelHostname: name,
			}},
			Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
		}
		if gated {
			object.Annotations = map[string]string{"kwok.x-k8s.io/node": "fake"}
			object.Spec.Taints = []corev1.Taint{{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
		} else {
			object.Labels[harness.Label] = "true"
		}
		_, err := b.Kube.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
		return err
	})
}

// clear deletes the nodes that the benchmark has created. A busy API server needs longer for thousands than one request may take.
func (b *bench) clear(ctx context.Context) error {
	ours := metav1.ListOptions{LabelSelector: created}
	return harness.Until(ctx, func() (bool, error) {
		list, err := b.Kube.CoreV1().Nodes().List(ctx, ours)
		if err != nil || len(list.Items) == 0 {
			return err == nil, err
		}
		_ = b.Kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, ours)
		return false, nil
	})
}

// parallel calls do with 0 to n-1, a few at once.
func (b *bench) parallel(ctx context.Context, n int, what string, do func(i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	var done atomic.Int64
	for i := range n {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			err := do(i)
			b.progress(int(done.Add(1)), n, what)
			return err
		})
	}
	return group.Wait()
}
