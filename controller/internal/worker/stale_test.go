package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// The cache is behind: the live Node has lost its GPU. The patch's version test fails, and the Node is read again.
func TestStaleCacheReleasesNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPassedCluster(t)
		node := new(corev1.Node)
		require.NoError(t, c.Client.Get(t.Context(), client.ObjectKey{Name: "n"}, node))
		stale := c.node().DeepCopy()
		stale.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
		raw := c.Client.(cached).Client
		live := new(corev1.Node)
		require.NoError(t, raw.Get(t.Context(), client.ObjectKey{Name: "n"}, live))
		live.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
		require.NoError(t, raw.Update(t.Context(), live))
		c.Client = behind{cached{raw}, stale}
		c.Require = func(_ context.Context, node *nodepatch.Node) string {
			if node.Status.Allocatable["nvidia.com/gpu"] == "8" {
				return ""
			}
			return "node: gpu is 0"
		}
		_, err := c.reconcile()
		require.NoError(t, err)
		after := new(corev1.Node)
		require.NoError(t, raw.Get(t.Context(), client.ObjectKey{Name: "n"}, after))
		q := after.Status.Allocatable["nvidia.com/gpu"]
		assert.Equal(t, "0", q.String())
		assert.NotEmpty(t, after.Spec.Taints, "released although the live Node has no GPU")
	})
}

// While another node waits for a slot, the worker of a released node is kept. Its verdict counts neither for a second release nor
// from before a foreign taint.
func TestKeptWorkerReleasesNothing(t *testing.T) {
	for name, again := range map[string]func(*cluster){
		"the label is removed twice": func(c *cluster) {
			c.step()
			require.True(c.t, c.Fleet.IsVerified(c.node()), "by its second worker")
			c.update(func(node *corev1.Node) { delete(node.Labels, verified) })
		},
		"a foreign taint comes and goes": func(c *cluster) {
			c.update(func(node *corev1.Node) {
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "cni/not-ready", Effect: corev1.TaintEffectNoSchedule})
			})
			c.step()
			c.update(func(node *corev1.Node) { node.Spec.Taints = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newPassedCluster(t)
				c.slots.waiting["other"] = waiting{attempt: 1, since: time.Now(), worker: "other-worker"}
				first := c.pod().Name
				c.step()
				require.True(t, c.Fleet.IsVerified(c.node()))
				assert.Len(t, c.pods(), 1, "the worker is kept")
				time.Sleep(cacheDelay)
				c.update(func(node *corev1.Node) { delete(node.Labels, verified) })
				c.step()
				require.Len(t, c.pods(), 2, "another worker begins")
				for _, pod := range c.pods() {
					if pod.Name != first {
						ready(&pod)
						require.NoError(t, c.Client.Status().Update(t.Context(), &pod))
					}
				}
				again(c)
				time.Sleep(cacheDelay)
				c.step()
				c.step()
				assert.False(t, c.Fleet.IsVerified(c.node()), "no worker has passed since")
			})
		})
	}
}

type behind struct {
	client.Client
	node *corev1.Node
}

func (b behind) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if node, ok := object.(*corev1.Node); ok {
		b.node.DeepCopyInto(node)
		return nil
	}
	return b.Client.Get(ctx, key, object, options...)
}
