package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	requestsBudget = 4
	receivedBudget = 40 // kB
	servicesIn     = "default"
)

// requests counts what one verification asks of the API server, in a small cluster and in large ones.
func (b *bench) requests(ctx context.Context) (err error) {
	b.step("requests: with 10 and 5000 nodes, with 10 and 2000 services")
	end, err := b.withPod(ctx, noAgents)
	if err != nil {
		return err
	}
	defer end()
	defer b.clear(context.WithoutCancel(ctx))

	var first string
	same := true
	for _, size := range []struct{ nodes, services int }{{10, 10}, {5000, 10}, {10, 2000}} {
		b.clear(ctx)
		// node1 and the two services of every cluster are there already.
		if err := b.createNodes(ctx, size.nodes-1, false); err != nil {
			return err
		}
		if err := b.createServices(ctx, size.services-2); err != nil {
			return err
		}
		samples, err := b.verify(ctx, 1)
		if err != nil {
			return err
		}
		s := samples[len(samples)-1]
		var asked []string
		for _, request := range s.requests {
			asked = append(asked, request.Verb+" "+request.ObjectRef.Resource)
		}
		list := strings.Join(asked, ", ")
		if first == "" {
			first = list
			b.figure("requests of a verification", "%s", list)
		}
		same = same && list == first
		where := fmt.Sprintf("with %d nodes, %d services", size.nodes, size.services)
		b.budget("requests "+where, float64(len(s.requests)), requestsBudget, "%.0f")
		b.budget("received "+where+", all of it", float64(s.Received)/1e3, receivedBudget, "%.1f kB")
	}
	if !same {
		return fmt.Errorf("the requests differ with the size of the cluster")
	}
	return nil
}

// created marks the objects that the benchmark makes.
const created = harness.Name + "/bench"

// createNodes creates Node objects: gated ones that kwok plays kubelet for, or some that are
// verified and nobody's.
func (b *bench) createNodes(ctx context.Context, n int, gated bool) error {
	return b.many(ctx, n, "nodes", func(i int) error {
		object := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:   fmt.Sprintf("bench-%05d", i),
				Labels: map[string]string{created: "", corev1.LabelOSStable: "linux", corev1.LabelHostname: fmt.Sprintf("bench-%05d", i)},
			},
			Status: corev1.NodeStatus{Allocatable: capacity(), Capacity: capacity()},
		}
		if gated {
			object.Annotations = map[string]string{kwokNode: "fake"}
			object.Spec.Taints = []corev1.Taint{{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
		} else {
			object.Labels[harness.Label] = "true"
		}
		_, err := b.Kube.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
		return err
	})
}

func (b *bench) createServices(ctx context.Context, n int) error {
	return b.many(ctx, n, "services", func(i int) error {
		_, err := b.Kube.CoreV1().Services(servicesIn).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bench-%05d", i), Labels: map[string]string{created: ""}},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"no": "pod"}},
		}, metav1.CreateOptions{})
		return err
	})
}

// many does something n times, some at once.
func (b *bench) many(ctx context.Context, n int, what string, do func(i int) error) error {
	const atOnce = 16
	work, results := make(chan int), make(chan error)
	for range atOnce {
		go func() {
			for i := range work {
				results <- do(i)
			}
		}()
	}
	go func() {
		defer close(work)
		for i := range n {
			work <- i
		}
	}()
	var first error
	for done := range n {
		if err := <-results; err != nil && first == nil {
			first = err
		}
		b.progress(done+1, n, what)
	}
	return cmp.Or(first, ctx.Err())
}

// clear deletes what the benchmark has created.
func (b *bench) clear(ctx context.Context) {
	mine := metav1.ListOptions{LabelSelector: created}
	_ = b.Kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, mine)
	services, err := b.Kube.CoreV1().Services(servicesIn).List(ctx, mine)
	if err == nil && len(services.Items) > 0 {
		_ = b.many(ctx, len(services.Items), "services deleted", func(i int) error {
			return b.Kube.CoreV1().Services(servicesIn).Delete(ctx, services.Items[i].Name, metav1.DeleteOptions{})
		})
	}
}
