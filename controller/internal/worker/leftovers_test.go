package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Back in daemonset mode the leader deletes the workers, also one that comes later, and no other pod.
func TestLeftovers(t *testing.T) {
	pod := func(name string, change ...func(*corev1.Pod)) *corev1.Pod { return newWorker(name, 1, change...) }
	labelled := func(key, value string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Labels[key] = value }
	}
	api := fake.NewClientBuilder().WithObjects(
		pod("failed", ended(1, failing)), pod("runs", running),
		pod("an agent", labelled("component", "agent")),
		pod("in another namespace", func(pod *corev1.Pod) { pod.Namespace = "other" }),
		pod("of somebody else", func(pod *corev1.Pod) { pod.Annotations = nil }),
	).Build()
	names := func() (found []string) {
		var list corev1.PodList
		require.NoError(t, api.List(t.Context(), &list))
		for _, pod := range list.Items {
			found = append(found, pod.Name)
		}
		return found
	}
	synctest.Test(t, func(t *testing.T) {
		l := &Leftovers{Reader: api, Writer: api, Namespace: "system", Log: slog.New(slog.DiscardHandler),
			Selector: labels.SelectorFromSet(labels.Set{"component": "worker"})}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Start(ctx) }()
		synctest.Wait()
		others := []string{"an agent", "in another namespace", "of somebody else"}
		assert.ElementsMatch(t, others, names())
		require.NoError(t, api.Create(t.Context(), pod("comes late")))
		time.Sleep(10*time.Minute + time.Second)
		assert.ElementsMatch(t, others, names())
		stop()
		require.NoError(t, <-ended)
	})
}

func TestLeftoversAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, newWorker("a", 1))
		var answers atomic.Bool
		c.deleting = func() error {
			if answers.Load() {
				return nil
			}
			return errors.New("away")
		}
		var lists atomic.Int32
		counted := interceptor.NewClient(c.Client.(cached).Client.(client.WithWatch), interceptor.Funcs{
			List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				lists.Add(1)
				return api.List(ctx, list, options...)
			}})
		l := &Leftovers{Reader: counted, Writer: c.Client, Namespace: "system", Log: slog.New(slog.DiscardHandler),
			Selector: labels.Everything()}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Start(ctx) }()
		synctest.Wait()
		assert.Len(t, c.pods(), 1)
		answers.Store(true)
		time.Sleep(betweenSweeps + time.Second)
		assert.Empty(t, c.pods())
		time.Sleep(time.Hour)
		assert.LessOrEqual(t, lists.Load(), int32(2+6), "each list reads the pods from the API server")
		stop()
		require.NoError(t, <-ended)
	})
}
