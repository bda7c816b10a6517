package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Back in daemonset mode the leader deletes the workers, also one that comes later or cannot be deleted at first, and no other pod.
func TestLeftovers(t *testing.T) {
	pod := func(name string, change ...func(*corev1.Pod)) *corev1.Pod { return newWorker(name, 1, change...) }
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, pod("failed", ended(1, failing)), pod("runs", running),
			pod("an agent", func(pod *corev1.Pod) { pod.Labels["component"] = "agent" }),
			pod("in another namespace", func(pod *corev1.Pod) { pod.Namespace = "other" }),
			pod("of somebody else", func(pod *corev1.Pod) { pod.Annotations = nil }))
		others := []string{"an agent", "in another namespace", "of somebody else"}
		names := func() (found []string) {
			for _, pod := range c.pods() {
				found = append(found, pod.Name)
			}
			return found
		}
		lists := 0
		counted := interceptor.NewClient(c.Client.(cached).Client.(client.WithWatch), interceptor.Funcs{
			List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				lists++
				return api.List(ctx, list, options...)
			}})
		l := &Leftovers{Reader: counted, Writer: c.Client, Namespace: "system", Log: slog.New(slog.DiscardHandler),
			Selector: labels.SelectorFromSet(labels.Set{"component": "worker"})}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		c.deleting = func() error { return errors.New("away") }
		go func() { ended <- l.Start(ctx) }()
		synctest.Wait()
		assert.Len(t, names(), 5)
		c.deleting = nil
		require.NoError(t, c.Client.Create(t.Context(), pod("comes late")))
		time.Sleep(betweenSweeps + time.Second)
		assert.ElementsMatch(t, others, names())
		require.NoError(t, c.Client.Create(t.Context(), pod("comes later")))
		time.Sleep(time.Hour)
		assert.ElementsMatch(t, others, names())
		assert.LessOrEqual(t, lists, 2+6, "each list reads the pods from the API server")
		stop()
		require.NoError(t, <-ended)
	})
}
