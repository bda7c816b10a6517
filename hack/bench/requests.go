package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	servicesIn = "default"
	nodePrefix = "bench-"
	created    = harness.Name + "/bench" // the label of nodes and services that the benchmark creates
)

// requests counts the API requests of one verification and what the pod receives, in a small cluster and in large ones.
func (b *bench) requests(ctx context.Context) (err error) {
	b.step("requests: with 10 and 5000 nodes, with 10 and 2000 services")
	end, err := b.startPod(ctx, noAgents)
	if err != nil {
		return err
	}
	defer end()
	defer func() { err = errors.Join(err, b.clear(context.WithoutCancel(ctx))) }()

	var first string
	for _, size := range []struct{ nodes, services int }{{10, 10}, {5000, 10}, {10, 2000}} {
		if err := b.clear(ctx); err != nil {
			return err
		}
		// node1 and two services exist in every cluster.
		if err := b.createNodes(ctx, nodePrefix, size.nodes-1, false); err != nil {
			return err
		}
		if err := b.createServices(ctx, size.services-2); err != nil {
			return err
		}
		all, err := b.verify(ctx, 1)
		if err != nil {
			return err
		}
		agent := all[len(all)-1]
		var words []string
		for _, request := range agent.requests {
			words = append(words, request.Verb+" "+request.ObjectRef.Resource)
		}
		list := strings.Join(words, ", ")
		if first == "" {
			first = list
			b.figure("requests of a verification", "%s", list)
		}
		where := fmt.Sprintf("with %d nodes, %d services", size.nodes, size.services)
		b.budget("requests "+where, float64(len(agent.requests)), requestsBudget, "%.0f")
		b.budget("received "+where, float64(agent.Received)/1e3, receivedBudget, "%.1f kB")
		if list != first {
			return fmt.Errorf("the requests depend on the size of the cluster: %s", list)
		}
	}
	return nil
}

// createNodes creates Nodes: either new ones with the startup taint, for kwok, or verified ones without a kubelet.
func (b *bench) createNodes(ctx context.Context, prefix string, n int, gated bool) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return b.parallel(ctx, n, "nodes", func(i int) error {
		name := fmt.Sprintf("%s%05d", prefix, i)
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

func (b *bench) createServices(ctx context.Context, n int) error {
	return b.parallel(ctx, n, "services", func(i int) error {
		_, err := b.Kube.CoreV1().Services(servicesIn).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bench-%05d", i), Labels: map[string]string{created: ""}},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"no": "pod"}},
		}, metav1.CreateOptions{})
		return err
	})
}

// clear deletes the nodes and services that the benchmark has created.
func (b *bench) clear(ctx context.Context) error {
	ours := metav1.ListOptions{LabelSelector: created}
	if err := b.Kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, ours); err != nil {
		return err
	}
	services, err := b.Kube.CoreV1().Services(servicesIn).List(ctx, ours)
	if err != nil {
		return err
	}
	return b.parallel(ctx, len(services.Items), "services deleted", func(i int) error {
		return b.Kube.CoreV1().Services(servicesIn).Delete(ctx, services.Items[i].Name, metav1.DeleteOptions{})
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
